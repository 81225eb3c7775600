"""The server's half of a round: it knows a roster and what comes over the wire, and holds no samples.

A client that does not answer in `tries` exchanges is left out: the weights of the round are those of the clients that
were heard, and its row stays as it was, for nobody tells it that its reply counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.sums import Requests
from fedconcord.execution.messages.way import Send
from fedconcord.method.contract import (
    PRELUDE,
    Costs,
    Gathered,
    Orders,
    Outcome,
    Phase,
    Plan,
    Population,
    Tree,
    cut_for,
    fill_for,
    finite,
    orders_of,
    tree_sum,
    weights,
)
from fedconcord.support.errors import UserError

if TYPE_CHECKING:
    from fedconcord.execution.messages.store import RemoteStore

NO_FRAMES: Mapping[int, Frame] = MappingProxyType({})
STEPS = 2**40  # of a reply: more has nobody taken
NOT_FINITE = "a number that is not finite"  # why a reply is refused


class Request(NamedTuple):
    """What the server asks of one client, and the reply that it takes."""

    frame: Frame
    kind: str  # of the reply
    name: str  # of its tree
    like: Tree  # the tree's form; () for a reply without


class Reply(NamedTuple):
    """A client's reply."""

    tree: Tree
    is_finite: bool  # all of its numbers are
    gradient_steps: int = 0
    fingerprint: int = 0


class RemoteServer:
    """A server's half of one attempt at a round, as `engines.base.CohortLink`; of the prologue and of losses too.

    It changes copies of what the store keeps between rounds, which count when the attempt is over.

    Args:
        send: one exchange.
        seed: of the model before round 0, which is sent to clients that join later and need it.
    """

    def __init__(self, store: RemoteStore, send: Send, seed: int) -> None:
        self.algorithm, self.space, self.forms, self.sums = store.algorithm, store.space, store.forms, store.sums
        self.ledger, self.traffic = store.ledger.copy(), store.traffic
        self.roster = store.problem.roster
        self.send, self.x0 = send, partial(store.problem.init, seed)
        self.hooks, self.tries = store.way.hooks, store.way.tries
        self.method = store.way.method or codec.digest(store.algorithm.identity)
        self._before, self.gradient_steps = self.traffic, 0
        self._asked: Mapping[int, Request] = {}  # before the local steps
        self._broadcast: Tree = ()
        self._replies: Mapping[int, Reply] = {}  # to what was asked last
        self._spoilt: list[int] = []  # clients whose reply is not finite

    # -- a round ---------------------------------------------------------------------------------------------------

    def gather(self, phase: Phase, plan: Plan) -> Gathered:
        """As `CohortLink` says: who does not reply in `tries` exchanges is left out."""
        requests = self._asks(phase, plan) if phase.number == PRELUDE else self._orders(phase, plan)
        self._spoilt = []
        plan, self._replies, total = self.sums.sum(self, requests, phase)
        self.gradient_steps += sum(reply.gradient_steps for reply in self._replies.values())
        return Gathered(plan, total, tuple(self._spoilt))

    def train_silently(self, plan: Plan) -> None:
        """Nothing is sent but x^0: clients hear of their local steps with their next orders."""
        if self.algorithm.needs.x0:
            new = [i for i in plan.ids.tolist() if i not in self.ledger.joined]
            x0 = codec.pack("x0", self.x0()) if new else {}
            joins = {i: Request(self.frame("join", plan.round, i, {}, x0), "joined", "", ()) for i in new}
            self.ledger.joined |= set(self.answers(joins))
        for k, i in enumerate(plan.ids.tolist()):
            self.ledger.silent.setdefault(i, []).append(orders_of(plan, k, self.algorithm)._asdict())

    def keep(self, plan: Plan) -> None:
        """Note whose reply counted; clients hear it with the next message."""
        for k, (i, is_heard) in enumerate(zip(plan.ids.tolist(), plan.heard, strict=True)):
            self.ledger.counted[i] = (plan.round_of(k), self._replies[i].fingerprint)
            self.ledger.silent.pop(i, None)
            (self.ledger.late.discard if is_heard else self.ledger.late.add)(i)

    @property
    def costs(self) -> Costs:
        """What was sent since this half began, as it is counted: each message once."""
        now, before = self.traffic, self._before
        down, up = now.payload_down - before.payload_down, now.payload_up - before.payload_up
        return Costs(down, up, self.gradient_steps)

    def only(self, plan: Plan, replies: Mapping[int, Reply]) -> Plan:
        """The plan of those that answered with finite numbers, weighed as if it had been drawn so.

        Raises:
            UserError: the method needs all clients and one is missing.
        """
        is_here = np.array([int(i) in replies for i in plan.ids], bool)
        if is_here.all():
            return self._sound(plan, replies)
        if self.algorithm.needs.everyone:
            raise UserError(
                f"{self.hooks.name(int(plan.ids[~is_here][0]))} did not answer in round {plan.round} within "
                f"{self.tries} tries, and {self.algorithm.identity.name or 'the method'} needs all clients in every "
                f"round; {self.hooks.remedy} or another method"
            )
        return self._sound(weights.redrawn(plan, is_here, self.algorithm.weights), replies)

    def _sound(self, plan: Plan, replies: Mapping[int, Reply]) -> Plan:
        """The plan without those whose answer is not finite; they are not asked again, as they would say the same."""
        is_spoilt = plan.heard & ~np.array([replies[i].is_finite for i in plan.ids.tolist()], bool)
        rest = weights.without(plan, is_spoilt, self.algorithm.weights, self.algorithm.needs.everyone)
        refused_ids = np.setdiff1d(plan.ids, rest.ids).tolist()
        self._spoilt += refused_ids
        self.ledger.joined -= {i for i in refused_ids if i not in self.ledger.counted}  # they begin anew
        self._add(refused=len(refused_ids))
        return rest

    # -- beside the rounds -----------------------------------------------------------------------------------------

    def prologue(self, server: Tree, population: Population) -> Outcome:
        """All clients once before round 0.

        Raises:
            UserError: a client does not answer.
        """
        prologue, n = self.algorithm.phases.prologue, population.n
        assert prologue is not None
        x0 = codec.pack("x0", server.x)
        frames = [self.frame("prologue", 0, i, {"p": float(population.p[i])}, x0) for i in range(n)]
        replies = self.answers({i: Request(frames[i], "share", "share", self.forms.share) for i in range(n)})
        absent = next((i for i in range(n) if i not in replies), None)
        if absent is not None:
            raise UserError(
                f"{self.hooks.name(absent)} did not answer before round 0 within {self.tries} tries, and the method "
                f"asks all {n} clients then; {self.hooks.remedy}"
            )
        self.ledger.joined |= set(replies)
        total = tree_sum([replies[i].tree for i in range(n)])
        steps, costs = sum(reply.gradient_steps for reply in replies.values()), self.costs
        return Outcome(prologue.update(server, total), costs.bytes_down, costs.bytes_up, steps)

    def losses(self, x: Tensor, ids: Sequence[int], round: int) -> dict[int, float]:
        """The loss of each of these clients at x [d]; who does not answer is missing."""
        model = codec.pack("x", x)
        like = torch.empty((), dtype=torch.float64)
        requests = {i: Request(self.frame("loss", round, i, {}, model), "loss", "loss", like) for i in ids}
        return {i: float(reply.tree) for i, reply in self.answers(requests).items()}

    def settle(self, round: int) -> int:
        """The message after a round's step; who does not confirm it gets it with the next orders.

        Returns: the bytes that were sent.
        """
        clients = [i for i, owed in self.ledger.owed.items() if owed == round]
        if clients:
            tensors = codec.pack("settle", self.ledger.settles[round])
            rounds = {i: self.ledger.counted[i][0] for i in clients}  # of their orders
            requests = {i: Request(self.frame("settle", rounds[i], i, {}, tensors), "settled", "", ()) for i in clients}
            for i in self.answers(requests, left_out=False):
                self.ledger.received(i)
        return self.costs.bytes_down

    # -- messages --------------------------------------------------------------------------------------------------

    def _asks(self, phase: Phase, plan: Plan) -> Requests:
        """What a cohort is asked before the local steps."""
        self._broadcast, requests = phase.message, {}
        for k, i in enumerate(plan.ids.tolist()):
            fields, tensors = self._head(orders_of(plan, k, self.algorithm), phase.message, plan.round)
            frame = self.frame("ask", plan.round, i, fields, tensors)
            requests[i] = Request(frame, "gradient", "gradient", self.forms.x)
        self._asked = requests
        return Requests(plan, requests)

    def _orders(self, phase: Phase, plan: Plan) -> Requests:
        """The orders for the local steps, which after a prelude have its total, and before them its first message for
        those who forgot it."""
        broadcast, total = phase.message, ()
        if self.algorithm.phases.prelude is not None:
            broadcast, total = self._broadcast, phase.message
        requests = {}
        versions = [plan.round] * len(plan.ids) if plan.version is None else plan.version.tolist()
        for k, i in enumerate(plan.ids.tolist()):
            order, down = orders_of(plan, k, self.algorithm), phase.downs.get(versions[k], broadcast)
            kind, (fields, tensors) = "orders", self._head(order, down, versions[k])
            if self.algorithm.phases.prelude is not None:
                kind, fields = "train", {"orders": order._asdict(), "counted": None}
                tensors = codec.pack("answer", total)
            like = () if order.late else cut_for(phase.portion, self.forms.up, i)
            requests[i] = Request(self.frame(kind, order.round, i, fields, tensors), "reply", "up", like)
        again = {i: self._asked[i].frame for i in requests} if self._asked else {}
        aside, first = (*plan.aside.lost, *plan.aside.stale), [self._first(plan.round, i) for i in plan.aside.lost]
        if plan.version is not None:  # each began from some version: how many from a later one, the plan knows
            others = sum(bool(self._first(version, i)) for version, i in zip(versions, requests, strict=True))
            later = plan.aside.newcomers - others
            first = [codec.pack("x0", self.x0()) if k < later else {} for k in range(len(aside))]
        lost = [self._lost(plan.round, i, broadcast, total, x0) for i, x0 in zip(aside, first, strict=True)]
        return Requests(plan, requests, again, lost)

    def _head(self, order: Orders, broadcast: Tree, version: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Orders with the broadcast of a version, what became of the client's last reply, and what it still lacks."""
        ledger, i = self.ledger, order.id
        counted = ledger.counted.get(i)
        fields: dict[str, Any] = {"orders": order._asdict(), "counted": None if counted is None else list(counted)}
        if ledger.silent.get(i):
            fields["silent"] = ledger.silent[i]
        down = cut_for(self.algorithm.phases.portion, broadcast, i)
        tensors = ({} if order.answers else codec.pack("down", down)) | self._first(version, i)
        if i in ledger.owed:
            tensors |= codec.pack("settle", ledger.settles[ledger.owed[i]])
        return fields, tensors

    def _first(self, version: int, client: int) -> dict[str, Tensor]:
        """x^0 for a client that joins with a later version of the model."""
        needs = self.algorithm.needs.x0 and client not in self.ledger.joined and version > 0
        return codec.pack("x0", self.x0()) if needs else {}

    def _lost(self, round: int, client: int, broadcast: Tree, total: Tree, x0: Mapping[str, Tensor]) -> Frame:
        """What a client gets that is lost in mid-round, or replies too late."""
        counted = self.ledger.counted.get(client)
        fields = {"orders": None, "counted": None if counted is None else list(counted)}
        down = cut_for(self.algorithm.phases.portion, broadcast, client)
        tensors = codec.pack("down", down) | codec.pack("answer", total) | dict(x0)
        return self.frame("lost", round, client, fields, tensors)

    def frame(
        self, kind: str, round: int, client: int, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Frame:
        return Frame(kind, self.method, round, client, fields, tensors)

    # -- exchanges -------------------------------------------------------------------------------------------------

    def hear(self, requests: Requests) -> dict[int, Reply]:
        """The replies of a cohort, and what their coming shows of earlier messages."""
        usable = {i: request for i, request in requests.of_client.items() if not self._is_void(request)}
        replies = self.answers(usable, requests.again, requests.lost)
        for i in replies:
            self.arrived(i, requests.plan.round)
        return replies

    def arrived(self, client: int, round: int) -> None:
        """A reply to the orders of a round came: the client has what was in them."""
        self.ledger.joined.add(client)
        if self.ledger.owed.get(client, round) < round:
            self.ledger.received(client)

    def _is_void(self, request: Request) -> bool:
        """Whether a late reply is to come of which the server never heard that it was begun."""
        order = request.frame.fields["orders"]
        return bool(order["waited"]) and request.frame.client not in self.ledger.late

    def answers(
        self,
        requests: Mapping[int, Request],
        again: Mapping[int, Frame] = NO_FRAMES,
        lost: Sequence[Frame] = (),
        left_out: bool = True,
    ) -> dict[int, Reply]:
        """What clients answer, asked again until they do or have been asked `tries` times.

        Args:
            again: what a client is sent first that has forgotten it.
            lost: frames to clients that answer nothing.
            left_out: who does not answer is out of the round.
        """
        replies: dict[int, Reply] = {}
        forgot: set[int] = set()
        silent = frozenset(frame.client for frame in lost) - requests.keys()
        for attempt in range(self.tries):
            missing = [i for i in requests if i not in replies]
            if not missing and (attempt or not lost):
                break
            frames = [(i, again[i]) for i in missing if i in forgot and i in again]
            frames += [(i, requests[i].frame) for i in missing]
            frames += [] if attempt else [(frame.client, frame) for frame in lost]
            messages = [(i, self.message(frame, attempt > 0)) for i, frame in frames]
            for client, data in self.send(messages, silent):
                self.take(client, data, requests, replies, forgot)
        self._add(clients_lost=(len(requests) - len(replies)) * left_out)
        return replies

    def message(self, frame: Frame, repeated: bool) -> bytes:
        data = codec.write(frame)
        if repeated:
            self._add(resent_down=len(data))
        else:
            self._add(payload_down=frame.payload, framing_down=len(data) - frame.payload)
        return data

    def take(
        self, client: int, data: bytes, requests: Mapping[int, Request], replies: dict[int, Reply], forgot: set[int]
    ) -> None:
        """One message from a client: taken, or refused and counted."""
        try:
            frame = codec.read(data)
            request = requests.get(frame.client)
            if frame.client != client or frame.method != self.method:
                raise FrameError("another client or method")
            if request is None or frame.round != request.frame.round or frame.kind not in (request.kind, "forgot"):
                raise FrameError("another round")
            if frame.kind == "forgot":
                forgot.add(client)
                self._add(framing_up=len(data))
                return
            if client in replies:
                self._add(repeated=1, resent_up=len(data))
                return
            tree = codec.unpack(request.name, frame, request.like, self.space.device) if request.name else ()
            tree = fill_for(self.algorithm.phases.portion, tree, client) if request.name == "up" else tree
            steps, mark = codec.whole(frame.fields.get("gradient_steps", 0), STEPS), frame.fields.get("fingerprint", 0)
            reply = Reply(tree, bool(finite(tree, 1)), steps, codec.whole(mark, 2**63 - 1))
        except FrameError as wrong:
            self._add(refused=1, resent_up=len(data))
            self.hooks.refuse(client, str(wrong))
            return
        replies[client] = reply
        if reply.is_finite:
            self.hooks.accept(client)
        else:
            self.hooks.refuse(client, NOT_FINITE)
        self._add(payload_up=frame.payload, framing_up=len(data) - frame.payload)

    def _add(self, **more: int) -> None:
        self.traffic = self.traffic._replace(**{k: getattr(self.traffic, k) + v for k, v in more.items()})
