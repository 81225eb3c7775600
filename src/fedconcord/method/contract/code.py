"""A client's local training in the user's own words: a function of torch code in place of the local steps.

    def train(model, batches, visit):
        optimiser = torch.optim.Adam(model.parameters(), lr=visit.lr)
        for inputs, targets in batches:
            optimiser.zero_grad()
            loss(model(inputs), targets).backward()
            visit.correct()
            optimiser.step()

`correct` makes of the gradients what the method makes of them, its control variates, dual variables and pulls added.
A step of such a training, step(model, batch, state) -> loss, is made one by `wrappers.code.training`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from fedconcord.method.contract.identity import UNNAMED, Identity

Batch = tuple[Tensor, Tensor]
"""Inputs [B, *shape] and targets [B, ...] of a step."""


class Visit(NamedTuple):
    """One client in one round, as its own training sees it."""

    client: int
    round: int
    lr: float  # the round's local step size
    seed: int  # torch's generators have it already; for NumPy's and others
    correct: Callable[[], None]  # the method's corrections, into the gradients of the model's parameters


class Code(NamedTuple):
    """A local training of one's own."""

    train: Callable[[Any, list[Batch], Visit], object]
    identity: Identity = UNNAMED


Correct = Callable[[Tensor, Tensor], Tensor]
"""(x [d], gradient [d]) -> the method's direction [d]."""

Train = Callable[[Code, Tensor, list[Tensor], Visit, Correct], Tensor]
"""(code, x [d], samples [B] of each step, visit, correct) -> the model [d] that the code leaves.

The visit's own `correct` is replaced by one that works on the model's parameters.
"""
