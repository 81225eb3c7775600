"""Servers between the root of a deployment and its sites: an edge passes messages on, and adds replies up.

To the root an edge is what a site is to a server, and to its sites what the server is: they are asked by the root's own
frames. These travel in one bundle an edge, in which a tensor that several of them have travels once. Replies to orders
stay at the edge; what goes up in their place is how long their vectors are, which says whether all is finite. Then the
root, which weighs those who replied anywhere, names whose replies count, by round and fingerprint, and gets their total
with the weights of the whole cohort: one vector an edge. Where an edge or half of one is lost in between, the others
are asked for their totals again, by the weights of who is left. Under masks contributions are weighed already: an edge
adds integers up, and what is left of its sum changes with nobody else.

An edge keeps nothing: rows are at the sites, pending until the root's next orders say that a reply counted, and those
of a lost edge never hear it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.server import RemoteServer, Reply
from fedconcord.execution.messages.sums import Heard, Requests, Summed, form_of_total, say_far
from fedconcord.execution.messages.terms import FEWEST
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.servers import Edges
from fedconcord.method.contract import (
    Phase,
    Plan,
    Tree,
    cohort_of,
    tree_bytes,
    tree_map,
    tree_sum,
)
from fedconcord.method.contract.trees import raw
from fedconcord.study.runs.events import Event
from fedconcord.study.settings.sources import Source
from fedconcord.support.errors import UserError
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.form import Form, by_edge
from fedconcord_sites.policy import job_digest
from fedconcord_sites.site_link import SLACK, SiteLink

SHARE = 0.8  # of the seconds for an edge's answer, those that it waits for its sites
TOTAL = "total"
MASKED = "masked"  # in its place, where contributions are under masks
END = "end"  # of the run: what an edge is told last
Answer = TypeVar("Answer")


# -- messages between the root and an edge -----------------------------------------------------------------------------


def bundle(frames: Mapping[str, Frame]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Frames by site as the fields and tensors of one; equal tensors are one."""
    places, tensors, heads = dict[tuple[str, str, bytes], str](), dict[str, Tensor](), dict[str, Any]()
    for site, frame in frames.items():
        names = {}
        for name, tensor in frame.tensors.items():
            content = (str(tensor.dtype), str(tensor.shape), raw(tensor).numpy().tobytes())
            names[name] = places.setdefault(content, str(len(places)))
            tensors.setdefault(names[name], tensor)
        heads[site] = [*frame[:4], dict(frame.fields), names]
    return {"frames": heads}, tensors


def unbundled(frame: Frame) -> dict[str, Frame]:
    """The inverse of `bundle`, of a frame with these fields and tensors.

    Raises:
        FrameError: it has none.
    """
    try:
        return {
            str(site): Frame(
                *(str(kind), str(run), int(round), int(client)),
                dict(fields),
                {name: frame.tensors[place] for name, place in names.items()},
            )
            for site, (kind, run, round, client, fields, names) in frame.fields["frames"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise FrameError("no bundle of frames") from broken


def number_like(leaf: Tensor) -> Tensor:
    """Room for one number, [1] float64, or [] of a number."""
    return torch.empty((1,) * bool(leaf.ndim), dtype=torch.float64)


# -- at the root -------------------------------------------------------------------------------------------------------


def homes_of(edges: Mapping[str, Sequence[str]], sites: Sequence[str], source: Source) -> dict[str, str]:
    """The edge above each site.

    Raises:
        UserError: a site has none, or several, or a secure sum below one would hide nobody.
    """
    every = [site for below in edges.values() for site in below]
    for site in dict.fromkeys([*sites, *every]) if edges else ():
        if (count := every.count(site)) != 1 or site not in sites:
            what = f"is below {count} edge servers" if site in sites else "of an edge server is none of the sites"
            raise UserError(f"site {site} {what}; name each of {', '.join(sites)} below one edge server")
    for edge, below in edges.items() if by_edge(source) else ():
        if len(below) < FEWEST:
            raise UserError(
                f"{len(below)} sites are below edge server {edge}, and a secure sum of fewer than {FEWEST} hides "
                "nobody; name more below it, or leave secure.group out"
            )
    return {site: edge for edge, below in edges.items() for site in below}


class EdgeExchange:
    """The root's `Exchange` with sites by way of their edges.

    Args:
        homes: edge -> the sites below it; each of `sites` is below one.
        exchange: with edges.
        source: the job's settings, which edges have too.
        see: is told of edges that are lost.

    Attributes:
        counts: by edge how often it was asked and did not answer, and bytes that it sent and got.
        most: bytes of a site's answer, beyond which its edge refuses it.

    Raises:
        UserError: as `homes_of`.
    """

    def __init__(
        self,
        homes: Mapping[str, Sequence[str]],
        sites: Sequence[str],
        exchange: Exchange,
        source: Source,
        see: Callable[[Event], None],
    ) -> None:
        self.edge_of = homes_of(homes, sites, source)
        self.edges, self.exchange, self.see = [*homes], exchange, see
        self.job, self.number, self.away, self.most = job_digest(source), 0, set[str](), 2**27
        self.counts = {edge: Counter(asked=0, missed=0, bytes_sent=0, bytes_got=0) for edge in homes}

    def __call__(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        """As `Exchange` says."""
        below: dict[str, dict[str, Frame]] = {}
        for site, data in messages.items():
            below.setdefault(self.edge_of[site], {})[site] = codec.read(data)
        frames = {}
        for edge, of_site in below.items():
            fields, tensors = bundle(of_site)
            frames[edge] = Frame("pass", "", 0, 0, {**fields, "wait": SHARE * wait, "most": self.most}, tensors)
        answers = self.ask(frames, "passed", wait, unbundled)
        return {s: codec.write(one) for edge, each in answers.items() for s, one in each.items() if s in below[edge]}

    def ask(
        self, frames: Mapping[str, Frame], kind: str, wait: float, read: Callable[[Frame], Answer]
    ) -> dict[str, Answer]:
        """One message to each of these edges, and what is read of the answers of this kind that came.

        Raises:
            UserError: an edge refuses, in its words.
        """
        self.number += 1
        messages = {
            edge: codec.write(one._replace(round=self.number, fields={**one.fields, "job": self.job}))
            for edge, one in frames.items()
        }
        answers, came = dict[str, Answer](), self.exchange(messages, wait)
        for edge, message in messages.items():
            data, count = came.get(edge), self.counts[edge]
            count.update(asked=1, missed=data is None, bytes_got=len(message), bytes_sent=len(data or b""))
            try:
                if data is None:
                    raise FrameError("it did not answer")
                answer = codec.read(data)
                if answer.kind == "refused":
                    raise UserError(f"edge server {edge} refuses: {str(answer.fields.get('why'))[:300]}")
                if (answer.kind, answer.round) != (kind, self.number):
                    raise FrameError("an answer to another question")
                answers[edge] = read(answer)
                self.away.discard(edge)
            except FrameError as lost:
                if edge not in self.away:
                    text = f"edge server {edge} is out with its sites {', '.join(self._below(edge))}: {lost}"
                    self.see(Event("missing", text, edge))
                self.away.add(edge)
        return answers

    def _below(self, edge: str) -> list[str]:
        return [site for site, home in self.edge_of.items() if home == edge]

    def end(self) -> None:
        """Tell the edges that the run is over; who does not hear it waits for another one of the job."""
        self.ask({edge: Frame(END, "", 0, 0) for edge in self.edges}, END, 10.0, lambda frame: frame)

    def said(self) -> list[dict[str, Any]]:
        """What run.json says of the edges."""
        return [{"name": edge, "sites": self._below(edge), **count} for edge, count in self.counts.items()]

    def numbers_of(self, sites: Sequence[str]) -> list[int]:
        """The number of each site's edge."""
        return [self.edges.index(self.edge_of[site]) for site in sites]

    def nested(self, job: Job, sites: Sequence[str]) -> Job:
        """The job of these sites, by number, whose rounds know who is below which edge.

        Raises:
            UserError: it has rounds that do not nest.
        """
        if job.algorithm.phases.prologue is not None:
            raise UserError(
                f"{job.algorithm.identity.method} asks every site for gradients before round 0, which edge servers do "
                "not add up; use another method, or no edge servers"
            )
        assert isinstance(job.schedule, Schedule)
        homes = np.array(self.numbers_of(sites), np.int64)
        tree = Edges((len(self.edges),), 0.0, lambda seed, ids: homes[ids])
        schedule = replace(job.schedule, tree=tree)
        if (why := schedule.refuse(job.algorithm, len(sites))) is not None:
            raise UserError(why)
        return replace(job, schedule=schedule)


class EdgeSums:
    """Totals of what edges add up, as `messages.sums.Sums`.

    Args:
        link: whose exchange the edges' is.
        form: of the sites' samples, from which an edge makes the job.
    """

    def __init__(self, edges: EdgeExchange, link: SiteLink, form: Form) -> None:
        self.edges, self.link, self.form = edges, link, form

    def sum(self, half: RemoteServer, requests: Requests, phase: Phase) -> Summed:
        """As `Sums` says; the replies have lengths in place of vectors."""
        plan, replies = requests.plan, self._lengths(half, requests)
        while True:
            plan = half.only(plan, replies)
            replies = {i: replies[i] for i in plan.ids.tolist()}
            if not replies:
                return Summed(plan, replies, None)
            totals = self._totals(half, plan, replies, phase)
            if totals is not None:
                say_far(half, plan, replies)
                return Summed(plan, replies, tree_sum(totals))

    def collect(self, half: RemoteServer, requests: Requests) -> Heard:
        """Contributions under masks, those below an edge as their total."""
        replies, summed, rows = self._lengths(half, requests), dict[int, Reply](), dict[int, Tensor]()
        for form in [one.like for one in requests.of_client.values()][:1]:  # that of all
            fields = {"round": requests.plan.round, "form": [len(form), 8 * form.itemsize]}
            while replies:
                for ids, total in self._asked(half, Frame(MASKED, half.method, 0, 0, fields), replies, form):
                    summed |= {i: replies.pop(i) for i in ids}
                    rows[ids[0]] = total
        return Heard(summed, rows)

    def _lengths(self, half: RemoteServer, requests: Requests) -> dict[int, Reply]:
        """Replies with lengths in place of vectors, which stay at the edges."""
        self.edges.most = self.link.most + SLACK
        whole = requests.of_client
        of_client = {i: one._replace(name="lengths", like=tree_map(number_like, one.like)) for i, one in whole.items()}
        replies = half.hear(requests._replace(of_client=of_client))
        more = sum(tree_bytes(whole[i].like) - tree_bytes(one.tree) for i, one in replies.items())
        half.traffic = half.traffic._replace(payload_up=half.traffic.payload_up + more)  # what clients sent
        return replies

    def _totals(self, half: RemoteServer, plan: Plan, replies: dict[int, Reply], phase: Phase) -> list[Tree] | None:
        """What the edges of these replies add up to; None, without the replies that cannot be had, if one cannot."""
        scalars = {"round": plan.round, "lr": plan.lr, "seed": plan.seed, "coin": plan.coin}
        arrays = {k: torch.from_numpy(v) for k, v in plan._asdict().items() if isinstance(v, np.ndarray)}
        about = {"phase": phase.number, "plan": scalars, "form": self.form._asdict(), "clients": half.space.n}
        form, count = form_of_total(half, phase, cohort_of(half.space, plan)), len(replies)
        totals = self._asked(half, Frame(TOTAL, half.method, 0, 0, about, arrays), replies, form)
        return [total for _, total in totals] if len(replies) == count else None

    def _asked(
        self, half: RemoteServer, question: Frame, replies: dict[int, Reply], form: Tree
    ) -> list[tuple[list[int], Any]]:
        """Of which of these replies an edge has a total of this form, and that; those that cannot be had are taken out
        of the replies."""
        below: dict[str, dict[str, list[int]]] = {}
        for i, reply in replies.items():
            site = self.link.sites[i]
            below.setdefault(self.edges.edge_of[site], {})[site] = [i, reply.fingerprint]

        def read(frame: Frame) -> Tree | Mapping[str, str | None]:
            """A total, or why there is none: by site, the reason that is the site's, or none."""
            wrong = frame.fields.get("wrong")
            return wrong if isinstance(wrong, Mapping) else codec.unpack(TOTAL, frame, form, half.space.device)

        frames = {
            edge: question._replace(fields={**question.fields, "replies": marks}) for edge, marks in below.items()
        }
        answers: dict[str, Any] = {edge: dict.fromkeys(marks) for edge, marks in below.items()}
        answers |= self.edges.ask(frames, question.kind, self.link.wait, read)
        for edge, marks in below.items():
            if isinstance(wrong := answers[edge], Mapping):
                for site in marks.keys() & wrong.keys() or marks.keys():  # an edge without a reason is not asked again
                    del replies[marks[site][0]]
                    if wrong.get(site) is not None:
                        self.link.refuse(marks[site][0], str(wrong[site]), TOTAL)
        totals = list[tuple[list[int], Any]]()
        for edge in self.edges.edges:
            if edge in below and not isinstance(answers[edge], Mapping):
                ids = [i for i, _ in below[edge].values()]
                totals.append((ids, answers[edge]))
                for i in ids:
                    self.link.accept(i, TOTAL)
        return totals
