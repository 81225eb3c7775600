"""Which objective a method's average goes down: the weights that it gives the clients in place of their own.

Wang et al. (FedNova), IEEE TSP 2021, Theorem 1: any method of the form x+ = x - tau_eff eta sum_i w_i d_i converges to
a stationary point of sum_i w_i f_i, and misses sum_i p_i f_i by chi^2(p || w) (Theorem 2). The weights are found here
by the method itself: client i's gradient is the i-th unit vector wherever it is asked, so that the server's step shows
how much each client counted. With constant gradients every linear method comes to a step that repeats itself; control
variates and dual variables then hold the gradients exactly, and w is p where they correct what they should.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import Stacked, run_round
from fedconcord.execution.job import Job, population_of
from fedconcord.execution.job.job import template
from fedconcord.execution.rows import Storage
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Objective, Plan, roster_of
from fedconcord.support.errors import UserError

MOST_ROUNDS = 300  # until the step must repeat itself
FIRST = 3  # rounds in which gradients of twice the length must make steps of twice the length
SAME = 1e-6  # relative change of the step from round to round that counts as none
NEAR = 1e-3  # and what is still taken after so many rounds


class Surrogate(NamedTuple):
    """The objective sum_i w_i f_i of n clients."""

    w: np.ndarray  # [n] weights, sum 1
    effective: float  # tau_eff: the server's step in units of eta, where all clients' gradients are one vector


class Units:
    """Clients with constant gradients: that of sample s is `scale` times the unit vector owner[s].

    A problem of dimension `dim` whose clients hold the samples between offsets [N + 1].
    """

    def __init__(self, offsets: np.ndarray, owner: np.ndarray, dim: int, scale: float = 1.0) -> None:
        eye, owner_of = scale * torch.eye(dim, dtype=torch.float64), torch.as_tensor(owner)

        def gradients(x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
            units = eye[owner_of[samples]]
            return units.mean(1) if weight is None else torch.einsum("sb,sbd->sd", weight, units)

        self.objective = Objective(
            dim=dim,
            offsets=offsets,
            dtype=eye.dtype,
            device=eye.device,
            gradient=lambda x, samples: eye[owner_of[samples]].mean(0),
            gradients=gradients,
            loss=lambda x, samples: (eye[owner_of[samples]] @ x).mean(),
            alone=lambda place: self.objective,
        )
        self.roster, self.evaluator = roster_of(offsets), self

    def init(self, seed: int) -> Tensor:
        return torch.zeros(self.objective.dim, dtype=self.objective.dtype)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        return {}

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


def chi_square(p: np.ndarray, w: np.ndarray) -> float:
    """chi^2(p || w) = sum_i (p_i - w_i)^2 / w_i of weights [n] (FedNova, Theorem 2); infinite where a w_i is 0."""
    with np.errstate(divide="ignore"):
        terms = np.where(p == w, 0.0, (p - w) ** 2 / w)
    return float(terms.sum())


def surrogate(job: Job, plan: Plan) -> Surrogate | str:
    """The objective that the job's method goes down when every round is this plan, or why it has none.

    Without clipping, weight decay and tolerances, which depend on the gradients. The cost does not depend on the model.
    """
    if job.solver.kind == "lbfgs":
        return "L-BFGS's steps are not linear in the gradients"
    if job.assignment.rule is not None:
        return "step sizes that a rule finds are not linear in the gradients"
    if job.algorithm.step.hessian_at is not None:
        return "Newton steps are not linear in the gradients"
    if job.algorithm.facts.factors is not None:
        return f"what {job.algorithm.facts.factors} makes of low-rank factors is not linear in the gradients"
    one, two = (np.array([*itertools.islice(_steps(job, plan, scale), FIRST)]) for scale in (1.0, 2.0))
    if not np.allclose(two, 2 * one, rtol=1e-6, atol=1e-6 * np.abs(one).max()):
        return "the server's step is not linear in the gradients"
    step = _at_rest(job, plan)
    return step if isinstance(step, str) else Surrogate(step / step.sum(), float(step.sum()))


def schedule_of(job: Job) -> Schedule:
    """The schedule of a job, which must be the one that settings make.

    Raises:
        UserError: it is another planner.
    """
    if not isinstance(job.schedule, Schedule):
        raise UserError(f"only rounds of a federation.Schedule can be looked at, given {type(job.schedule).__name__}")
    return job.schedule


def _at_rest(job: Job, plan: Plan) -> np.ndarray | str:
    """The server's step [n] once it repeats itself, or why it never does."""
    least = 10 * (job.algorithm.step.blocks or 0)  # rounds in which every block of a table was drawn
    step, change = np.zeros(len(plan.ids)), math.inf
    for t, now in enumerate(itertools.islice(_steps(job, plan, 1.0), MOST_ROUNDS)):
        if not np.isfinite(now).all():
            return "its steps grow without end under constant gradients"
        change, step = float(np.linalg.norm(now - step)), now
        if t >= least and change <= SAME * np.linalg.norm(step):
            break
    if change > NEAR * np.linalg.norm(step):
        return f"its step does not come to rest under constant gradients in {MOST_ROUNDS} rounds"
    return step if step.sum() > 0 else "its step vanishes under constant gradients"


def _steps(job: Job, plan: Plan, scale: float) -> Iterator[np.ndarray]:
    """The server's step [n] of every round along each client's own gradient, of this length, in units of -eta."""
    n, samples = job.problem.roster.n, job.algorithm.step.blocks or 1  # samples of a client: any number would do
    position = np.zeros(n, np.int64)
    position[plan.ids] = np.arange(len(plan.ids))
    problem = Units(np.arange(n + 1) * samples, np.repeat(position, samples), len(plan.ids), scale)
    problem.roster = problem.roster._replace(sizes=job.problem.roster.sizes)
    plain = replace(
        job,
        problem=problem,
        # the prologue is of all N clients, and would change the first rounds alone
        algorithm=replace(job.algorithm, phases=job.algorithm.phases._replace(prologue=None)),
        schedule=replace(schedule_of(job), batch_size=None),
        solver=job.solver._replace(clip=None, clip_direction=None, weight_decay=0.0, tolerance=None),
        engine=Stacked(None, 1, kernel="torch"),
        storage=Storage(),
    )
    server = plain.algorithm.init(problem.init(0), population_of(plain))
    store = plain.engine.open(problem, plain.assignment, plain.storage, template(plain), None)
    for t in itertools.count():
        outcome = run_round(plain.engine, problem, plain.assignment, server, store, plan._replace(round=t))
        yield ((server.x - outcome.server.x) / plan.lr).numpy()
        server = outcome.server
