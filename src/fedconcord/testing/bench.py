"""What the checks run on: a method's small jobs, their rounds, and watches on its functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedconcord.execution.engines import Engine, Serial
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Quadratic, Supervised, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Work, uniform
from fedconcord.method.contract import Algorithm, Plan, Population, Problem, Tree, rng, weights
from fedconcord.testing.compare import fail

Factory = Callable[[], Algorithm]

SEED = 7
DIM = 4  # of the quadratics
UNEQUAL: Work = uniform(1, 4)  # steps


class Bench(NamedTuple):
    """The method under test and the size of its jobs."""

    factory: Factory
    cohort: int | None
    clients: int
    lr: float
    device: torch.device

    def algorithm(self) -> Algorithm:
        algorithm = self.factory()
        if not isinstance(algorithm, Algorithm):
            fail("an Algorithm from the factory", f"{type(algorithm).__name__}")
        return algorithm

    def quadratics(self, dtype: torch.dtype = torch.float64) -> Quadratic:
        """Clients with at least as many samples as the method has blocks; it does not start at zero."""
        blocks = max(3, self.algorithm().step.blocks or 0)
        problem = quadratics(SEED, self.clients, dtype, self.device, dim=DIM, blocks=blocks, condition=4.0)
        problem.x0 = torch.linspace(-1.0, 1.0, DIM, dtype=dtype, device=self.device)
        return problem

    def logistic(self) -> Supervised:
        """Ridge-free logistic regression on clients of very unequal sizes."""
        draw = rng.generator(SEED, rng.Purpose.DATA)
        least = max(3, self.algorithm().step.blocks or 0)
        sizes = least + np.arange(self.clients) * 2
        x = draw.standard_normal((int(sizes.sum()) + 4, 3)).astype(np.float32)
        y = draw.integers(0, 3, len(x))
        data = Dataset("normal", x[:-4], y[:-4], x[-4:], y[-4:], classes=3)
        parts = np.split(np.arange(len(x) - 4), np.cumsum(sizes)[:-1])
        return Supervised(lambda: nn.Linear(3, 3), data, parts, dtype=torch.float64, device=self.device)

    def job(
        self,
        engine: Engine | None = None,
        problem: Problem | None = None,
        work: Work = UNEQUAL,
        batch_size: int | None = 2,
    ) -> Job:
        problem = self.quadratics() if problem is None else problem
        algorithm = replace(self.algorithm(), client_model=None)  # how models are judged changes no round
        cohort = self.cohort
        if cohort is None:
            p = weights.objective(algorithm.weights, problem.roster.sizes)
            population = Population(problem.roster.n, torch.as_tensor(p, device=self.device))
            cohort = min(3, self.clients)
            if algorithm.needs.everyone or algorithm.refuse(population, cohort) is not None:
                cohort = self.clients
        schedule = Schedule(SEED, cohort, self.lr, work, "steps", batch_size)
        return Job(problem, algorithm, schedule, engine=engine or Serial())


def run(job: Job, rounds: int, state: State | None = None) -> State:
    """So many more rounds, from the start or from a state."""
    state = start(job) if state is None else state
    for _ in range(rounds):
        state = advance(job, state)
    return state


def plan_of(job: Job, round: int) -> Plan:
    """The plan of a round."""
    return job.schedule.plan(round, job.algorithm, job.problem.roster)


def all_rows(job: Job, state: State) -> Tree:
    """Every client's row, stacked."""
    return state.store.gather(np.arange(job.problem.roster.n))


GROUPS = ("phases", "needs", "step", "facts")  # of `Algorithm`
Watch = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


def observed(job: Job, watch: Watch) -> Job:
    """The same job, every function f of the method's bundle called as watch(name, f, arguments).

    A name is without its group: `init`, `hessian_at`, `settle.send`.
    """

    def observe(name: str, value: Any) -> Any:
        if callable(value):
            return lambda *args: watch(name, value, args)
        if not hasattr(value, "_fields"):
            return value
        prefix = f"{name}." if name not in GROUPS else ""
        return value._replace(**{field: observe(prefix + field, part) for field, part in value._asdict().items()})

    values = {field.name: getattr(job.algorithm, field.name) for field in fields(job.algorithm)}
    changed = replace(job.algorithm, **{name: observe(name, value) for name, value in values.items()})
    return replace(job, algorithm=changed)
