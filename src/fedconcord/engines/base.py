"""What every engine is: one round from a plan, with the same meaning as the serial engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord import rng
from fedconcord.core import (
    Algorithm,
    Client,
    Cohort,
    Local,
    Oracle,
    Plan,
    Problem,
    Regulariser,
    Tree,
    TwoBlock,
    TwoBlockRow,
    n_clients,
)
from fedconcord.errors import UserError
from fedconcord.solvers import Solver
from fedconcord.state import Store


class Outcome(NamedTuple):
    """A finished round and what it cost."""

    server: Tree
    bytes_down: int  # all messages to the cohort
    bytes_up: int  # all messages of the cohort
    gradient_steps: int  # mini-batch gradients evaluated by the cohort; a full gradient counts its mini-batches


class Team(Protocol):
    """The processes that compute a job together. Each owns some clients: it trains them and keeps their rows.

    All of them draw the same plans and hold the same server state; what they exchange is below.
    """

    @property
    def rank(self) -> int:
        """Which of the processes this is, from 0; only 0 evaluates, writes and speaks."""
        ...

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    def owns(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] are this process's, [S] bool; the same in every round."""
        ...

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        """The sums of trees of one form and of counts >= 0 over the processes, to the same bits on all of them."""
        ...

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is set on any process: what all of them do next."""
        ...

    def tell(self, text: Callable[[], str]) -> str:
        """What rank 0 makes of this, on all of them; its UserError too."""
        ...

    def collect(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """On rank 0 what `Store.export` gives of all clients, from what it gives here; elsewhere nothing of use."""
        ...


class Alone(NamedTuple):
    """A team of this process alone."""

    rank: int = 0
    size: int = 1

    def owns(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), bool)

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        return tree, counts

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return flags

    def tell(self, text: Callable[[], str]) -> str:
        return text()

    def collect(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return rows


ALONE = Alone()


class Engine(Protocol):
    """Runs rounds. Engines differ in speed, not in results (1e-12 relative in float64)."""

    @property
    def team(self) -> Team:
        """The processes that share every round."""
        ...

    def resolve(self, problem: Problem, plan: Plan) -> Engine:
        """This engine with every choice made that it would otherwise make in each round."""
        ...

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: Solver, server: Tree, store: Store, plan: Plan
    ) -> Outcome:
        """One round: returns the new server state and writes the cohort's rows to the store."""
        ...


def cohort_of(problem: Problem, plan: Plan) -> Cohort:
    """The scalars of a round that the server knows beforehand."""
    heard = np.ones(len(plan.ids), bool) if plan.late is None else ~plan.late
    p, steps = plan.p[heard], _steps(plan)[heard]
    mass = float(p.sum())
    return Cohort(
        round=plan.round,
        n=n_clients(problem),
        size=len(p),
        mass=mass,
        mean_steps=float(p @ steps) / mass if mass else 0.0,
        dim=problem.dim,
        coin=plan.coin,
        regulariser=problem.regulariser,
        lr=plan.lr,
    )


def clients_of(problem: Problem, plan: Plan, select: np.ndarray) -> Client:
    """The clients at these positions of the plan, scalars stacked as [S, 1]."""

    def column(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values[select]).to(dtype=dtype, device=problem.device)[:, None]

    def noise(n: int) -> Tensor:
        draws = [rng.generator(plan.seed, rng.Purpose.NOISE, plan.round, int(i)).random(n) for i in plan.ids[select]]
        return torch.as_tensor(np.stack(draws)).to(dtype=problem.dtype, device=problem.device)

    return Client(
        id=column(plan.ids, torch.int64),
        w=column(plan.w, problem.dtype),
        p=column(plan.p, problem.dtype),
        steps=column(_steps(plan), problem.dtype),
        inclusion=column(plan.inclusion, problem.dtype),
        lr=plan.lr,
        noise=noise,
        late=None if plan.late is None else column(plan.late, problem.dtype),
    )


def _steps(plan: Plan) -> np.ndarray:
    """Local steps [S] behind each client's reply."""
    return plan.steps if plan.waited is None else plan.steps + plan.waited


def oracle_of(algorithm: Algorithm, solver: Solver) -> Oracle:
    """The gradient oracle in force: the method's own if it names one."""
    return algorithm.oracle or solver.oracle


def local_regulariser(problem: Problem, algorithm: Algorithm) -> Regulariser | None:
    """The regulariser whose proximal steps are the clients'."""
    return problem.regulariser if algorithm.regularise == "local" else None


def with_oracle(local: Local, oracle: Oracle, x: Tensor, gradient: Tensor | None) -> Local:
    """The local problem whose mini-batch gradients are SVRG-corrected around the server's model x, if asked."""
    if oracle.kind != "svrg":
        return local
    assert gradient is not None
    corrected = local.scale * gradient if local.linear is None else local.linear + local.scale * gradient
    return local._replace(snapshot=x, linear=corrected)


def wants_full_gradient(algorithm: Algorithm, oracle: Oracle) -> bool:
    """Whether every client of a round evaluates its full gradient at the server's model."""
    return algorithm.full_gradient or algorithm.prelude is not None or oracle.kind == "svrg"


def open_rows(problem: Problem, x: Tensor, held: Tree, ids: np.ndarray) -> tuple[Problem, Tree, Tensor | None]:
    """Stored rows [S, ...] as (the problem in x, the method's rows, the new private blocks if there are any)."""
    if not isinstance(problem, TwoBlock):
        return problem, held, None
    private = problem.private_step(x, held.private, ids)
    return problem.given(private, ids), held.row, private


def close_rows(rows: Tree, private: Tensor | None) -> Tree:
    """The inverse: what is stored."""
    return rows if private is None else TwoBlockRow(rows, private)


def settled(settle: Callable[[Tree, Tree, Tree], Tree], down: Tree, server: Tree, held: Tree) -> Tree:
    """Stored rows after the method's `settle`."""
    if isinstance(held, TwoBlockRow):
        return held._replace(row=settle(down, server, held.row))
    return settle(down, server, held)


def curvature(problem: Problem, x: Tensor, client: int) -> Tensor:
    """The Hessian [d, d] of a client at x.

    Raises:
        UserError: it has a negative eigenvalue, so a Newton step would climb.
    """
    square = problem.hessian(x, everything(problem, client))
    eigenvalues = torch.linalg.eigvalsh(square)
    if eigenvalues[0] < -1e-6 * eigenvalues[-1].abs():
        raise UserError(
            f"client {client}'s Hessian has the negative eigenvalue {float(eigenvalues[0]):.3g}: Newton steps need a "
            "convex problem; use a convex model such as logreg, or a method without Newton steps"
        )
    return square


def everything(problem: Problem, client: int) -> Tensor:
    """All samples [n_i] of a client."""
    return torch.arange(problem.offsets[client], problem.offsets[client + 1], device=problem.device)


def full_costs(plan: Plan) -> np.ndarray:
    """Mini-batches [S] in a full gradient of each client of the cohort."""
    return np.ones(len(plan.ids), np.int64) if plan.full_cost is None else plan.full_cost
