"""Servers between the root of a deployment and its sites: an edge passes messages on, and adds replies up.

To the root an edge is what a site is to a server, and to its sites what the server is: they are asked by the root's own
frames. These travel in one bundle an edge, in which a tensor that several of them have travels once. Replies to orders
stay at the edge; what goes up in their place is how long their vectors are, which says whether all is finite. Then the
root, which weighs those who replied anywhere, names whose replies count, by round and fingerprint, and gets their total
with the weights of the whole cohort: one vector an edge. Where an edge or half of one is lost in between, the others
are asked for their totals again, by the weights of who is left. Under masks contributions are weighed already: an edge
adds integers up, and what is left of its sum changes with nobody else.

Below an edge may be edges, at any depth, which it asks as the root asks it (`ask`): down goes a bundle within a bundle,
up what an edge gets of those below it with its own, and one total of all. Only the root knows the tree.

An edge keeps nothing: rows are at the sites, pending until the root's next orders say that a reply counted, and those
of a lost edge never hear it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
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
from fedconcord.method.contract.identity import Identity
from fedconcord.study.runs.events import Event
from fedconcord.study.settings.sources import Source
from fedconcord.support.errors import UserError
from fedconcord_sites.bundles import (
    END,
    MASKED,
    PASS,
    TOTAL,
    Answer,
    ask,
    bundle,
    number_like,
    pooled,
    total_of,
    unbundled,
)
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.form import Form, by_edge
from fedconcord_sites.policy import job_digest
from fedconcord_sites.site_link import SLACK, SiteLink


def homes_of(edges: Mapping[str, Sequence[str]], sites: Sequence[str], source: Source) -> dict[str, str]:
    """The edge above each site, and above each edge that is not right below the root.

    Raises:
        UserError: a site has none, or several, edges are no tree, or a secure sum below one would hide nobody.
    """
    every = [name for below in edges.values() for name in below]
    for name in dict.fromkeys([*sites, *every]) if edges else ():
        count, what = every.count(name), "site" if name in sites else "edge server"
        if name not in sites and name not in edges:
            raise UserError(f"{name} is below an edge server and is neither a site nor an edge server; name it as one")
        if name in sites and name in edges:
            raise UserError(f"{name} is the name of a site and of an edge server; give each its own name")
        if count > 1 or (name in sites and not count):
            raise UserError(
                f"{what} {name} is below {count} edge servers; name each of {', '.join(sites)} below one of them"
            )
    homes = {name: edge for edge, below in edges.items() for name in below}
    for edge, below in edges.items():
        if not below:
            raise UserError(f"edge server {edge} has nothing below it; name its sites or edge servers, or leave it out")
        way = [edge]
        while (home := homes.get(way[-1])) is not None and home not in way:
            way.append(home)
        if home == edge:
            raise UserError(f"edge server {edge} is below itself, by {' and '.join(way)}; one has to be below none")
        if by_edge(source) and not {*below} <= {*sites}:
            raise UserError(
                f"edge server {edge} has edge servers below it, and secure.group=edge makes a sum of the sites right "
                "below each; leave secure.group out, or name one tier of edge servers"
            )
        if by_edge(source) and len(below) < FEWEST:
            raise UserError(
                f"{len(below)} sites are below edge server {edge}, and a secure sum of fewer than {FEWEST} hides "
                "nobody; name more below it, or leave secure.group out"
            )
    return homes


def tops_of(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """The edges right below the root."""
    return [edge for edge in edges if not any(edge in below for below in edges.values())]


class EdgeExchange:
    """The root's `Exchange` with sites by way of their edges.

    Args:
        homes: edge -> the sites and edges right below it; each of `sites` is below one.
        exchange: with the edges that are below none.
        source: the job's settings, which edges have too.
        see: is told of edges that are lost.

    Attributes:
        counts: by edge how often it was asked and did not answer, and bytes that it sent and got; of one below another
            as that one says, which where it is lost says nothing.
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
        self.edges, self.exchange, self.see, self.sites = {**homes}, exchange, see, [*sites]
        self.job, self.number, self.away, self.most = job_digest(source), 0, set[str](), 2**27
        self.counts = {edge: Counter(asked=0, missed=0, bytes_sent=0, bytes_got=0) for edge in homes}

    def __call__(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        """As `Exchange` says."""
        pool: dict[tuple[str, str, bytes], Tensor] = {}  # a model is here once, and in each of these messages
        frames = {site: pooled(codec.read(data), pool) for site, data in messages.items()}
        answers = self.ask(self._down(PASS, tops_of(self.edges), frames), wait, unbundled)
        return {s: codec.write(one) for edge, each in answers.items() for s, one in each.items() if edge in self.way(s)}

    def _down(self, kind: str, edges: Iterable[str], frames: Mapping[str, Frame]) -> dict[str, Frame]:
        """What these edges are sent, so that these frames come to sites; at the end of a run all edges are sent it."""
        questions = {}
        for edge in edges:
            children = self.edges[edge]
            below = {name: frames[name] for name in children if name in frames}
            below |= self._down(kind, [name for name in children if name in self.edges], frames)
            if below or kind == END:
                questions[edge] = Frame(kind, "", 0, 0, *bundle(below))
        return questions

    def ask(self, frames: Mapping[str, Frame], wait: float, read: Callable[[Frame], Answer]) -> Mapping[str, Answer]:
        """One message to each of these edges, and what is read of the answers that came.

        Raises:
            UserError: an edge refuses, in its words.
        """
        self.number += 1
        came = ask(self.exchange, frames, self.number, {"job": self.job, "most": self.most}, wait, read)
        for edge, passage in came.below.items():
            if edge not in self.counts:
                continue
            got, gave, why = passage
            self.counts[edge].update(asked=1, missed=bool(why), bytes_got=got, bytes_sent=gave)
            if why and edge not in self.away:
                text = f"edge server {edge} is out with its sites {', '.join(self.sites_below(edge))}: {why}"
                self.see(Event("missing", text, edge))
            (self.away.add if why else self.away.discard)(edge)
        return came.edges

    def way(self, name: str) -> list[str]:
        """The edges above a site or an edge, from below."""
        home = self.edge_of.get(name)
        return [] if home is None else [home, *self.way(home)]

    def sites_below(self, edge: str) -> list[str]:
        return [site for site in self.sites if edge in self.way(site)]

    def end(self) -> None:
        """Tell the edges that the run is over; who does not hear it waits for another one of the job."""
        self.ask(self._down(END, tops_of(self.edges), {}), 10.0, lambda frame: frame)

    def said(self) -> list[dict[str, Any]]:
        """What run.json says of the edges."""
        return [{"name": edge, "below": [*self.edges[edge]], **count} for edge, count in self.counts.items()]

    def numbers_of(self, sites: Sequence[str]) -> list[int]:
        """The number of each site's edge."""
        return [[*self.edges].index(self.edge_of[site]) for site in sites]

    def nested(self, job: Job, sites: Sequence[str]) -> Job:
        """The job of these sites, by number, whose rounds know who is below which edge; tiers are counted from above.

        Raises:
            UserError: it has rounds that do not nest.
        """
        if job.algorithm.phases.prologue is not None:
            raise UserError(
                f"{job.algorithm.identity.method} asks every site for gradients before round 0, which edge servers do "
                "not add up; use another method, or no edge servers"
            )
        assert isinstance(job.schedule, Schedule)
        names, depths = [*self.edges], Counter(len(self.way(edge)) for edge in self.edges)
        servers = np.repeat(-1 - np.arange(len(sites), dtype=np.int64)[:, None], len(depths), 1)
        for row, site in zip(servers, sites, strict=True):
            way = [names.index(edge) for edge in self.way(site)]
            row[len(row) - len(way) :] = way
        counts = tuple(depths[depth] for depth in reversed(range(len(depths))))
        tree = Edges(counts, 0.0, lambda seed, ids: servers[ids], Identity("of a deployment"))  # a run may change it
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
        while replies:
            form = next(iter(requests.of_client.values())).like  # that of all
            fields = {"round": requests.plan.round, "form": [len(form), 8 * form.itemsize]}
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
        form, count = form_of_total(phase, half.forms, cohort_of(half.space, plan)), len(replies)
        totals = self._asked(half, Frame(TOTAL, half.method, 0, 0, about, arrays), replies, form)
        return [total for _, total in totals] if len(replies) == count else None

    def _asked(
        self, half: RemoteServer, question: Frame, replies: dict[int, Reply], form: Tree
    ) -> list[tuple[list[int], Any]]:
        """Of which of these replies an edge right below the root has a total of this form, and that; those that cannot
        be had are taken out of the replies."""
        below, ids = dict[str, Any](), dict[str, list[int]]()
        for i, reply in replies.items():
            marks, site = below, self.link.sites[i]
            way = self.edges.way(site)
            for edge in reversed(way):
                marks = marks.setdefault(edge, {})
            marks[site] = [i, reply.fingerprint]
            ids.setdefault(way[-1], []).append(i)
        frames = {
            edge: question._replace(fields={**question.fields, "replies": marks}) for edge, marks in below.items()
        }
        answers: dict[str, Any] = {edge: {edge: None} for edge in self.edges.edges if edge in below}
        answers |= self.edges.ask(frames, self.link.wait, partial(total_of, form=form, device=half.space.device))
        totals = list[tuple[list[int], Any]]()
        for edge, answer in answers.items():
            if isinstance(answer, Mapping):
                self._drop(edge, answer, replies)
                continue
            totals.append((ids[edge], answer))
            for i in ids[edge]:
                self.link.accept(i, TOTAL)
        return totals

    def _drop(self, edge: str, wrong: Mapping[str, str | None], replies: dict[int, Reply]) -> None:
        """Take out the replies that an edge does not have; all of its sites', where it names none of them."""
        sites = {site: {site, *self.edges.way(site)} & wrong.keys() for site in self.edges.sites_below(edge)}
        numbers = {site: i for i, site in enumerate(self.link.sites) if i in replies and site in sites}
        for site, i in numbers.items():
            if sites[site] or not any(sites[one] for one in numbers):
                del replies[i]
            if wrong.get(site) is not None:
                self.link.refuse(i, str(wrong[site]), TOTAL)
