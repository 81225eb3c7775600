"""What every engine is: one round from a plan, with the same meaning as the serial engine's."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Client, Cohort, Oracle, Plan, Problem, Tree, n_clients
from fedconcord.solvers import SGD
from fedconcord.state import MemoryStore


class Outcome(NamedTuple):
    """A finished round and what it cost."""

    server: Tree
    bytes_down: int  # all messages to the cohort
    bytes_up: int  # all messages of the cohort
    gradient_steps: int  # local steps, summed over the cohort; a full gradient at x counts one


class Engine(Protocol):
    """Runs rounds. Engines differ in speed, not in results (1e-12 relative in float64)."""

    def resolve(self, problem: Problem, plan: Plan) -> Engine:
        """This engine with every choice made that it would otherwise make by measurement."""
        ...

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: SGD, server: Tree, store: MemoryStore, plan: Plan
    ) -> Outcome:
        """One round: returns the new server state and writes the cohort's rows to the store."""
        ...


def cohort_of(problem: Problem, plan: Plan) -> Cohort:
    """The scalars of a round that the server knows beforehand."""
    mass = float(plan.p.sum())
    return Cohort(
        round=plan.round,
        n=n_clients(problem),
        size=len(plan.ids),
        mass=mass,
        mean_steps=float(plan.p @ plan.steps) / mass,
        lr=plan.lr,
    )


def clients_of(problem: Problem, plan: Plan, select: np.ndarray, gradient: Tensor | None) -> Client:
    """The clients at these positions of the plan, scalars stacked as [S, 1]."""

    def column(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values[select]).to(dtype=dtype, device=problem.device)[:, None]

    return Client(
        id=column(plan.ids, torch.int64),
        w=column(plan.w, problem.dtype),
        p=column(plan.p, problem.dtype),
        steps=column(plan.steps, problem.dtype),
        lr=plan.lr,
        gradient=gradient,
    )


def oracle_of(algorithm: Algorithm, solver: SGD) -> Oracle:
    """The gradient oracle in force: the method's own if it names one."""
    return algorithm.oracle or solver.oracle
