"""What the server knows of a round besides its plan, and what a round comes to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import rng
from fedconcord.core.contract import Algorithm, Cohort, Sender
from fedconcord.core.objective import Problem, Regulariser
from fedconcord.core.plan import Plan
from fedconcord.core.trees import Tree, tree_leaves, tree_map, tree_sum


class Outcome(NamedTuple):
    """A finished round and what it cost."""

    server: Tree
    bytes_down: int  # all messages to the cohort
    bytes_up: int  # all messages of the cohort
    gradient_steps: int  # mini-batch gradients evaluated by the cohort; a full gradient counts its mini-batches
    refused: tuple[int, ...] = ()  # ids of those whose reply was not finite and left out, which the costs count


class Space(NamedTuple):
    """What a server knows of the objectives."""

    n: int  # clients N
    dim: int  # d
    dtype: torch.dtype
    device: torch.device
    regulariser: Regulariser | None


def space_of(problem: Problem) -> Space:
    """What the server of a problem knows."""
    objective = problem.objective
    return Space(problem.roster.n, objective.dim, objective.dtype, objective.device, objective.regulariser)


def cohort_of(space: Space, plan: Plan) -> Cohort:
    """The scalars of a round that the server knows beforehand."""
    p, steps = plan.p[plan.heard], behind(plan)[plan.heard]
    mass = float(p.sum())

    def normal(n: int) -> Tensor:
        draws = rng.generator(plan.seed, rng.Purpose.PRIVACY, plan.round).standard_normal(n)
        return torch.as_tensor(draws).to(dtype=space.dtype, device=space.device)

    return Cohort(
        round=plan.round,
        n=space.n,
        size=len(p),
        mass=mass,
        mean_steps=float(p @ steps) / mass if mass else 0.0,
        dim=space.dim,
        coin=plan.coin,
        regulariser=space.regulariser,
        lr=plan.lr,
        normal=normal,
    )


def senders_of(space: Space, plan: Plan, select: np.ndarray) -> Sender:
    """What the server knows of the clients at these positions of the plan, scalars stacked as [S, 1]."""
    column = partial(column_of, space.dtype, space.device, select)
    return Sender(
        id=column(plan.ids, torch.int64),
        w=column(plan.w),
        p=column(plan.p),
        steps=column(behind(plan)),
        inclusion=column(plan.inclusion),
        lr=plan.lr,
        late=None if plan.late is None else column(plan.late),
    )


def sender_of(space: Space, plan: Plan, position: int) -> Sender:
    """What the server knows of one client, scalars as []."""
    senders = senders_of(space, plan, np.array([position]))
    return Sender._make(column[0, 0] if isinstance(column, Tensor) else column for column in senders)


def column_of(
    usual: torch.dtype, device: torch.device, select: np.ndarray, values: np.ndarray, dtype: torch.dtype | None = None
) -> Tensor:
    """Values [S] of a plan at these positions, as a column [S', 1] of the usual number type unless another is given."""
    return torch.as_tensor(values[select]).to(dtype=dtype or usual, device=device)[:, None]


def behind(plan: Plan) -> np.ndarray:
    """Local steps [S] behind each client's reply."""
    return plan.steps if plan.waited is None else plan.steps + plan.waited


def finite(sent: Tree, clients: int) -> Tensor:
    """[S] bool: whether the sum of every tensor that a client sent is finite; leaves are [S, ...].

    One pass without a copy. Numbers so large that their sum overflows are not finite either.
    """
    leaves = [leaf for leaf in tree_leaves(sent).values() if isinstance(leaf, Tensor)]  # `check_algorithm` finds others
    sums = [leaf.reshape(clients, -1).sum(1) for leaf in leaves if leaf.is_floating_point()]
    return torch.stack(sums).isfinite().all(0) if sums else torch.ones(clients, dtype=torch.bool)


def total_of(
    algorithm: Algorithm, server: Tree, shares: Sequence[Tree], select: np.ndarray, space: Space, plan: Plan
) -> Tree:
    """The total of contributions, one of each client at these positions of a plan; late ones, zeros, are not combined.

    What is combined lies in memory at once: as many contributions as replies come.
    """
    heard = plan.heard[select]
    if algorithm.phases.combine is None or not heard.any():
        return tree_sum(shares)
    rows = tree_map(_rows, *(share for share, comes in zip(shares, heard, strict=True) if comes))
    total = algorithm.phases.combine(server, rows, senders_of(space, plan, select[heard]), cohort_of(space, plan))
    return tree_map(lambda leaf, like: leaf.reshape(like.shape), total, shares[0])


def _rows(*leaves: Tensor) -> Tensor:
    rows = torch.stack(leaves)
    return rows if rows.ndim > 1 else rows[:, None]
