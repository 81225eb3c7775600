"""Rules that find the local step sizes of a round as it goes, each client its own (`core.Rule`).

delta: Delta-SGD (Kim, Toghani, Uribe and Kyrillidis, ICLR 2024, Algorithm 1). With D_k all that eta_k multiplies, pull,
dual terms and weight decay included, theta_k = eta_k / eta_{k-1} and theta_0 = 1,
    eta_0 = min(first, limit) in every round,
    eta_k = min(gamma ||x_k - x_{k-1}|| / (2 ||D_k - D_{k-1}||), sqrt(1 + growth theta_{k-1}) eta_{k-1}, limit),
    limit = min(bound first, gamma / (2 (rho + weight decay))).
Deviations. The authors' code evaluates the last model's gradient anew on the step's own mini-batch, two gradients a
step; here D_{k-1} is that of the last step, one gradient a step, so that mini-batch noise shortens steps too. It adds
1e-5 to every step size and lets the first one grow already. `limit` is ours: where gradients do not differ
(interpolation) steps would grow without end, and no curvature is below that of the pull. Where x or D did not change
the growth branch stands alone, as in that code.

dog: DoG (Ivgi, Hinder and Carmon, ICML 2023), begun anew at the start of every round:
    eta_k = max(r, max_{j <= k} ||x_j - x_0||) / sqrt(sum_{j <= k} ||D_j||^2),   r = first (1 + ||x_0||).
Deviations. The paper's r is 1e-6 (1 + ||x_0||), from which a round of few steps does not get away; iterates are not
averaged.

normed: of this library, for `algorithms.auto`. The first step of a round has the length `first`, later ones its size,
and none is longer than `bound` times that,
    eta_k = min(eta_0, bound first / ||D_k||),   eta_0 = first / ||D_0||, or what the method gives.

Nothing is kept between rounds unless a method does so (`Local.first`, `Done.pace`, `Done.curvature`,
`Done.power`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.core import Local, Rule, tree_map

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


RULES: dict[str, Callable[..., Rule]] = {"auto": auto, "delta": delta, "dog": dog, "normed": normed}
"""Rules of local step sizes by name, for `local.lr`."""


# -- a round of them ---------------------------------------------------------------------------------------------------


class Delta(NamedTuple):
    """Delta-SGD within a round. Numbers are [1] for one client, [S, 1] stacked; so those of `Dog`."""

    size: Tensor  # eta of the last step; before the first, of that one
    response: Tensor  # how far unit gradients would have moved x: `Done.normaliser`
    ratio: Tensor  # theta
    moved: Tensor  # ||x_k - x_{k-1}||
    limit: Tensor
    curvature: Tensor  # the largest ||D_k - D_{k-1}|| / ||x_k - x_{k-1}|| yet; 0: none


class Dog(NamedTuple):
    """DoG within a round."""

    size: Tensor
    response: Tensor
    reach: Tensor  # max(r, max_j ||x_j - x_0||)
    first: Tensor  # the first step size where a method gives it, else 0: then `reach` begins at r
    squares: Tensor  # sum of ||D_j||^2


class Normed(NamedTuple):
    """Steps of one size within a round."""

    size: Tensor
    response: Tensor
    opening: Tensor  # eta_0; 0: not known yet
    squares: Tensor  # sum of ||D_j||^2


Pace = Delta | Dog | Normed


def begin(rule: Rule, local: Local, x: Tensor, weight_decay: float) -> Pace:
    """Before the first step of a round, from x [d] or [S, d]."""
    zero = torch.zeros_like(x[..., :1])
    if rule.kind == "normed":
        opening = zero if local.first is None else zero + local.first
        return Normed(zero, zero.clone(), opening, zero.clone())
    given = zero + (rule.first if local.first is None else local.first)
    if rule.kind == "dog":
        reach = given * (1 + length(x)) if local.first is None else zero
        return Dog(zero, zero.clone(), reach, zero if local.first is None else given, zero.clone())
    pull = zero + weight_decay + (0.0 if local.anchor is None else local.prox)
    limit = torch.minimum(rule.bound * given, 0.5 * rule.gamma / pull)
    return Delta(torch.minimum(given, limit), zero, zero + 1, zero.clone(), limit, zero.clone())


def sized(
    rule: Rule, pace: Pace, local: Local, lr: float, norm: Tensor, change: Tensor | None, far: Tensor | None
) -> Pace:
    """The pace with the size of the next step in it, in units of the round's lr.

    Args:
        local: the local problem, with the numbers of the clients that take the step.
        lr: the factor on the rule's step sizes.
        norm: ||D_k||.
        change: ||D_k - D_{k-1}||, for delta; None before the first step.
        far: ||x_k - x_0||, for dog.
    """
    if isinstance(pace, Dog):
        assert far is not None
        squares = pace.squares + norm.square()
        opening = torch.where(pace.squares > 0, 0.0, pace.first * norm)
        reach = torch.maximum(torch.maximum(pace.reach, far), opening)
        tiny = torch.finfo(norm.dtype).tiny
        pace = pace._replace(size=reach / squares.clamp(min=tiny).sqrt(), reach=reach, squares=squares)
    elif isinstance(pace, Normed):
        whole = norm.clamp(min=torch.finfo(torch.float32).tiny)
        opening = torch.where(pace.opening > 0, pace.opening, rule.first / whole)
        size = torch.minimum(opening, rule.bound * rule.first / whole)
        pace = pace._replace(size=size, opening=opening, squares=pace.squares + norm.square())
    else:
        if change is not None:
            pace = _followed(rule, pace, change)
        pace = pace._replace(moved=lr * pace.size * norm)
    pull = 0.0 if local.anchor is None else lr * local.prox
    return pace._replace(response=pace.response + pace.size * (local.scale - pull * pace.response))


def _followed(rule: Rule, pace: Delta, change: Tensor) -> Delta:
    """The next step size of Delta-SGD."""
    known = (change > 0) & (pace.moved > 0)
    steep = torch.where(known, torch.nan_to_num(change / pace.moved, nan=torch.inf, posinf=torch.inf), 0.0)
    grown = torch.sqrt(1.0 + rule.growth * pace.ratio) * pace.size
    size = torch.minimum(torch.minimum(0.5 * rule.gamma / steep, grown), pace.limit)
    ratio = size / pace.size.clamp(min=torch.finfo(size.dtype).tiny)  # a step of 0, after an overflow, stays one
    return pace._replace(size=size, ratio=ratio, curvature=torch.maximum(pace.curvature, steep))


def measured(
    rule: Rule, pace: Pace, local: Local, lr: float, direction: Tensor, before: Tensor | None, x: Tensor
) -> Pace:
    """`sized`, with the norms taken of vectors [d] or [S, d]: D_k, D_{k-1} (None before the first step) and x_k."""
    change = far = None
    if rule.kind == "dog":
        far = length(x - local.x)
    elif rule.kind == "delta" and before is not None:
        change = length(direction - before)
    return sized(rule, pace, local, lr, length(direction), change, far)


def put(pace: Pace, here: slice | Tensor, rows: Pace) -> Pace:
    """The pace of all clients, with that of some of them anew."""

    def one(leaf: Tensor, fresh: Tensor) -> Tensor:
        if len(fresh) == len(leaf):
            return fresh
        leaf = leaf.clone()
        leaf[here] = fresh
        return leaf

    found: Pace = tree_map(one, pace, rows)
    return found


def told(pace: Pace | None, steps: Tensor) -> dict[str, Tensor]:
    """What `Done` has of it, after so many steps [1] or [S, 1]."""
    if pace is None:
        return {}
    if isinstance(pace, Delta):
        return {"pace": pace.size, "curvature": pace.curvature}
    return {"pace": pace.size, "power": pace.squares / steps.clamp(min=1)}


def length(vectors: Tensor) -> Tensor:
    """l2 norms [..., 1] of vectors [..., d]."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return norm
