"""Local optimisers: pieces that turn the whole direction of a step, corrections and pulls in it, into a move.

D = kappa g + linear + rho (x - anchor);   x <- x - eta (T(D) + decay x).

Where corrections make D = 0 at the optimum, it stays a fixed point, as T(0) = 0: control variates that are means of
gradients and dual variables do that under any T, and a correction behind T does not. T is no linear function of
gradients, so no piece here has a `unit`. Vectors are [S, d], of one client [d].

AdamW: Loshchilov and Hutter, ICLR 2019, as torch.optim.AdamW: m and v with bias correction, decay beside it. v is the
larger of two: of the raw gradient, which is not 0 at the optimum, so that T is smooth there and a corrected method
converges at a constant step size; and of the direction, without which an entry whose gradient is far smaller than its
correction or pull would step far too long. Without corrections both are AdamW's.
Lion: Chen et al., NeurIPS 2023, Algorithm 2. Sign: signSGD, Bernstein et al., ICML 2018.
Muon: Jordan et al. 2024 (github.com/KellerJordan/Muon): Nesterov momentum, its matrices made nearly orthogonal by
five Newton-Schulz steps, times sqrt(max(1, rows / columns)); convolutions are matrices [out, the rest]. All other
parameters take AdamW's step with betas 0.9 and 0.95 and eps 1e-10, `rest` times as long.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedconcord.method.contract.pieces import At, Place, Traits
from fedconcord.method.contract.products import LEAST, products

Matrix = tuple[int, int, int]
"""(begin, rows, columns) of a weight matrix in x [d]."""

Second = Literal["larger", "oracle", "direction"]
COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of Newton-Schulz


class MeanGradient(NamedTuple):
    """The sum of the gradients that a round's steps took, as they came; it changes none."""

    total: Tensor  # [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.MEASURE, ("total",))

    def apply(self, g: Tensor, at: At) -> Tensor:
        self.total.add_(g)
        return g


class SecondMoment(NamedTuple):
    """v <- beta v + (1 - beta) g^2 of the gradient as it came, which it does not change."""

    v: Tensor  # [S, d]
    beta: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.MEASURE, ("v",))

    def apply(self, g: Tensor, at: At) -> Tensor:
        self.v.mul_(self.beta).addcmul_(g, g, value=1 - self.beta)
        return g

    def wide(self, e: int) -> SecondMoment:
        return self._replace(v=pad(self.v, (0, e)))


class DirectionMoment(NamedTuple):
    """v <- beta v + (1 - beta) D^2 of the direction, which it does not change."""

    v: Tensor  # [S, d]
    beta: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.DIRECTION, ("v",))

    def apply(self, d: Tensor, at: At) -> Tensor:
        self.v.mul_(self.beta).addcmul_(d, d, value=1 - self.beta)
        return d

    def wide(self, e: int) -> DirectionMoment:
        return self._replace(v=pad(self.v, (0, e)))


class AdamW(NamedTuple):
    """m^ / (sqrt(v^) + eps) + decay x, with v of the moments in the same step."""

    m: Tensor  # [S, d]
    t: Tensor  # [S, 1] steps so far
    beta: float
    beta2: float
    eps: float
    decay: float
    before: Tensor | None = None  # [1] steps that v saw before these; None: it began with m

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM, ("m", "t"))

    def apply(self, v: Tensor, at: At) -> Tensor:
        self.t.add_(1)
        self.m.lerp_(v, 1 - self.beta)
        all_steps = self.t if self.before is None else self.t + self.before
        step = corrected(self.m, _second(at), (self.t, all_steps), (self.beta, self.beta2), self.eps)
        return v.copy_(step).add_(at.x, alpha=self.decay)

    def wide(self, e: int) -> AdamW:
        return self._replace(m=pad(self.m, (0, e)))


class Lion(NamedTuple):
    """sign(b1 m + (1 - b1) D) + decay x, and then m <- b2 m + (1 - b2) D."""

    m: Tensor  # [S, d]
    beta1: float
    beta2: float
    decay: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM, ("m",))

    def apply(self, v: Tensor, at: At) -> Tensor:
        direction = torch.lerp(self.m, v, 1 - self.beta1).sign_()
        self.m.lerp_(v, 1 - self.beta2)
        return v.copy_(direction).add_(at.x, alpha=self.decay)

    def wide(self, e: int) -> Lion:
        return self._replace(m=pad(self.m, (0, e)))


class Sign(NamedTuple):
    """sign(D)."""

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.sign_()

    def wide(self, e: int) -> Sign:
        return self


class Muon(NamedTuple):
    """Orthogonal steps of matrices, and AdamW's of the rest, with v of the moments in the same step."""

    m: Tensor  # [S, d]
    t: Tensor  # [S, 1] steps so far
    betas: Tensor  # [d] of m: `beta` for matrices, 0.9 for the rest
    beta: float
    decay: float
    rest: float  # step size of the rest over eta
    orthogonal: Literal["newton_schulz", "svd"]
    matrices: tuple[Matrix, ...]
    shift: Tensor | None = None  # [S, d] in what the steps are of, beside m, which is then without Nesterov's part

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM, ("m", "t"))

    def apply(self, v: Tensor, at: At) -> Tensor:
        self.t.add_(1)
        self.m.mul_(self.betas).addcmul_(1 - self.betas, v)
        m = self.m if self.shift is None else self.m + self.shift
        step = corrected(m, _second(at), (self.t, self.t), (0.9, 0.95), 1e-10)
        if self.shift is not None:  # where gradients are far smaller than the shift, v knows nothing of it
            step.clamp_(-1, 1)
        step.mul_(self.rest)
        ahead = torch.lerp(v, m, self.beta) if self.shift is None else m
        for begin, rows, columns in self.matrices:
            places = slice(begin, begin + rows * columns)
            matrix = ahead[..., places].view(*v.shape[:-1], rows, columns)
            way = nearest_orthogonal(matrix) if self.orthogonal == "svd" else newton_schulz(matrix)
            step[..., places] = way.flatten(-2).mul_(math.sqrt(max(1.0, rows / columns)))
        return v.copy_(step).add_(at.x, alpha=self.decay)

    def wide(self, e: int) -> Muon:
        """Private entries take AdamW's steps."""
        return self._replace(m=pad(self.m, (0, e)), betas=pad(self.betas, (0, e), value=0.9))


class Aligned(NamedTuple):
    """weight T(D) + c: the optimiser's move, and behind it one that the server asks for."""

    weight: float
    c: Tensor  # [d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.ALIGN)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.mul_(self.weight).add_(self.c)

    def wide(self, e: int) -> Aligned:
        return self._replace(c=pad(self.c, (0, e)))


def corrected(m: Tensor, v: Tensor, t: tuple[Tensor, Tensor], betas: tuple[float, float], eps: float) -> Tensor:
    """m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), a new tensor; t of each."""
    root = v.div(1 - betas[1] ** t[1]).sqrt_().add_(eps)
    return m.div(1 - betas[0] ** t[0]).div_(root)


def _second(at: At) -> Tensor:
    moments = [piece.v for piece in at.pieces if isinstance(piece, SecondMoment | DirectionMoment)]
    return moments[0] if len(moments) == 1 else torch.maximum(*moments)


def newton_schulz(x: Tensor, steps: int = 5) -> Tensor:
    """Matrices [..., rows, columns] with singular values drawn near 1, by a quintic iteration on X / ||X||_F.

    A step is X <- q(S) X with q(S) = a + b S + c S^2 and S = X X^T. In float32, where X is large and long, all steps
    are taken on S: S, q and their products are symmetric and commute, so that S becomes q S q, and X is multiplied
    once. That rounds by some 1e-4 where singular values are spread, so float64, which is for comparing, has the loop.
    """
    if x.shape[-2] > x.shape[-1]:
        return newton_schulz(x.mT, steps).mT
    rows, columns = x.shape[-2:]
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    if x.dtype != torch.float32 or 2 * columns < 3 * rows or rows * rows * columns < LEAST:
        for _ in range(steps):
            x = products(_quintic(products(x, x)), x.mT)
        return x
    square = products(x, x)
    way = factor = _quintic(square)
    for _ in range(steps - 1):
        square = products(products(factor, square), factor)
        factor = _quintic(square)
        way = products(factor, way)
    return products(way, x.mT)


def _quintic(square: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    factor = b * square + c * products(square, square)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


def nearest_orthogonal(x: Tensor) -> Tensor:
    """U V^T of matrices X = U S V^T; 0 for what is 0 in all directions."""
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    whole = (s > 1e-12 * s.amax(-1, keepdim=True).clamp(min=1e-300)).to(x.dtype)
    near: Tensor = (u * whole[..., None, :]) @ vh
    return near
