"""Clients' local training by code of the user's (`contract.code`), one client at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Objective, Orders, rng
from fedconcord.method.contract.code import Code, Visit
from fedconcord.method.contract.pieces import At, HasAfter, Piece
from fedconcord.method.step.sizes import Fixed
from fedconcord.method.step.walk import Chain, Walked, rows_of, with_own_state
from fedconcord.support.errors import UserError


class Corrections:
    """The pieces of one client's steps, from gradients to directions; it counts the steps.

    Args:
        chain: of the client's cohort.
        pieces: its own, with tensors [1, d], of which it moves those that steps move.
    """

    def __init__(self, chain: Chain, pieces: tuple[Piece, ...]) -> None:
        self.chain, self.pieces, self.count = chain, pieces, 0

    def __call__(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The method's direction [d] at the model x [d]."""
        self.follow(x)
        at = At(x[None], _elsewhere, None, self.count, self.pieces)
        direction = self.chain.apply(self.pieces, gradient[None].clone(), at)
        self.count += 1
        return direction[0]

    def follow(self, x: Tensor) -> None:
        """Tell the pieces where the last step ended."""
        if self.count:
            for number, piece in enumerate(self.pieces):
                if isinstance(piece, HasAfter):
                    piece.after(self.chain.view(x[None], number))


def _elsewhere(point: Tensor) -> Tensor:
    raise UserError("the method takes gradients at other points than the model, which client code of one's own has not")


def trained(
    objective: Objective, chain: Chain, code: Code, samples: Sequence[list[Tensor]], orders: Sequence[Orders]
) -> Walked:
    """Where clients' own training ends.

    Args:
        chain: of a cohort [S].
        samples: of each client, those of each of its steps.

    Raises:
        UserError: the problem has no model that code could train; the method corrects gradients and the code did not
            let it; the code failed.
    """
    if objective.train is None:
        raise UserError("client code trains a torch model, and this problem has none; leave local.code out")
    assert isinstance(chain.size, Fixed)
    everyone = tuple(with_own_state(piece, len(orders)) for piece in chain.pieces)
    ends, counts = [], []
    for k, (start, mine, one) in enumerate(zip(chain.x.expand(len(orders), -1), samples, orders, strict=True)):
        row = slice(k, k + 1)
        correct = Corrections(chain, tuple(rows_of(piece, row) for piece in everyone))
        seed = int(rng.generator(one.seed, rng.Purpose.CODE, one.round, one.id).integers(2**62))
        eta: Any = rows_of(chain.size, row).eta
        visit = Visit(one.id, one.round, float(eta), seed, lambda: None)
        x = objective.taking(row, 0).train(code, start, mine, visit, correct) if mine else start  # type: ignore[misc]
        if everyone and mine and not correct.count:
            raise UserError(
                f"the method corrects gradients, and client code {code.identity.name or 'of your own'} never lets it; "
                "call visit.correct() between backward() and the optimiser's step"
            )
        correct.follow(x)
        ends.append(x)
        counts.append(correct.count or len(mine))
    pieces = tuple(piece for piece in everyone if piece.traits.moves)
    return Walked(torch.stack(ends), pieces, chain.size, np.array(counts))
