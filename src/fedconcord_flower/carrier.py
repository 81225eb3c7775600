"""One message and one answer a site over a post that knows nodes: awaited all together, or taken as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

LOOK = 3.0  # seconds between looks whether sites that have not answered are there
POLL = 0.2  # seconds between questions whether there is something to do

Node = tuple[int, str]
"""(id, when it came): one that went away and came again is another."""


class Letter(NamedTuple):
    """A message for a node."""

    node: int
    data: bytes
    seconds: float  # until it is dropped if nobody fetched it: a site that comes back must not answer an old one


class Back(NamedTuple):
    """What came of a letter."""

    identity: str
    node: int
    data: bytes | None
    why: str  # there is no data


class Post(Protocol):
    """Letters to nodes."""

    def online(self) -> Mapping[str, Node]:
        """The nodes that are there, by the names under which the sites' keys were registered."""
        ...

    def send(self, letters: Sequence[Letter]) -> Sequence[str]:
        """An identity for each letter, '' for one that cannot be sent."""
        ...

    def fetch(self, identities: Sequence[str]) -> Sequence[Back]:
        """What came of these letters since."""
        ...


class _Sent(NamedTuple):
    site: str
    node: Node
    end: float  # when nobody waits for the answer any more


class Carrier:
    """A `fedconcord_sites.exchange.Exchange` over a post, and as `flow` a `Flow`."""

    def __init__(self, post: Post, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self.post, self.tell = post, tell
        self._held: dict[str, tuple[bytes, float]] = {}  # (message, end) for sites that are away
        self._sent: dict[str, _Sent] = {}  # by identity

    def gather(self, sites: Sequence[str], wait: float) -> None:
        """Wait until all sites are there, so long at most."""
        end = time.monotonic() + wait
        while set(sites) - set(self.post.online()) and time.monotonic() < end:
            time.sleep(POLL)

    def __call__(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        end, apart = time.monotonic() + wait, Carrier(self.post, self.tell)
        while not (there := messages.keys() & self.post.online().keys()):
            if time.monotonic() > end:
                return {}
            time.sleep(POLL)
        answers, failed = apart._ends({site: data for site, data in messages.items() if site in there}, wait)
        while apart._held or apart._sent:
            more, without = apart._ends({}, wait)
            answers, failed = answers | more, failed | without
        self.tell({"asked": sorted(messages), "answered": sorted(answers), "failed": failed})
        return answers

    def flow(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes | None]:
        """As `Flow` says; a site that is away gets its message when it comes, if that is within its seconds."""
        answers, failed = self._ends(messages, wait)
        self.tell({"asked": sorted(messages), "answered": sorted(answers), "failed": failed})
        return {**answers, **dict.fromkeys(failed)}

    def _ends(self, messages: Mapping[str, bytes], wait: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """The next answers, and why others do not come."""
        end = time.monotonic() + wait
        self._held |= {site: (data, end) for site, data in messages.items()}
        answers, failed = dict[str, bytes](), dict[str, str]()
        pause, look = 0.05, 0.0
        while (self._held or self._sent) and not (answers or failed):
            if time.monotonic() > look:
                failed |= self._look()
                look = time.monotonic() + LOOK
            for back in self.post.fetch(list(self._sent)) if self._sent else ():
                way = self._sent.pop(back.identity, None)
                if way is not None and back.data is not None and back.node == way.node[0]:
                    answers[way.site] = back.data
                elif way is not None:
                    failed[way.site] = back.why or "an answer of another site"
            now = time.monotonic()
            late = [(way.site, way.end) for way in self._sent.values()]
            late += [(site, end) for site, (_, end) in self._held.items()]
            failed |= {site: "no answer in time" for site, end in late if now > end}
            if not (answers or failed):
                time.sleep(pause)
                pause = min(1.3 * pause, 0.5)
        self._held = {site: parcel for site, parcel in self._held.items() if site not in failed}
        self._sent = {identity: way for identity, way in self._sent.items() if way.site not in failed}
        return answers, failed

    def _look(self) -> dict[str, str]:
        """Send what is held for sites that are there now; why those have lost their message that went away, or came
        anew."""
        there, now = self.post.online(), time.monotonic()
        parcels = {site: self._held.pop(site) for site in [*self._held] if site in there}
        letters = [Letter(there[site][0], data, max(end - now, 1e-3)) for site, (data, end) in parcels.items()]
        each = zip(self.post.send(letters) if letters else (), parcels.items(), strict=True)
        for identity, (site, parcel) in each:
            if identity:
                self._sent[identity] = _Sent(site, there[site], parcel[1])
            else:
                self._held[site] = parcel
        return {way.site: "it went away" for way in self._sent.values() if there.get(way.site) != way.node}
