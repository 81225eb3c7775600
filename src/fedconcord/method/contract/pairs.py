"""Low-rank factors inside x, as a server and a local step see them: where they are, and which of them move."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract.pieces import At, Place, Traits


class Pair(NamedTuple):
    """Factors A [rank, inputs] and B [outputs, rank] in x whose product, scale B A, is added to a frozen weight."""

    a: int  # where A begins in x
    b: int  # where B begins in x
    rank: int
    outputs: int
    inputs: int
    scale: float
    fan_in_fan_out: bool  # the weight is [inputs, outputs], as of GPT-2's Conv1D; else [outputs, inputs]
    weight: int  # where the weight begins in an addition to all frozen weights, [D]
    ranks: tuple[int, ...] = ()  # of clients in turn, by their numbers, who hold the first of its rows and columns

    @property
    def size(self) -> int:
        """Numbers of the weight."""
        return self.outputs * self.inputs

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A [..., rank, inputs] and B [..., outputs, rank] as views of x [..., d]."""
        a = x[..., self.a : self.a + self.rank * self.inputs]
        b = x[..., self.b : self.b + self.outputs * self.rank]
        lead = x.shape[:-1]
        return a.view(*lead, self.rank, self.inputs), b.view(*lead, self.outputs, self.rank)

    def of(self, addition: Tensor) -> Tensor:
        """Its part of an addition [D], a view."""
        return addition[self.weight : self.weight + self.size]

    def flat(self, product: Tensor) -> Tensor:
        """scale times a product of factors [outputs, inputs], as the weight lies in memory, [size]."""
        return self.scale * (product.mT if self.fan_in_fan_out else product).reshape(-1)


def parts_of(pairs: tuple[Pair, ...], dim: int) -> Tensor | None:
    """The entries of x [R, d] bool that clients hold whose ranks differ: client i those of row i mod R; None where all
    hold all of it."""
    if not pairs or not pairs[0].ranks:
        return None
    parts = torch.ones(len(pairs[0].ranks), dim, dtype=torch.bool)
    for pair in pairs:
        for part, rank in zip(parts, pair.ranks, strict=True):
            a, b = pair.factors(part)
            a[rank:], b[:, rank:] = False, False
    return parts


class Window(NamedTuple):
    """Nothing outside of a part of x moves, whatever came out of the pieces before."""

    mask: Tensor  # [d] 1 where x moves, else 0

    @property
    def traits(self) -> Traits:
        return Traits(Place.WINDOW)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.mul_(self.mask)

    def unit(self, zero: Tensor) -> None:
        return None
