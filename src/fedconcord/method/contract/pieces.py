"""The pieces of a local step: each does one thing with a gradient before it moves the model, and has its own state.

A step evaluates the gradient g of its samples, hands it from piece to piece in the order of their `Place`, and moves
by the step size eta times what comes out: x <- x - eta v. A piece is a small tuple of numbers and tensors; `apply` is
its whole definition, for one client and for a cohort, on every engine.

Shapes are those of a cohort: vectors [S, d], or [d] where clients share one, tables [S, M, d], numbers [S, 1], [] or
plain. One client by itself is a cohort of one. `apply` may overwrite the vector that it is given; beside it, it changes
only the fields that it names in `moves`, in place. A method writes vectors as it has them, and the loop makes those
that move the step's own; a table of the client's row may be moved where it lies, so that `finish` takes it of `done`.

Beside `apply` a piece may have
* `after(x)`, called with the moved model after every step;
* `unit(zero)`: itself on a single number, where every gradient is 1 and the start is 0, for FedNova's ||a_i||_1; None
  where a gradient of 1 stays one. With a piece that lacks it there is no such normaliser;
* `wide(e)`: itself on vectors with e entries more, those of the model's private part; a method's piece without it acts
  on what is shared alone;
* `potential(value, x)`: the term of the client's problem of which `apply` adds the gradient, for L-BFGS and for a
  tolerance on ||grad L_i||^2. A piece without it is no part of that problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad


class Place(IntEnum):
    """Where a piece stands in a step."""

    ASCENT = 0  # where the gradient is taken
    REFERENCE = 1  # what is subtracted of it, on the same samples
    CLIP = 2
    TABLE = 3
    MEASURE = 4  # the gradient as the oracle gave it
    SCALE = 5
    DECAY = 6
    CONSTANT = 7
    OPTIMISER = 8
    PULL = 9
    LIMIT = 10  # of the whole direction
    DIRECTION = 11  # measured
    METRIC = 12
    TRANSFORM = 13  # from the direction to the move
    ALIGN = 14  # the move, with another one
    WINDOW = 15  # which entries move


class Traits(NamedTuple):
    """What a loop has to know of a piece."""

    place: Place
    moves: tuple[str, ...] = ()  # the fields that steps change
    costs: int = 0  # gradients that it evaluates at every step


class At(NamedTuple):
    """What a piece may look at in a step."""

    x: Tensor  # [S, d] the model before the step
    gradient: Callable[[Tensor], Tensor]  # point [S, d] -> gradient [S, d] on the step's own samples
    block: Tensor | None  # [S] each client's block of samples, for tables
    k: int  # the step's number in the round, from 0
    pieces: tuple[Piece, ...] = ()  # all of the step, in its order


class Piece(Protocol):
    """What every piece has."""

    @property
    def traits(self) -> Traits: ...

    def apply(self, v: Tensor, at: At) -> Tensor: ...


def gradients_of(pieces: Iterable[Piece]) -> int:
    """How many gradients on its samples a step with these pieces evaluates."""
    return 1 + sum(piece.traits.costs for piece in pieces)


@runtime_checkable
class HasUnit(Protocol):
    """A piece that is known on gradients of 1."""

    def unit(self, zero: Tensor) -> Piece | None: ...


@runtime_checkable
class HasPotential(Protocol):
    """A piece that adds the gradient of a term of the client's problem."""

    def potential(self, value: Tensor, x: Tensor) -> Tensor: ...


@runtime_checkable
class HasAfter(Protocol):
    """A piece that follows the model."""

    def after(self, x: Tensor) -> None: ...


def map_moves(pieces: tuple[Piece, ...], f: Callable[[Tensor], Tensor]) -> tuple[Piece, ...]:
    """The pieces with f of what they move."""

    def one(piece: Any) -> Any:
        fields = {name: f(getattr(piece, name)) for name in piece.traits.moves}
        return piece._replace(**fields)

    return tuple(one(piece) for piece in pieces)


# -- the gradient --------------------------------------------------------------------------------------------------


class Ascent(NamedTuple):
    """SAM: the gradient at x + radius g / (||g|| + 1e-7) (Foret et al. 2021).

    With `dual` (FedSMOO) the ascent goes along g - dual - common, and dual += ascent - common at every step.
    """

    radius: float
    dual: Tensor | None = None  # [S, d]
    common: Tensor | None = None  # [d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.ASCENT, () if self.dual is None else ("dual",), costs=1)

    def apply(self, g: Tensor, at: At) -> Tensor:
        if self.dual is None or self.common is None:
            return at.gradient(ascent(at.x, g, self.radius))
        above = ascent(at.x, g.sub_(self.dual).sub_(self.common), self.radius)
        self.dual.add_(above - at.x - self.common)
        return at.gradient(above)

    def unit(self, zero: Tensor) -> None:
        return None


class Perturbed(NamedTuple):
    """The gradient at x + shift, which is fixed for the round: the only one of a step (FedLESAM)."""

    shift: Tensor  # [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.ASCENT)

    def apply(self, g: Tensor, at: At) -> Tensor:
        return g

    def unit(self, zero: Tensor) -> None:
        return None

    def wide(self, e: int) -> Perturbed:
        return Perturbed(pad(self.shift, (0, e)))


class Snapshot(NamedTuple):
    """g(x) - g(z) + c on the same samples, c the mean of what is taken off (SVRG, Mime)."""

    z: Tensor  # [d]
    c: Tensor | None = None  # [S, d]; None where a `Constant` has it

    @property
    def traits(self) -> Traits:
        return Traits(Place.REFERENCE, costs=1)

    def apply(self, g: Tensor, at: At) -> Tensor:
        g.sub_(at.gradient(self.z.expand_as(at.x)))
        return g if self.c is None else g.add_(self.c)

    def unit(self, zero: Tensor) -> None:
        return None


class Clip(NamedTuple):
    """The gradient with an l2 norm of at most `limit`; with `cut`, what is shared and what is private each."""

    limit: float
    cut: int | None = None  # d of [x | y]

    @property
    def traits(self) -> Traits:
        return Traits(Place.CLIP)

    def apply(self, g: Tensor, at: At) -> Tensor:
        return clipped(g, self.limit, self.cut)

    def unit(self, zero: Tensor) -> None:
        return None


class Table(NamedTuple):
    """SAGA and LoSAC: g - table[j] + mean for the step's block j; then mean += rate (g - table[j]), table[j] = g."""

    table: Tensor  # [S, M, d] last gradient of each block
    mean: Tensor  # [S, d]
    rate: float | Tensor

    @property
    def traits(self) -> Traits:
        return Traits(Place.TABLE, ("table", "mean"))

    def apply(self, g: Tensor, at: At) -> Tensor:
        entry = torch.arange(len(g), device=g.device), at.block
        news = g - self.table[entry]
        self.table[entry] = g
        direction = torch.add(news, self.mean, out=g)
        self.mean.add_(news.mul_(self.rate))
        return direction

    def unit(self, zero: Tensor) -> None:
        return None


# -- what is added to it -------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """kappa g."""

    kappa: float | Tensor

    @property
    def traits(self) -> Traits:
        return Traits(Place.SCALE)

    def apply(self, g: Tensor, at: At) -> Tensor:
        return g.mul_(self.kappa)

    def unit(self, zero: Tensor) -> Scale:
        return self

    def potential(self, value: Tensor, x: Tensor) -> Tensor:
        return self.kappa * value


class Decay(NamedTuple):
    """Weight decay: + rate x, which FedNova's a_i counts as gradient."""

    rate: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.DECAY)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.add_(at.x, alpha=self.rate)

    def unit(self, zero: Tensor) -> None:
        return None

    def potential(self, value: Tensor, x: Tensor) -> Tensor:
        return value + 0.5 * self.rate * x.square().sum()


class Constant(NamedTuple):
    """+ c, one vector for the whole round (SCAFFOLD's c - c_i, the duals of FedDyn, FedADMM and most)."""

    c: Tensor  # [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.CONSTANT)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.add_(self.c)

    def unit(self, zero: Tensor) -> None:
        return None

    def potential(self, value: Tensor, x: Tensor) -> Tensor:
        return value + self.c @ x


class Dual(NamedTuple):
    """+ dual, which moves after every step: dual += rate (x - anchor) (ADMM with inexact steps)."""

    dual: Tensor  # [S, d]
    rate: float
    anchor: Tensor  # [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.CONSTANT, ("dual",))

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.add_(self.dual)

    def after(self, x: Tensor) -> None:
        self.dual.add_(x, alpha=self.rate).sub_(self.anchor, alpha=self.rate)

    def unit(self, zero: Tensor) -> None:
        return None

    def potential(self, value: Tensor, x: Tensor) -> Tensor:
        return value + self.dual @ x


# -- optimisers ----------------------------------------------------------------------------------------------------


class Momentum(NamedTuple):
    """buffer <- beta buffer + v, and a step along it, or along v + beta buffer (torch.optim.SGD's two forms)."""

    beta: float
    buffer: Tensor  # [S, d] zeros, or what a method keeps between rounds (MFL)
    nesterov: bool = False

    @property
    def traits(self) -> Traits:
        return Traits(Place.OPTIMISER, ("buffer",))

    def apply(self, v: Tensor, at: At) -> Tensor:
        self.buffer.mul_(self.beta).add_(v)
        return v.add_(self.buffer, alpha=self.beta) if self.nesterov else v.copy_(self.buffer)

    def unit(self, zero: Tensor) -> Momentum:
        return self._replace(buffer=zero)


# -- of the direction ----------------------------------------------------------------------------------------------


class Pull(NamedTuple):
    """+ rho (x - anchor), outside of the optimiser, so that FedNova's a_i is a linear recursion.

    rho x - rho anchor is not 0 at the anchor: signs and roots would move parameters that have no gradient.
    """

    rho: float | Tensor
    anchor: Tensor  # [S, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.PULL)

    def apply(self, v: Tensor, at: At) -> Tensor:
        away = at.x - self.anchor
        return v.addcmul_(away, self.rho) if isinstance(self.rho, Tensor) else v.add_(away, alpha=self.rho)

    def unit(self, zero: Tensor) -> Pull:
        return self._replace(anchor=zero)

    def potential(self, value: Tensor, x: Tensor) -> Tensor:
        return value + 0.5 * (self.rho * (x - self.anchor).square()).sum()


class Limit(NamedTuple):
    """The whole direction with an l2 norm of at most `limit`, as `Clip`; it has no `unit`, as what it cuts is no
    gradient."""

    limit: float
    cut: int | None = None

    @property
    def traits(self) -> Traits:
        return Traits(Place.LIMIT)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return clipped(v, self.limit, self.cut)


class Newton(NamedTuple):
    """The direction solved against a matrix."""

    metric: Tensor  # [S, d, d]

    @property
    def traits(self) -> Traits:
        return Traits(Place.METRIC)

    def apply(self, v: Tensor, at: At) -> Tensor:
        solved: Tensor = torch.linalg.solve(self.metric, v)
        return solved


def clipped(g: Tensor, limit: float, cut: int | None = None) -> Tensor:
    """g [..., d] with each row's l2 norm at most `limit`; with `cut`, that of the entries before it and after it."""
    if cut is not None:
        return torch.cat([clipped(g[..., :cut], limit), clipped(g[..., cut:], limit)], -1)
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    scaled: Tensor = g * (limit / norm.clamp(min=limit))
    return scaled


def ascent(x: Tensor, g: Tensor, radius: float, out: Tensor | None = None) -> Tensor:
    """The SAM point x + radius * g / (||g|| + 1e-7), per row (Foret et al. 2021; FedSAM); `out` may be g."""
    share = radius / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-7)
    return torch.addcmul(x, g, share, out=out)
