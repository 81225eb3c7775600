"""The server's half of a round: it knows a roster and what comes over the wire, and holds no samples.

A client that does not answer in `tries` exchanges is left out: the weights of the round are those of the clients that
were heard, and its row stays as it was, for nobody tells it that its reply counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import (
    Algorithm,
    Orders,
    Outcome,
    Plan,
    Population,
    Space,
    Tree,
    cohort_of,
    finite,
    orders_of,
    total_of,
    tree_sum,
)
from fedconcord.federation import weights
from fedconcord.remote import codec
from fedconcord.remote.codec import Frame, FrameError
from fedconcord.remote.ledger import Ledger
from fedconcord.remote.link import Traffic
from fedconcord.remote.sums import PRELUDE, REPLY, Asking, Part, Plain, Sums
from fedconcord.transforms.forms import Forms

Send = Callable[[list[tuple[int, bytes]], frozenset[int]], list[tuple[int, bytes]]]
"""(messages to clients, clients that nothing arrives of) -> what came in, as (client, bytes)."""


class Ways(NamedTuple):
    """How a server speaks of its clients, and who is told what became of their answers."""

    name: Callable[[int], str] = lambda client: f"client {client}"
    remedy: str = "use more wire.tries"  # where one does not answer that must
    taken: Callable[[int], None] = lambda client: None
    refused: Callable[[int, str], None] = lambda client, why: None  # why: a few words
    void: Callable[[str], None] = lambda why: None  # a round that changed nothing; why: a sentence


WIRE, PLAIN = Ways(), Plain()
NOT_FINITE = "a number that is not finite"  # why an answer is refused


class Want(NamedTuple):
    """What the server asks of one client, and the answer that it takes."""

    frame: Frame
    kind: str  # of the answer
    name: str  # of its tree
    like: Tree  # the tree's form; () for an answer without


class Heard(NamedTuple):
    """A client's answer."""

    tree: Tree
    sound: bool  # all of its numbers are finite
    gradient_steps: int = 0
    fingerprint: int = 0


class RemoteServer:
    """One server's rounds.

    Args:
        space: what it knows of the objectives.
        forms: of the method's messages.
        send: one exchange.
        tries: exchanges that a client has to answer in.
        traffic: counted on from here.
        method: what frames name; the digest of the method's identity if none.
        sums: where contributions are summed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        space: Space,
        forms: Forms,
        ledger: Ledger,
        send: Send,
        tries: int,
        traffic: Traffic,
        ways: Ways = WIRE,
        method: str | None = None,
        sums: Sums = PLAIN,
    ) -> None:
        self.algorithm, self.space, self.forms, self.ledger = algorithm, space, forms, ledger
        self.send, self.tries, self.traffic, self.ways = send, tries, traffic, ways
        self.method, self.sums = method or codec.digest(algorithm.identity), sums
        self.spoilt: list[int] = []  # clients of the round whose answer is not finite

    # -- a round ---------------------------------------------------------------------------------------------------

    def round(self, server: Tree, plan: Plan, x0: Tensor) -> Outcome:
        """One round, as `core.contract` states it; x0 [d] is sent to clients that join and need it.

        What it decided is to be put down before `settle` tells any client: a server that begins the round again would
        find clients for which it is over.
        """
        algorithm, before = self.algorithm, self.traffic
        orders = {int(i): orders_of(plan, k, algorithm) for k, i in enumerate(plan.ids)}
        if algorithm.communicates is not None and not algorithm.communicates(cohort_of(self.space, plan)):
            self._join(plan, x0)
            for i, order in orders.items():
                self.ledger.silent.setdefault(i, []).append(order._asdict())
            return self._outcome(server, before, 0)
        broadcast = algorithm.broadcast(server)
        ready = Asking(plan, {i: self._orders(plan.round, order, broadcast, x0) for i, order in orders.items()})
        if algorithm.prelude is not None and orders:
            ready = self._prelude(plan, orders, broadcast, x0)
        lost = {i: self._gone(plan.round, i, broadcast, ready.answer, x0) for i in plan.aside.lost}
        part = Part(
            *(REPLY, algorithm.contribute),
            lambda shares, select, of: total_of(algorithm, server, shares, select, self.space, of),
        )
        plan, heard, total = self.sums.gather(self, ready, part, lost)
        steps = ready.gradient_steps + sum(answer.gradient_steps for answer in heard.values())
        for i in plan.ids.tolist():
            self.ledger.counted[i] = (plan.round, heard[i].fingerprint)
            self.ledger.silent.pop(i, None)
            (self.ledger.late.add if orders[i].late else self.ledger.late.discard)(i)
        if total is None:
            unheard = algorithm.unheard
            after = server if unheard is None else unheard(server, cohort_of(self.space, plan))
            return self._outcome(after, before, steps)
        server = algorithm.update(server, total, cohort_of(self.space, plan))
        if algorithm.settle is not None:
            self.ledger.owe(plan.round, algorithm.settle.send(broadcast, server), plan.ids[plan.heard].tolist())
        return self._outcome(server, before, steps)

    def _prelude(self, plan: Plan, orders: Mapping[int, Orders], broadcast: Tree, x0: Tensor) -> Asking:
        """The message before the local steps, and what those are asked who sent one."""
        prelude = self.algorithm.prelude
        assert prelude is not None
        asked = {i: self._ask(plan.round, order, broadcast, x0) for i, order in orders.items()}
        part = Part(PRELUDE, prelude.contribute, lambda shares, select, plan: tree_sum(shares))
        plan, heard, total = self.sums.gather(self, Asking(plan, asked), part, {})
        if total is None:
            return Asking(plan, {})
        wants = {i: self._train(orders[i], total) for i in plan.ids.tolist()}
        steps = sum(answer.gradient_steps for answer in heard.values())
        return Asking(plan, wants, {i: asked[i].frame for i in wants}, total, steps)

    def _outcome(self, server: Tree, before: Traffic, steps: int) -> Outcome:
        now = self.traffic
        down, up = now.payload_down - before.payload_down, now.payload_up - before.payload_up
        return Outcome(server, down, up, steps, tuple(sorted(self.spoilt)))

    def only(self, plan: Plan, heard: Mapping[int, Heard]) -> Plan:
        """The plan of those that answered with finite numbers, weighed as if it had been drawn so.

        Raises:
            UserError: the method needs all clients and one is missing.
        """
        here = np.array([int(i) in heard for i in plan.ids], bool)
        if here.all():
            return self._sound(plan, heard)
        if self.algorithm.needs_everyone:
            raise UserError(
                f"{self.ways.name(int(plan.ids[~here][0]))} did not answer in round {plan.round} within "
                f"{self.tries} tries, and {self.algorithm.identity.name or 'the method'} needs all clients in every "
                f"round; {self.ways.remedy} or another method"
            )
        return self._sound(weights.redrawn(plan, here, self.algorithm.weights), heard)

    def _sound(self, plan: Plan, heard: Mapping[int, Heard]) -> Plan:
        """The plan without those whose answer is not finite; they are not asked again, as they would say the same."""
        spoilt = plan.heard & ~np.array([heard[i].sound for i in plan.ids.tolist()], bool)
        kept = weights.without(plan, spoilt, self.algorithm.weights, self.algorithm.needs_everyone)
        gone = np.setdiff1d(plan.ids, kept.ids).tolist()
        self.spoilt += gone
        self.ledger.joined -= {i for i in gone if i not in self.ledger.counted}  # they begin anew
        self._add(refused=len(gone))
        return kept

    # -- beside the rounds -----------------------------------------------------------------------------------------

    def prologue(self, server: Tree, population: Population) -> Outcome:
        """All clients once before round 0.

        Raises:
            UserError: a client does not answer.
        """
        prologue, before = self.algorithm.prologue, self.traffic
        assert prologue is not None
        x0 = codec.pack("x0", server.x)
        wants = {
            i: Want(self.frame("prologue", 0, i, {"p": float(population.p[i])}, x0), "share", "share", self.forms.share)
            for i in range(population.n)
        }
        heard = self.answers(wants)
        self._need_all(heard, population.n, "before round 0")
        total = tree_sum([heard[i].tree for i in range(population.n)])
        self.ledger.joined |= set(heard)
        steps = sum(answer.gradient_steps for answer in heard.values())
        return self._outcome(prologue.update(server, total), before, steps)

    def losses(self, x: Tensor, ids: Sequence[int], round: int) -> dict[int, float]:
        """The loss of each of these clients at x [d]; who does not answer is missing."""
        sent = codec.pack("x", x)
        like = torch.empty((), dtype=torch.float64)
        wants = {i: Want(self.frame("loss", round, i, {}, sent), "loss", "loss", like) for i in ids}
        return {i: float(answer.tree) for i, answer in self.answers(wants).items()}

    # -- messages --------------------------------------------------------------------------------------------------

    def _orders(self, round: int, order: Orders, broadcast: Tree, x0: Tensor) -> Want:
        fields, tensors = self._head(round, order, broadcast, x0)
        like = () if order.late else self.forms.up
        return Want(self.frame("orders", round, order.id, fields, tensors), "reply", "up", like)

    def _ask(self, round: int, order: Orders, broadcast: Tree, x0: Tensor) -> Want:
        fields, tensors = self._head(round, order, broadcast, x0)
        return Want(self.frame("ask", round, order.id, fields, tensors), "gradient", "gradient", self.forms.x)

    def _train(self, order: Orders, total: Tree) -> Want:
        fields = {"orders": order._asdict(), "counted": None}
        frame = self.frame("train", order.round, order.id, fields, codec.pack("answer", total))
        return Want(frame, "reply", "up", self.forms.up)

    def _head(self, round: int, order: Orders, broadcast: Tree, x0: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Orders with the broadcast, what became of the client's last reply, and what it still lacks."""
        ledger, i = self.ledger, order.id
        counted = ledger.counted.get(i)
        fields: dict[str, Any] = {"orders": order._asdict(), "counted": None if counted is None else list(counted)}
        if ledger.silent.get(i):
            fields["silent"] = ledger.silent[i]
        tensors = ({} if order.answers else codec.pack("down", broadcast)) | self._first(round, i, x0)
        if i in ledger.owed:
            tensors |= codec.pack("settle", ledger.settles[ledger.owed[i]])
        return fields, tensors

    def _first(self, round: int, client: int, x0: Tensor) -> dict[str, Tensor]:
        """x^0 for a client that joins after round 0, whose broadcast it is."""
        needs = self.algorithm.needs_x0 and client not in self.ledger.joined and round > 0
        return codec.pack("x0", x0) if needs else {}

    def _gone(self, round: int, client: int, broadcast: Tree, answer: Tree, x0: Tensor) -> Frame:
        """What a client gets that is lost in mid-round."""
        counted = self.ledger.counted.get(client)
        fields = {"orders": None, "counted": None if counted is None else list(counted)}
        tensors = codec.pack("down", broadcast) | codec.pack("answer", answer) | self._first(round, client, x0)
        return self.frame("lost", round, client, fields, tensors)

    def _join(self, plan: Plan, x0: Tensor) -> None:
        """x^0 to clients that begin in a round without messages."""
        if not self.algorithm.needs_x0:
            return
        new = [int(i) for i in plan.ids if int(i) not in self.ledger.joined]
        sent = codec.pack("x0", x0)
        wants = {i: Want(self.frame("join", plan.round, i, {}, sent), "joined", "", ()) for i in new}
        self.ledger.joined |= set(self.answers(wants))

    def settle(self, round: int) -> int:
        """The message after a round's step; who does not confirm it gets it with the next orders.

        Returns: the bytes that were sent.
        """
        before = self.traffic.payload_down
        clients = [i for i, owed in self.ledger.owed.items() if owed == round]
        if clients:
            tensors = codec.pack("settle", self.ledger.settles[round])
            wants = {i: Want(self.frame("settle", round, i, {}, tensors), "settled", "", ()) for i in clients}
            for i in self.answers(wants, left_out=False):
                self.ledger.received(i)
        return self.traffic.payload_down - before

    def frame(
        self, kind: str, round: int, client: int, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Frame:
        return Frame(kind, self.method, round, client, fields, tensors)

    # -- exchanges -------------------------------------------------------------------------------------------------

    def hear(
        self,
        plan: Plan,
        wants: Mapping[int, Want],
        again: Mapping[int, Frame] | None = None,
        lost: Mapping[int, Frame] | None = None,
    ) -> dict[int, Heard]:
        """The answers of a cohort, and what their coming shows of earlier messages."""
        void = [i for i, want in wants.items() if self._void(want)]
        heard = self.answers({i: want for i, want in wants.items() if i not in void}, again, lost)
        for i in heard:
            self.ledger.joined.add(i)
            if self.ledger.owed.get(i, plan.round) < plan.round:
                self.ledger.received(i)
        return heard

    def _void(self, want: Want) -> bool:
        """Whether a late reply is to come of which the server never heard that it was begun."""
        order = want.frame.fields["orders"]
        return bool(order["waited"]) and want.frame.client not in self.ledger.late

    def answers(
        self,
        wants: Mapping[int, Want],
        again: Mapping[int, Frame] | None = None,
        lost: Mapping[int, Frame] | None = None,
        left_out: bool = True,
    ) -> dict[int, Heard]:
        """What clients answer, asked again until they do or have been asked `tries` times.

        Args:
            again: what a client is sent first that has forgotten it.
            lost: frames to clients whose answers do not arrive.
            left_out: who does not answer is out of the round.
        """
        heard: dict[int, Heard] = {}
        forgot: set[int] = set()
        gone = frozenset(lost or ())
        for attempt in range(self.tries):
            missing = [i for i in wants if i not in heard]
            if not missing and (attempt or not gone):
                break
            frames = [(i, again[i]) for i in missing if i in forgot and again is not None]
            frames += [(i, wants[i].frame) for i in missing]
            frames += [] if attempt or lost is None else list(lost.items())
            sent = [(i, self._count(frame, attempt > 0)) for i, frame in frames]
            for client, data in self.send(sent, gone):
                self._take(client, data, wants, heard, forgot)
        self._add(clients_lost=(len(wants) - len(heard)) * left_out)
        return heard

    def _count(self, frame: Frame, repeated: bool) -> bytes:
        data = codec.write(frame)
        if repeated:
            self._add(resent_down=len(data))
        else:
            self._add(payload_down=frame.payload, framing_down=len(data) - frame.payload)
        return data

    def _take(
        self, client: int, data: bytes, wants: Mapping[int, Want], heard: dict[int, Heard], forgot: set[int]
    ) -> None:
        """One message from a client: taken, or refused and counted."""
        try:
            frame = codec.read(data)
            want = wants.get(frame.client)
            if frame.client != client or frame.method != self.method:
                raise FrameError("another client or method")
            if want is None or frame.round != want.frame.round or frame.kind not in (want.kind, "forgot"):
                raise FrameError("another round")
            if frame.kind == "forgot":
                forgot.add(client)
                self._add(framing_up=len(data))
                return
            if client in heard:
                self._add(repeated=1, resent_up=len(data))
                return
            tree = codec.unpack(want.name, frame, want.like, self.space.device) if want.name else ()
            numbers = (frame.fields.get(name, 0) for name in ("gradient_steps", "fingerprint"))
            answer = Heard(tree, bool(finite(tree, 1)), *(codec.whole(number) for number in numbers))
        except FrameError as wrong:
            self._add(refused=1, resent_up=len(data))
            self.ways.refused(client, str(wrong))
            return
        heard[client] = answer
        if answer.sound:
            self.ways.taken(client)
        else:
            self.ways.refused(client, NOT_FINITE)
        self._add(payload_up=frame.payload, framing_up=len(data) - frame.payload)

    def _need_all(self, heard: Mapping[int, Heard], n: int, when: str) -> None:
        absent = next((i for i in range(n) if i not in heard), None)
        if absent is not None:
            raise UserError(
                f"{self.ways.name(absent)} did not answer {when} within {self.tries} tries, and the method asks all "
                f"{n} clients then; {self.ways.remedy}"
            )

    def _add(self, **more: int) -> None:
        self.traffic = self.traffic._replace(**{k: getattr(self.traffic, k) + v for k, v in more.items()})
