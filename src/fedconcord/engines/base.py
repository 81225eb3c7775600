"""What every engine is: one round from a plan, with the same meaning as the serial engine's."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import (
    Algorithm,
    Cohort,
    Objective,
    Plan,
    Population,
    Problem,
    Sender,
    Tree,
    TwoBlockRow,
    tree_bytes,
    tree_map,
)
from fedconcord.engines.team import ALONE, Team
from fedconcord.local.duty import Duty, behind, block_gradients, column_of
from fedconcord.state import First, Storage, Store


class Outcome(NamedTuple):
    """A finished round and what it cost."""

    server: Tree
    bytes_down: int  # all messages to the cohort
    bytes_up: int  # all messages of the cohort
    gradient_steps: int  # mini-batch gradients evaluated by the cohort; a full gradient counts its mini-batches


class Engine(Protocol):
    """Runs rounds. Engines differ in speed, not in results (1e-12 relative in float64)."""

    @property
    def team(self) -> Team:
        """The processes that share every round."""
        ...

    def resolve(self, problem: Problem, duty: Duty, plan: Plan) -> Engine:
        """This engine with every choice made that it would otherwise make in each round."""
        ...

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """An empty store of clients' rows."""
        ...

    def prologue(self, problem: Problem, duty: Duty, server: Tree, store: Store, population: Population) -> Outcome:
        """All clients once before round 0, for methods that ask for it."""
        ...

    def losses(self, problem: Problem, x: Tensor, store: Store, ids: np.ndarray) -> np.ndarray:
        """The loss [S] of each of these clients over all its samples at x [d]."""
        ...

    def round(self, problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan) -> Outcome:
        """One round: returns the new server state and writes the cohort's rows to the store."""
        ...


def cohort_of(problem: Problem, plan: Plan) -> Cohort:
    """The scalars of a round that the server knows beforehand."""
    p, steps = plan.p[plan.heard], behind(plan)[plan.heard]
    mass = float(p.sum())
    return Cohort(
        round=plan.round,
        n=problem.roster.n,
        size=len(p),
        mass=mass,
        mean_steps=float(p @ steps) / mass if mass else 0.0,
        dim=problem.objective.dim,
        coin=plan.coin,
        regulariser=problem.objective.regulariser,
        lr=plan.lr,
    )


def senders_of(objective: Objective, plan: Plan, select: np.ndarray) -> Sender:
    """What the server knows of the clients at these positions of the plan, scalars stacked as [S, 1]."""
    column = partial(column_of, objective, select)
    return Sender(
        id=column(plan.ids, torch.int64),
        w=column(plan.w),
        p=column(plan.p),
        steps=column(behind(plan)),
        inclusion=column(plan.inclusion),
        lr=plan.lr,
        late=None if plan.late is None else column(plan.late),
    )


# -- what simulations do alike: all clients are at hand --------------------------------------------------------


def joining(algorithm: Algorithm, store: Store, plan: Plan, ids: np.ndarray, talks: bool) -> int:
    """How many of these clients take part for the first time and must be sent x^0, which round 0 broadcasts anyway."""
    sent = not algorithm.needs_x0 or (plan.round == 0 and talks)
    return 0 if sent else int((~store.known(ids)).sum())


def losses(problem: Problem, x: Tensor, ids: np.ndarray) -> np.ndarray:
    """The loss [S] of each of these clients over all its samples at x [d]."""
    objective = problem.objective
    with torch.no_grad():
        return np.array([float(objective.loss(x, objective.samples(int(i)))) for i in ids])


def prologue(problem: Problem, duty: Duty, server: Tree, population: Population, team: Team = ALONE) -> Outcome:
    """Every client's block gradients at x^0, and what the server makes of them: the one pass over all clients.

    Rows are not written: what a client holds after it is made when it first takes part (`first_rows`).
    """
    ask = duty.algorithm.prologue
    assert ask is not None
    total, sent, evaluations = None, 0, 0
    for i in np.flatnonzero(team.owns(np.arange(population.n))):
        gradients = block_gradients(problem.objective, duty, int(i), int(i), server.x)
        share = ask.send(gradients, population.p[i].to(gradients))
        total = share if total is None else tree_map(torch.add, total, share)
        sent, evaluations = sent + tree_bytes(share), evaluations + len(gradients)
    total, (sent, evaluations) = team.total(total, (sent, evaluations))
    return Outcome(ask.update(server, total), population.n * tree_bytes(server.x), sent, evaluations)


def first_rows(problem: Problem, duty: Duty, server: Tree, template: Tree) -> First | None:
    """What a client holds after the prologue, computed when it first takes part: one that never does costs nothing.

    It depends on the server's model before round 0 and on the client alone, so it has the same bits whenever it is
    asked for.
    """
    prologue = duty.algorithm.prologue
    if prologue is None:
        return None
    x = server.x
    empty = template.row if isinstance(template, TwoBlockRow) else template

    def rows(ids: np.ndarray) -> Tree:
        found = [prologue.row(empty, block_gradients(problem.objective, duty, int(i), int(i), x)) for i in ids]
        stacked = tree_map(lambda *leaves: torch.stack(leaves), *found)
        if not isinstance(template, TwoBlockRow):
            return stacked
        return TwoBlockRow(stacked, template.private.expand(len(ids), *template.private.shape).clone())

    return rows
