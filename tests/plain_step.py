"""The local step written out once more, one client and one step at a time: what `fedconcord.method.step` is judged by.

It shares no code with the package but L-BFGS, which is torch's, and the types that it is asked in. A step is

    x <- x - eta * (filter(scale * g + weight_decay * x + linear + dual) + prox * (x - anchor))

as `fedconcord.Solver` has it; with a table, g is g - table[j] + mean for the step's block j, then
mean += rate * (g - table[j]) and table[j] = g; a dual gains dual_rate * (x - anchor) after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import (
    Ascent,
    Constant,
    Done,
    Dual,
    Local,
    Momentum,
    Newton,
    Objective,
    Pull,
    Rule,
    Scale,
    Snapshot,
    Table,
)
from fedconcord.method.step import step
from fedconcord.method.step.assignment import Assignment, local_regulariser
from fedconcord.method.step.sizes import ByStep
from fedconcord.method.step.solver import Solver

BY_LBFGS = step.solve


class Fields(NamedTuple):
    """A method's local problem as one set of fields, of one client."""

    x: Tensor  # [d] starting point
    linear: Tensor | None = None  # [d] constant part of the direction
    prox: float | Tensor = 0.0  # [] weight rho of the pull to the anchor
    anchor: Tensor | None = None  # [d]
    scale: float | Tensor = 1.0  # [] kappa, weight of the stochastic gradient
    lr_scale: float = 1.0  # factor on eta
    snapshot: Tensor | None = None  # [d] z: g becomes g(x) - g(z) + reference, on the same samples
    reference: Tensor | None = None  # [d]
    table: Tensor | None = None  # [M, d] last gradient of each block
    mean: Tensor | None = None  # [d] of the table
    table_rate: float | Tensor = 0.0  # []
    dual: Tensor | None = None  # [d]
    dual_rate: float = 0.0
    dual_anchor: Tensor | None = None  # [d]
    momentum: float | None = None  # in place of the solver's
    buffer: Tensor | None = None  # [d] the momentum buffer at the start
    tilt: Tensor | None = None  # [d] SAM's ascent goes along g - tilt - common
    common: Tensor | None = None  # [d]
    metric: Tensor | None = None  # [d, d] the direction is solved against it
    first: float | Tensor | None = None  # [] the first step size under a rule


NAMES = {  # of a piece's fields
    Ascent: {"dual": "tilt", "common": "common"},
    Snapshot: {"z": "snapshot", "c": "reference"},
    Table: {"table": "table", "mean": "mean", "rate": "table_rate"},
    Scale: {"kappa": "scale"},
    Dual: {"dual": "dual", "rate": "dual_rate", "anchor": "dual_anchor"},
    Momentum: {"beta": "momentum", "buffer": "buffer"},
    Pull: {"rho": "prox", "anchor": "anchor"},
    Newton: {"metric": "metric"},
}


def fields_of(local: Local) -> Fields:
    """The fields of a local problem."""
    fields = Fields(local.x, lr_scale=local.lr_scale, first=local.first)
    for piece in local.pieces:
        if isinstance(piece, Constant):
            fields = fields._replace(linear=piece.c if fields.linear is None else fields.linear + piece.c)
        else:
            fields = fields._replace(**{name: getattr(piece, of) for of, name in NAMES[type(piece)].items()})
    return fields


def solve(
    objective: Objective,
    assignment: Assignment,
    local: Local,
    steps: list[Tensor],
    blocks: np.ndarray | None,
    whole: Tensor,
    lr: float,
    full_cost: int = 1,
    joint: object = None,
) -> tuple[Done, int]:
    """The local loop of one client, and the mini-batch gradients it evaluated.

    Args:
        steps: the samples of each step.
        blocks: the block of each step, for tables.
        joint: without private parts, which are none of this.
        whole: all samples of the client.
        full_cost: mini-batches in a full gradient.
    """
    algorithm, solver, oracle = assignment.algorithm, assignment.solver, assignment.oracle
    regulariser = local_regulariser(objective, algorithm)
    given, local = local, fields_of(local)
    x, linear, buffer, dual, mean = local.x, local.linear, local.buffer, local.dual, local.mean
    table = None if local.table is None else local.table.clone()
    tilt = local.tilt
    momentum = momentum_of(solver, local)
    rule, base = assignment.rule, lr * local.lr_scale
    paced = None if rule is None else begin(rule, local, x, solver.weight_decay)
    before: Tensor | None = None  # the last step's direction
    taken = evaluations = 0
    factors: Callable[[int], float] = solver.step_schedule or (lambda k: 1.0)
    if solver.kind == "lbfgs":
        return BY_LBFGS(objective, assignment, given, steps, blocks, whole, lr, full_cost)
    each = full_cost if oracle.kind == "full" else 1
    released = solver.clip_direction is not None and solver.clip_form == "released"

    def oracle_gradient(samples: Tensor) -> Tensor:
        nonlocal evaluations, tilt
        evaluations += each
        g = objective.gradient(x, samples)
        if oracle.kind == "sam":
            evaluations += each
            if local.common is not None and tilt is not None:
                g = g - tilt - local.common
            above = ascent(x, g, oracle.radius)
            if local.common is not None and tilt is not None:
                tilt = tilt + (above - x) - local.common
            g = objective.gradient(above, samples)
        if local.snapshot is not None:
            evaluations += each
            g = g - objective.gradient(local.snapshot, samples) + (0.0 if local.reference is None else local.reference)
        return clipped(g, solver.clip)

    def pull() -> Tensor | float:
        return 0.0 if local.anchor is None else local.prox * (x - local.anchor)

    for k, samples in enumerate(steps):
        g = oracle_gradient(samples)
        if table is not None:
            assert blocks is not None
            news, table[blocks[k]] = g - table[blocks[k]], g
            g = news + mean
        direction = local.scale * g if released else local.scale * g + solver.weight_decay * x
        direction = direction + (0.0 if linear is None else linear) + (0.0 if dual is None else dual)
        if released:
            constant = direction if local.anchor is None else direction - local.prox * local.anchor
            direction = clipped(constant, solver.clip_direction) + solver.weight_decay * x
        buffer = direction if buffer is None else momentum * buffer + direction
        step = direction + momentum * buffer if solver.nesterov else buffer
        if released:
            step = step if local.anchor is None else step + local.prox * x
        else:
            step = clipped(step + pull(), solver.clip_direction)
        if local.metric is not None:
            step = torch.linalg.solve(local.metric, step)
        if rule is None or paced is None:
            eta: float | Tensor = base * factors(k)
        else:
            paced = measured(rule, paced, local, base, step, before, x)
            eta, before = base * paced.size, step
        x = x - eta * step
        if regulariser is not None:
            assert isinstance(eta, float)  # `solver.refuse`
            x = regulariser.prox(x, eta)
        if table is not None:
            mean = mean + local.table_rate * news
        if dual is not None:
            dual = dual + local.dual_rate * (x - local.dual_anchor)
        taken += 1
        if solver.tolerance is not None:
            evaluations += full_cost
            residual = local.scale * objective.gradient(x, whole) + solver.weight_decay * x + pull()
            residual = residual + (0.0 if linear is None else linear) + (0.0 if dual is None else dual)
            if float(residual.square().sum()) <= solver.tolerance:
                break
    count = torch.tensor(float(taken), dtype=objective.dtype, device=objective.device)
    norm = count * torch.nan
    if algorithm.needs.normaliser and paced is not None:
        norm = paced.response[0]
    elif algorithm.needs.normaliser:
        norm = normaliser(count, taken, local.prox, base, momentum, factors, local.scale, solver.nesterov)
    ended = {"table": table, "mean": mean, "dual": dual, "buffer": buffer, "tilt": tilt}
    seen = {name: value[0] for name, value in told(paced, count[None]).items()}
    return Done(x, count, norm, tuple(_ended(piece, ended) for piece in given.pieces), **seen), evaluations


def _ended(piece: Any, ended: dict[str, Tensor | None]) -> Any:
    """A method's piece with what the steps moved."""
    names = NAMES.get(type(piece), {})
    return piece._replace(**{of: ended[name] for of, name in names.items() if name in ended})


def normaliser(
    steps: Tensor,
    longest: int,
    prox: float | Tensor,
    lr: float,
    momentum: float,
    factors: Callable[[int], float] = lambda k: 1.0,
    scale: float | Tensor = 1.0,
    nesterov: bool = False,
) -> Tensor:
    """||a_i||_1 of FedNova (IEEE TSP 2021, section IV): the local step run on the scalar gradient 1.

    It is (x_start - x_end) / eta when every gradient is 1 and the anchor is the start; weight decay counts as gradient.

    Args:
        steps: local steps of each client, any shape.
        longest: a bound on them, known to the host so that nothing waits for the device.
        prox: the proximal weight, a number or one a client.
        lr: local step size eta.
        momentum, nesterov: of the local solver.
        factors: of eta in each step.
        scale: weight of the gradient in the direction.

    Returns: the shape of `steps`; equal to `steps` for plain SGD.
    """
    moved, buffer = torch.zeros_like(steps), 0.0 * scale
    for k in range(longest):
        buffer = momentum * buffer + scale
        direction = scale + momentum * buffer if nesterov else buffer
        moved = torch.where(steps > k, moved + factors(k) * (direction - lr * prox * moved), moved)
    return moved


def falling(factor: float) -> ByStep:
    """Step sizes that fall by a factor in every step."""
    return ByStep(f"{factor} a step", lambda k: factor**k)


def momentum_of(solver: Solver, local: Fields) -> float:
    """The momentum in force: the method's own if it names one."""
    return solver.momentum if local.momentum is None else local.momentum


def clipped(g: Tensor, limit: float | None) -> Tensor:
    """g [..., d] with each row's l2 norm at most `limit`."""
    if limit is None:
        return g
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    scaled: Tensor = g * (limit / norm.clamp(min=limit))
    return scaled


def ascent(x: Tensor, g: Tensor, radius: float, out: Tensor | None = None) -> Tensor:
    """The SAM point x + radius * g / (||g|| + 1e-7), per row (Foret et al. 2021; FedSAM); `out` may be g."""
    share = radius / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-7)
    return torch.addcmul(x, g, share, out=out)


# -- rules of step sizes ------------------------------------------------------------------------------------------


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


def begin(rule: Rule, local: Fields, x: Tensor, weight_decay: float) -> Pace:
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
    rule: Rule, pace: Pace, local: Fields, lr: float, norm: Tensor, change: Tensor | None, far: Tensor | None
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
    rule: Rule, pace: Pace, local: Fields, lr: float, direction: Tensor, before: Tensor | None, x: Tensor
) -> Pace:
    """`sized`, with the norms taken of vectors [d] or [S, d]: D_k, D_{k-1} (None before the first step) and x_k."""
    change = far = None
    if rule.kind == "dog":
        far = length(x - local.x)
    elif rule.kind == "delta" and before is not None:
        change = length(direction - before)
    return sized(rule, pace, local, lr, length(direction), change, far)


def told(pace: Pace | None, steps: Tensor) -> dict[str, Tensor]:
    """What `Done` has of it, after so many steps [1] or [S, 1]."""
    if pace is None:
        return {}
    if isinstance(pace, Delta):
        return {"step_size": pace.size, "curvature": pace.curvature}
    return {"step_size": pace.size, "power": pace.squares / steps.clamp(min=1)}


def length(vectors: Tensor) -> Tensor:
    """l2 norms [..., 1] of vectors [..., d]."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return norm
