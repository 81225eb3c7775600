"""Sites that come after round 0: the handshake of each when it first answers, without an exchange of its own.

In place of what it is asked such a site gets `hello`, and after a good answer `setup`; until it is ready it counts as
one that does not answer. Means, categories and classes are those of the sites that were there, and its number of rows
was named before round 0: weights and running sums know it as an absent client, and nothing changes when it comes.
"""

from __future__ import annotations

from fedconcord.execution.job import Job
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source
from fedconcord_sites.differences import (
    columns_differ,
    facts_differ,
    keys_differ,
    labels_differ,
    raise_any,
    read_here,
    read_ready,
    versions_differ,
)
from fedconcord_sites.form import facts, input_settings
from fedconcord_sites.handshake import Agreed, hello_of, setup_of

FIRST = 0  # in place of a round, so that a server that was resumed asks in the same words


class Newcomers:
    """What is asked of sites that have not joined yet, and what their answers say."""

    def __init__(self, source: Source, config: Config, job: Job, agreement: Agreed) -> None:
        self.source, self.given, self.facts, self.found = source, input_settings(source), facts(job, config), agreement
        self.greeted = set[int]()  # answered the hello

    def question(self, site: int) -> bytes:
        """The next message to a site."""
        agreement = self.found
        kind, fields = "hello", hello_of(self.source, agreement.sites)
        if site in self.greeted:
            sizes = [size for size, _ in agreement.samples]
            kind = "setup"
            about = agreement.form, agreement.told, True, sizes, agreement.homes
            fields = setup_of(self.source, agreement.sites, *about)
        return codec.write(Frame(kind, agreement.run, FIRST, site, fields, {}))

    def heard(self, site: int, data: bytes) -> bool:
        """Whether its answer makes it one of the sites.

        Raises:
            FrameError: it is an answer to another question.
            DifferError: the site does not fit, in a sentence each.
        """
        frame = codec.read(data)
        kind = "ready" if site in self.greeted else "here"
        if (frame.kind, frame.method, frame.round, frame.client) != (kind, self.found.run, FIRST, site):
            raise FrameError("an answer to another question")
        if site in self.greeted:
            self._ready(site, frame)
            return True
        self._here(site, frame)
        self.greeted.add(site)
        return False

    def _here(self, site: int, frame: Frame) -> None:
        agreement, name = self.found, self.found.sites[site]
        answer = read_here(name, frame)
        raise_any(versions_differ([name], [answer]) or keys_differ([name], [answer], agreement.keys or {}))
        raise_any([] if answer["own"] else [f"site {name} has no file of its own, and the others have; give it one"])
        first = next(one for one in agreement.sites if one not in agreement.later)
        sites, data = [first, name], [agreement.first or {}, answer["data"]]
        raise_any(columns_differ(sites, data, self.given))
        raise_any(labels_differ(sites, data))
        rows = sum(agreement.samples[site])
        if answer["data"]["rows"] != rows:
            counted = f"the run counts on the {rows} that were named before round 0"
            other = f"site {name} has {answer['data']['rows']} rows, and {counted}"
            raise_any([f"{other}; give it the file that was meant, or begin a new run"])

    def _ready(self, site: int, frame: Frame) -> None:
        name, samples = self.found.sites[site], self.found.samples[site]
        ready = read_ready(name, frame)
        raise_any(facts_differ(name, ready.facts, self.facts))
        if ready.samples != samples:
            raise_any([f"site {name} trains and tests on {ready.samples} rows, and {samples} were expected"])
