"""Pieces of a local step that take further gradients on its samples: with steps inside, or of a model beside."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract.pieces import At, Place, Traits


class Look(NamedTuple):
    """Per-FedAvg, first order: the gradient at x - a g, on the same samples (Fallah et al., NeurIPS 2020; a batch of
    its own there)."""

    a: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.ASCENT, costs=1)

    def apply(self, g: Tensor, at: At) -> Tensor:
        return at.gradient(at.x.sub(g, alpha=self.a))

    def unit(self, zero: Tensor) -> None:
        return None


class Moreau(NamedTuple):
    """pFedMe: lam (x - theta), where theta starts at x and takes `steps` steps of size a on f + lam/2 ||theta - x||^2
    over the step's samples (Dinh et al., NeurIPS 2020, eq. (7)); the last theta is the client's own model."""

    lam: float
    steps: int
    a: float
    theta: Tensor  # [S, d] or [d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.ASCENT, ("theta",), costs=self.steps - 1)

    def apply(self, g: Tensor, at: At) -> Tensor:
        self.theta.copy_(at.x).sub_(g, alpha=self.a)
        for _ in range(self.steps - 1):
            g = at.gradient(self.theta).add_(self.theta - at.x, alpha=self.lam)
            self.theta.sub_(g, alpha=self.a)
        return (at.x - self.theta).mul_(self.lam)

    def unit(self, zero: Tensor) -> None:
        return None


class Beside(NamedTuple):
    """Ditto: a second model v takes the same steps on the same samples, v <- v - lr (g(v) + lam (v - anchor)), and
    changes nothing of the first (Li et al., ICML 2021, Algorithm 1; the anchor is the server's model).

    With a share a its loss is that of the mixture u = a v + (1 - a) x (APFL: Deng, Kamani and Mahdavi 2020, Algorithm
    1): a g(u) stands in place of g(v), and in the first step a <- a - rate <v - x, g(u)>, held in [0, 1].
    """

    lam: float
    lr: float
    anchor: Tensor  # [d]
    v: Tensor  # [S, d]
    share: Tensor | None = None  # [S, 1] a; None: all of v
    rate: float = 0.0

    @property
    def traits(self) -> Traits:
        return Traits(Place.MEASURE, ("v",) if self.share is None else ("v", "share"), costs=1)

    def apply(self, g: Tensor, at: At) -> Tensor:
        pull = self.v.sub(self.anchor)
        if self.share is None:
            direction = at.gradient(self.v)
        else:
            apart = self.v - at.x
            slope = at.gradient(torch.addcmul(at.x, apart, self.share))
            direction = slope * self.share
            if at.k == 0 and self.rate:
                self.share.sub_((apart * slope).sum(-1, keepdim=True), alpha=self.rate).clamp_(0.0, 1.0)
        self.v.sub_(direction.add_(pull, alpha=self.lam), alpha=self.lr)
        return g

    def unit(self, zero: Tensor) -> None:
        return None
