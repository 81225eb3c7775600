"""Rules that find the local step sizes of a round as it goes, each client its own (`Rule`).

delta: Delta-SGD (Kim, Toghani, Uribe and Kyrillidis, ICLR 2024, Algorithm 1). With D_k all that eta_k multiplies, pull,
dual terms and weight decay included, theta_k = eta_k / eta_{k-1} and theta_0 = 1,
    eta_0 = min(first, limit) in every round,
    eta_k = min(gamma ||x_k - x_{k-1}|| / (2 ||D_k - D_{k-1}||), sqrt(1 + growth theta_{k-1}) eta_{k-1}, limit),
    limit = min(bound first, gamma / (2 (rho + weight decay))).
Deviations. The authors' code evaluates the last model's gradient anew on the step's own mini-batch, two gradients a
step; here D_{k-1} is that of the last step, one gradient a step, so that mini-batch noise shortens steps too. It lets
the first step size grow already. `limit` is ours: where gradients do not differ
(interpolation) steps would grow without end, and no curvature is below that of the pull. Where x or D did not change
the growth branch stands alone, as in that code.

dog: DoG (Ivgi, Hinder and Carmon, ICML 2023), begun anew at the start of every round:
    eta_k = max(r, max_{j <= k} ||x_j - x_0||) / sqrt(sum_{j <= k} ||D_j||^2),   r = first (1 + ||x_0||).
Deviations. The paper's r is 1e-6 (1 + ||x_0||), from which a round of few steps does not get away; iterates are not
averaged.

normed: of this library, for `algorithms.auto`. The first step of a round has the length `first`, later ones its size,
and none is longer than `bound` times that,
    eta_k = min(eta_0, bound first / ||D_k||),   eta_0 = first / ||D_0||, or what the method gives.

Nothing is kept between rounds unless a method does so (`Local.first`, `Done.step_size`, `Done.curvature`,
`Done.power`).

A step size is a small tuple as the pieces of a step are (`pieces`): `size(v, at)` gives eta for the direction v,
and changes only the fields that it names in `moves`, in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.method.contract import Rule
from fedconcord.method.contract.pieces import At
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name

# -- what users name ---------------------------------------------------------------------------------------------------


def auto() -> Rule:
    """The library's choice: delta with its defaults."""
    return delta()


def delta(
    gamma: Annotated[float, Field(gt=0, description="steps are at most gamma / 2 over the observed curvature")] = 2.0,
    growth: Annotated[float, Field(ge=0, description="how fast steps grow where the curvature allows it")] = 0.1,
    first: Annotated[float, Field(gt=0, description="first step size of a round")] = 0.2,
    bound: Annotated[float, Field(ge=1, description="largest step size, in units of the first")] = 10.0,
) -> Rule:
    """Delta-SGD: the step size follows the curvature that the last two directions show.

    Kim et al., ICLR 2024.
    """
    return Rule("delta", first, gamma, growth, bound)


def dog(
    first: Annotated[float, Field(gt=0, description="first distance of a round, in units of 1 + ||x||")] = 0.01,
) -> Rule:
    """DoG: the distance from the round's start over the root of the summed squares of all directions.

    Ivgi et al., ICML 2023.
    """
    return Rule("dog", first)


def normed(
    first: Annotated[float, Field(gt=0, description="length of a round's first step")] = 0.4,
    bound: Annotated[float, Field(ge=1, description="length of the longest step, in units of the first")] = 2.0,
) -> Rule:
    """The first step has a given length, later steps keep its size, and none is much longer."""
    return Rule("normed", first, bound=bound)


RULES: dict[str, Callable[..., Rule]] = by_name(auto, delta, dog, normed)
"""Rules of local step sizes by name, for `local.lr`."""


# -- the sizes of a round ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByStep:
    """A factor > 0 on the step size for each step of a round, from 0; two are one by what they are called."""

    name: str
    of: Callable[[int], float] = field(repr=False, compare=False)

    def __call__(self, k: int) -> float:
        """The factor of step k.

        Raises:
            UserError: a function of one's own gives no number > 0.
        """
        value = self.of(k)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UserError(f"local.step_schedule {self.name} is {value!r} at step {k}; let it give a number > 0")
        return float(value)


class Fixed(NamedTuple):
    """The round's step size, times the factor that the local solver's schedule gives each step."""

    eta: float
    schedule: ByStep | None = None

    def at(self, k: int) -> float:
        return self.eta if self.schedule is None else self.eta * self.schedule(k)

    def size(self, v: Tensor, at: At) -> float:
        return self.at(at.k)


class Recorded(NamedTuple):
    """The sizes that steps had."""

    etas: Tensor  # [S, K]

    def size(self, v: Tensor, at: At) -> Tensor:
        return self.etas[:, at.k : at.k + 1]


class Delta(NamedTuple):
    """Delta-SGD within a round. Columns are [S, 1]; so those of `Dog` and `Normed`."""

    lr: float  # the round's, a factor on what the rule finds
    gamma: float
    growth: float
    now: Tensor  # eta of the last step over lr; before the first, of that one
    ratio: Tensor  # theta
    moved: Tensor  # ||x_k - x_{k-1}||
    limit: Tensor
    curvature: Tensor  # the largest ||D_k - D_{k-1}|| / ||x_k - x_{k-1}|| yet; 0: none
    last: Tensor  # [S, d] D_{k-1}
    etas: Tensor | None = None  # [S, K] of every step, where a normaliser is made of them

    @property
    def moves(self) -> tuple[str, ...]:
        return "now", "ratio", "moved", "curvature", "last", "etas"

    def size(self, v: Tensor, at: At) -> Tensor:
        change = length(v - self.last) if at.k else None
        self.last.copy_(v)
        return self.measured(at.k, length(v), change)

    def measured(self, k: int, norm: Tensor, change: Tensor | None) -> Tensor:
        """The same from ||D_k|| and ||D_k - D_{k-1}||; None before the first step."""
        if change is not None:
            is_known = (change > 0) & (self.moved > 0)
            steep = torch.where(is_known, torch.nan_to_num(change / self.moved, nan=torch.inf, posinf=torch.inf), 0.0)
            growing = torch.sqrt(1.0 + self.growth * self.ratio) * self.now
            new = torch.minimum(torch.minimum(0.5 * self.gamma / steep, growing), self.limit)
            tiny = torch.finfo(new.dtype).tiny  # a step of 0, after an overflow, stays one
            self.ratio.copy_(new / self.now.clamp(min=tiny))
            self.now.copy_(new)
            self.curvature.copy_(torch.maximum(self.curvature, steep))
        eta = self.lr * self.now
        self.moved.copy_(eta * norm)
        return record_size(self.etas, k, eta)


class Dog(NamedTuple):
    """DoG within a round."""

    lr: float
    start: Tensor  # [S, d] x_0
    now: Tensor
    reach: Tensor  # max(r, max_j ||x_j - x_0||)
    first: Tensor  # the first step size where a method gives it, else 0: then `reach` begins at r
    squares: Tensor  # sum of ||D_j||^2
    etas: Tensor | None = None

    @property
    def moves(self) -> tuple[str, ...]:
        return "now", "reach", "squares", "etas"

    def size(self, v: Tensor, at: At) -> Tensor:
        return self.measured(at.k, length(v), length(at.x - self.start))

    def measured(self, k: int, norm: Tensor, far: Tensor) -> Tensor:
        """The same from ||D_k|| and ||x_k - x_0||."""
        opening = torch.where(self.squares > 0, 0.0, self.first * norm)
        self.squares.add_(norm.square())
        self.reach.copy_(torch.maximum(torch.maximum(self.reach, far), opening))
        self.now.copy_(self.reach / self.squares.clamp(min=torch.finfo(norm.dtype).tiny).sqrt())
        return record_size(self.etas, k, self.lr * self.now)


class Normed(NamedTuple):
    """Steps of one size within a round."""

    lr: float
    length: float
    bound: float
    now: Tensor
    opening: Tensor  # eta_0; 0: not known yet
    squares: Tensor  # sum of ||D_j||^2
    etas: Tensor | None = None

    @property
    def moves(self) -> tuple[str, ...]:
        return "now", "opening", "squares", "etas"

    def size(self, v: Tensor, at: At) -> Tensor:
        return self.measured(at.k, length(v))

    def measured(self, k: int, norm: Tensor) -> Tensor:
        """The same from ||D_k||."""
        whole = norm.clamp(min=torch.finfo(torch.float32).tiny)
        self.opening.copy_(torch.where(self.opening > 0, self.opening, self.length / whole))
        self.now.copy_(torch.minimum(self.opening, self.bound * self.length / whole))
        self.squares.add_(norm.square())
        return record_size(self.etas, k, self.lr * self.now)


Ruled = Delta | Dog | Normed
StepSize = Fixed | Recorded | Ruled


def begin(
    rule: Rule, lr: float, x: Tensor, stiffness: float | Tensor, first: float | Tensor | None, steps: int | None
) -> Ruled:
    """The step sizes of a rule before the first step of a round; the loop copies what moves.

    Args:
        lr: a factor on what the rule finds.
        x: [S, d] where the steps start.
        stiffness: the curvature that pull and weight decay add, which bounds delta's step sizes.
        first: the method's own first step size (`Local.first`).
        steps: the most steps of a client, where every step's size is to be recorded.
    """
    zero = torch.zeros_like(x[:, :1])
    etas = None if steps is None else x.new_zeros(len(x), steps)
    if rule.kind == "normed":
        opening = zero if first is None else zero + first
        return Normed(lr, rule.first, rule.bound, zero, opening, zero, etas)
    opening = zero + (rule.first if first is None else first)
    if rule.kind == "dog":
        reach = opening * (1 + length(x)) if first is None else zero
        return Dog(lr, x, zero, reach, zero if first is None else opening, zero, etas)
    limit = torch.minimum(rule.bound * opening, 0.5 * rule.gamma / (zero + stiffness))
    now, last = torch.minimum(opening, limit), torch.empty_like(x)
    return Delta(lr, rule.gamma, rule.growth, now, zero + 1, zero, limit, zero, last, etas)


def record_size(etas: Tensor | None, k: int, eta: Tensor) -> Tensor:
    """The step size, written down where somebody asks for it."""
    if etas is not None:
        etas[:, k : k + 1] = eta
    return eta


def summary(size: StepSize, steps: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The last step size, mean power and largest curvature of `Done`, after so many steps [S, 1]."""
    if not isinstance(size, Ruled):
        return None, None, None
    if isinstance(size, Delta):
        return size.now, None, size.curvature
    return size.now, size.squares / steps.clamp(min=1), None


def length(vectors: Tensor) -> Tensor:
    """l2 norms [..., 1] of vectors [..., d]."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return norm
