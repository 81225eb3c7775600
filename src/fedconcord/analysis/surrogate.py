"""Which objective a method's average goes down: the weights that it gives the clients in place of their own.

Wang et al. (FedNova), IEEE TSP 2021, Theorem 1: any method of the form x+ = x - tau_eff eta sum_i w_i d_i converges to
a stationary point of sum_i w_i f_i, and misses sum_i p_i f_i by chi^2(p || w) (Theorem 2). The weights are found here
by the method itself: client i's gradient is the i-th unit vector wherever it is asked, so that the server's step shows
how much each client counted. With constant gradients every linear method comes to a step that repeats itself; control
variates and dual variables then hold the gradients exactly, and w is p where they correct what they should.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Objective, Plan, roster_of
from fedconcord.engines import Stacked
from fedconcord.federation.schedule import Schedule
from fedconcord.jobs import Job, blank
from fedconcord.state import Storage

MOST_ROUNDS = 400  # until the step must repeat itself
SAME = 1e-7  # relative change of the step from round to round that counts as none
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
        eye, held = scale * torch.eye(dim, dtype=torch.float64), torch.as_tensor(owner)

        def gradients(x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
            units = eye[held[samples]]
            return units.mean(1) if weight is None else torch.einsum("sb,sbd->sd", weight, units)

        self.objective = Objective(
            dim=dim,
            offsets=offsets,
            dtype=eye.dtype,
            device=eye.device,
            gradient=lambda x, samples: eye[held[samples]].mean(0),
            gradients=gradients,
            loss=lambda x, samples: (eye[held[samples]] @ x).mean(),
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
    if job.algorithm.hessian_at is not None:
        return "Newton steps are not linear in the gradients"
    one = _response(job, plan, 1.0)
    if isinstance(one, str):
        return one
    two = _response(job, plan, 2.0)
    if isinstance(two, str) or not np.allclose(two, 2 * one, rtol=1e-3, atol=1e-3 * np.abs(one).max()):
        return "the server's step is not linear in the gradients"
    return Surrogate(one / one.sum(), float(one.sum()))


def schedule_of(job: Job) -> Schedule:
    """The schedule of a job, which must be the one that settings make.

    Raises:
        UserError: it is another planner.
    """
    if not isinstance(job.schedule, Schedule):
        raise UserError(f"only rounds of a federation.Schedule can be looked at, given {type(job.schedule).__name__}")
    return job.schedule


def _response(job: Job, plan: Plan, scale: float) -> np.ndarray | str:
    """The server's step [n] along each client's own gradient in units of -eta, once it repeats itself."""
    n, held = job.problem.roster.n, job.algorithm.blocks or 1  # samples of a client: any number would do
    position = np.zeros(n, np.int64)
    position[plan.ids] = np.arange(len(plan.ids))
    problem = Units(np.arange(n + 1) * held, np.repeat(position, held), len(plan.ids), scale)
    problem.roster = problem.roster._replace(sizes=job.problem.roster.sizes)
    tried = replace(
        job,
        problem=problem,
        algorithm=replace(job.algorithm, prologue=None),  # of all N clients; it would change the first rounds alone
        schedule=replace(schedule_of(job), batch_size=None),
        solver=job.solver._replace(clip=None, clip_direction=None, weight_decay=0.0, tolerance=None),
        engine=Stacked(None, 1, kernel="torch"),
        storage=Storage(),
    )
    state = blank(tried)
    server, step, before = state.server, np.zeros(len(plan.ids)), np.zeros(len(plan.ids))
    least = 10 * held if job.algorithm.blocks else 1  # rounds in which every block was drawn
    for t in range(MOST_ROUNDS):
        done = tried.engine.round(problem, tried.duty, server, state.store, plan._replace(round=t))
        step = ((server.x - done.server.x) / plan.lr).numpy()
        server = done.server
        if not np.isfinite(step).all():
            return "its steps grow without end under constant gradients"
        if t >= least and np.linalg.norm(step - before) <= SAME * np.linalg.norm(step):
            break
        change, before = np.linalg.norm(step - before), step
    else:
        if change > NEAR * np.linalg.norm(step):
            return f"its step does not come to rest under constant gradients in {MOST_ROUNDS} rounds"
    if not step.sum() > 0:
        return "its step vanishes under constant gradients"
    return step
