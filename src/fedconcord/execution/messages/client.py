"""A client that stands alone: its own samples, its own row, and the bytes that it gets.

Its row is kept in two phases. A reply leaves a pending row behind; the next message of the server says whether that
reply counted (its round and fingerprint), and only then the pending row becomes the row. A reply that never arrived
changes nothing on either side, whatever the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.terms import STEPS
from fedconcord.method.contract import Objective, Orders, Tree, TwoBlockRow, cut_for, fill_for, model_of, tree_map
from fedconcord.method.step.assignment import Assignment, block_gradients, settled
from fedconcord.method.step.step import ask, client_step, passes
from fedconcord.method.wrappers.forms import Contribute, Forms

if TYPE_CHECKING:
    from fedconcord.execution.messages.member import Member

NONE = -1  # no round
Handler = Callable[[Frame], Frame | None]


class StoredState(NamedTuple):
    """What a client keeps between rounds."""

    row: Tree  # its state after the last reply that counted
    pending: Tree  # its state if the reply of `mark[0]` counted
    mark: Tensor  # [3] int64: the round of the pending reply, its fingerprint, the last round that counted; -1: none


def stored_like(row: Tree) -> StoredState:
    """What a client keeps whose row is this one."""
    return StoredState(row, row, torch.tensor([NONE, 0, NONE]))


class Shelf(Protocol):
    """Where one client keeps its rows; they survive a restart."""

    def read(self) -> StoredState | None: ...

    def write(self, state: StoredState) -> None: ...


class RemoteClient:
    """Answers frames. What it holds besides its shelf may be lost at any moment and is made again.

    Args:
        objective: of this client alone, at place 0.
        forms: of the method's messages; damaged or foreign ones are refused by them.
        method: what frames name; the digest of the method's identity if none.
        member: covers what it contributes, of which the server learns the sum alone; None: it sends its messages.
    """

    def __init__(
        self,
        id: int,
        assignment: Assignment,
        objective: Objective,
        shelf: Shelf,
        forms: Forms,
        method: str | None = None,
        member: Member | None = None,
    ) -> None:
        self.id, self.assignment, self.objective, self.shelf, self.forms = id, assignment, objective, shelf, forms
        self.method, self.member = method or codec.digest(assignment.algorithm.identity), member
        self._asked: tuple[int, Tree, Tensor] | None = None  # of a prelude: round, broadcast, own full gradient
        self._silently = 0  # gradients of rounds without messages, of which no reply has told that counted

    def receive(self, data: bytes) -> list[bytes]:
        """Answers to a frame, none where it is damaged, out of date or not for this client."""
        handlers: Mapping[str, Handler] = {
            "orders": self._orders,
            "ask": self._ask,
            "train": self._train,
            "settle": self._settle,
            "join": self._join,
            **(self._alone() if self.member is None else self._masked(self.member)),
        }
        try:
            frame = codec.read(data)
            if frame.client != self.id or frame.kind not in handlers:
                return []
            if frame.method != self.method:
                return [codec.write(self._frame("refused", frame.round, {"why": "another method"}))]
            answer = handlers[frame.kind](frame)
        except FrameError:
            return []
        return [] if answer is None else [codec.write(answer)]

    def forgets(self, round: int) -> bool:
        """Whether the first of two messages of a round is no longer known."""
        return self._asked is None or self._asked[0] != round

    def recall(self, data: bytes) -> None:
        """Take up the first of two messages of a round again, which was answered before."""
        self._gradient(codec.read(data))

    def _alone(self) -> dict[str, Handler]:
        """Questions whose answers say something of this client alone."""
        return {"prologue": self._prologue, "loss": self._loss}

    def _masked(self, member: Member) -> dict[str, Handler]:
        """The other messages of a sum."""

        def answer(frame: Frame) -> Frame:
            return self._frame(STEPS[frame.kind], frame.round, {}, member.answer(frame.kind, frame))

        return dict.fromkeys(STEPS, answer)

    def _sent(self, frame: Frame, name: str, up: Tree, contribute: Contribute) -> dict[str, Tensor]:
        """What goes up of a message."""
        up = cut_for(self.assignment.algorithm.phases.portion, up, self.id)
        return codec.pack(name, up) if self.member is None else self.member.cover(frame, partial(contribute, up))

    # -- before round 0, and beside the rounds --------------------------------------------------------------------

    def _join(self, frame: Frame) -> Frame:
        """x^0, for methods whose first row depends on it."""
        if self.shelf.read() is None:
            self.shelf.write(self._first(self._tree("x0", frame, self.forms.x)))
        return self._frame("joined", frame.round)

    def _prologue(self, frame: Frame) -> Frame:
        prologue = self.assignment.algorithm.phases.prologue
        assert prologue is not None
        x = self._tree("x0", frame, self.forms.x)
        gradients = block_gradients(self.objective, self.assignment, 0, self.id, x)
        first = self._first(x)
        empty = first.row.row if isinstance(first.row, TwoBlockRow) else first.row
        row = prologue.row(empty, gradients)
        self.shelf.write(stored_like(first.row._replace(row=row) if isinstance(first.row, TwoBlockRow) else row))
        p = torch.tensor(frame.fields["p"], dtype=gradients.dtype, device=gradients.device)
        tensors = codec.pack("share", prologue.send(gradients, p))
        return self._frame("share", frame.round, {"gradient_steps": len(gradients)}, tensors)

    def _loss(self, frame: Frame) -> Frame:
        with torch.no_grad():
            value = self.objective.loss(self._tree("x", frame, self.forms.x), self.objective.samples(0))
        return self._frame("loss", frame.round, {}, {"loss/": torch.tensor(float(value), dtype=torch.float64)})

    # -- a round ---------------------------------------------------------------------------------------------------

    def _ask(self, frame: Frame) -> Frame | None:
        """The message before the local steps."""
        gradient, prelude = self._gradient(frame), self.assignment.algorithm.phases.prelude
        assert prelude is not None
        if gradient is None:
            return None
        fields = {"gradient_steps": passes(self.assignment, self.objective, 0)}
        return self._frame("gradient", frame.round, fields, self._sent(frame, "gradient", gradient, prelude.contribute))

    def _gradient(self, frame: Frame) -> Tensor | None:
        """The client's full gradient where the message before the local steps asks it."""
        down = self._tree("down", frame, self.forms.down)
        state = self._resolved(frame, down)
        if state is None:
            return None
        gradient = ask(self.assignment.algorithm, self.objective, 0, down, state.row)
        self._asked = (frame.round, down, gradient)
        return gradient

    def _train(self, frame: Frame) -> Frame | None:
        """The local steps after a prelude."""
        assert self.assignment.algorithm.phases.prelude is not None
        if self._asked is None or self.forgets(frame.round):
            return self._frame("forgot", frame.round)  # restarted in between: the server asks anew
        _, down, gradient = self._asked
        down = self.assignment.algorithm.phases.prelude.absorb(down, self._tree("answer", frame, self.forms.answer))
        return self._step(frame, down, gradient if self.assignment.algorithm.needs.full_gradient else None)

    def _orders(self, frame: Frame) -> Frame | None:
        """The local steps."""
        if frame.fields["orders"]["waited"]:  # nothing is broadcast for them; the step is void
            zeros = tree_map(lambda leaf: torch.zeros_like(leaf, device=self.objective.device), self.forms.down)
            return self._step(frame, zeros, None)
        portion = self.assignment.algorithm.phases.portion
        down = self._tree("down", frame, cut_for(portion, self.forms.down, self.id))
        return self._step(frame, fill_for(portion, down, self.id), None)

    def _step(self, frame: Frame, down: Tree, gradient: Tensor | None) -> Frame | None:
        state = self._resolved(frame, down)
        if state is None:
            return None
        orders = Orders(**frame.fields["orders"])
        result = client_step(self.assignment, self.objective, 0, down, state.row, orders, gradient)
        tensors = {} if orders.late else self._sent(frame, "up", result.up, self.assignment.algorithm.contribute)
        mark = torch.tensor([frame.round, codec.fingerprint(tensors), int(state.mark[2])])
        self.shelf.write(StoredState(state.row, result.row, mark))
        fields = {"gradient_steps": result.gradient_steps + self._silently, "fingerprint": int(mark[1])}
        return self._frame("reply", frame.round, fields, tensors)

    def _settle(self, frame: Frame) -> Frame | None:
        """The message after the server's step: the reply of this round counted."""
        state = self.shelf.read()
        if state is None:
            return None
        if int(state.mark[2]) < frame.round:
            if int(state.mark[0]) != frame.round:
                return None  # of another past
            self.shelf.write(self._counted(state, frame))
        return self._frame("settled", frame.round)

    # -- the row ---------------------------------------------------------------------------------------------------

    def _resolved(self, frame: Frame, down: Tree) -> StoredState | None:
        """The row that a round begins with, or None where the frame is of the past."""
        state = self.shelf.read()
        if state is None:
            has_x0 = "x0/" in frame.tensors
            state = self._first(self._tree("x0", frame, self.forms.x) if has_x0 else model_of(down))
        pending, fingerprint, counted = (int(value) for value in state.mark)
        if frame.round <= counted or frame.round < pending:
            return None
        if NONE < pending < frame.round:
            if frame.fields["counted"] == [pending, fingerprint]:
                state = self._counted(state, frame)
            else:
                state = StoredState(state.row, state.row, torch.tensor([NONE, 0, counted]))
        for silent in frame.fields.get("silent", ()):  # rounds without messages: they depend on nobody else
            if silent["round"] > int(state.mark[2]):
                step = client_step(self.assignment, self.objective, 0, down, state.row, Orders(**silent))
                state = StoredState(step.row, step.row, torch.tensor([NONE, 0, silent["round"]]))
                self._silently += step.gradient_steps
        self.shelf.write(state)
        return state

    def _counted(self, state: StoredState, frame: Frame) -> StoredState:
        """The pending row becomes the row, after the message of its round's step where there is one: a late reply has
        none before it comes."""
        settle, row, self._silently = self.assignment.algorithm.phases.settle, state.pending, 0
        if settle is not None and any(name.startswith("settle/") for name in frame.tensors):
            row = settled(settle, self._tree("settle", frame, self.forms.settled), row)
        return StoredState(row, row, torch.tensor([NONE, 0, int(state.mark[0])]))

    def _first(self, x: Tensor) -> StoredState:
        row = self.assignment.algorithm.init_client(x)
        private = self.objective.private
        return stored_like(row if private is None else TwoBlockRow(row, private.first))

    def _tree(self, name: str, frame: Frame, like: Tree) -> Any:
        return codec.unpack(name, frame, like, self.objective.device)

    def _frame(
        self,
        kind: str,
        round: int,
        fields: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Frame:
        return Frame(kind, self.method, round, self.id, fields or {}, tensors or {})
