"""The round loop. `train` is the short way; `start` and `advance` are the parts for a loop written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fedconcord import refusals
from fedconcord.core import (
    Algorithm,
    Draws,
    Outcome,
    Plan,
    Population,
    Problem,
    Roster,
    Tree,
    TwoBlockRow,
    tree_bytes,
)
from fedconcord.engines import Engine, Stacked
from fedconcord.engines.base import first_rows
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.clock import Cost
from fedconcord.heterogeneity.turnout import View
from fedconcord.local.duty import Duty
from fedconcord.messages import forms
from fedconcord.solvers import Solver
from fedconcord.state import Storage, Store


class Planner(Protocol):
    """Draws the plan of a round; `heterogeneity.schedule.Schedule` is the one that users configure."""

    @property
    def seed(self) -> int: ...

    @property
    def cohort(self) -> int: ...

    @property
    def draws(self) -> Draws: ...

    def refuse(self, algorithm: Algorithm, n: int) -> str | None: ...

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan: ...


@dataclass(frozen=True)
class Job:
    """One training run, fully specified."""

    problem: Problem
    algorithm: Algorithm
    schedule: Planner
    solver: Solver = Solver()
    engine: Engine = Stacked()
    storage: Storage = Storage()

    @cached_property
    def duty(self) -> Duty:
        """What every client is told before round 0."""
        return Duty(self.algorithm, self.solver, self.schedule.draws)

    @cached_property
    def cost(self) -> Cost:
        """What a round asks of one client: bytes, and mini-batch gradients."""
        oracle = self.duty.oracle
        found = forms(self.algorithm, self.problem.init(self.schedule.seed))
        each = 1 + (oracle.kind == "sam") + (found.snapshot or oracle.kind == "svrg")
        whole = oracle.kind == "full" or self.solver.kind == "lbfgs"
        return Cost(
            down=found.bytes_down,
            up=found.bytes_up,
            exchanges=1 if self.algorithm.prelude is None else 2,
            per_step=0 if whole else each,
            full_per_step=(each if whole else 0) + (self.solver.tolerance is not None and self.solver.kind == "sgd"),
            full=int(self.duty.uses_full_gradient or self.algorithm.prelude is not None),
        )


class State(NamedTuple):
    """Everything that a run carries from round to round."""

    round: int  # rounds done
    server: Tree
    store: Store
    bytes_up: int  # cumulative
    bytes_down: int  # cumulative
    gradient_steps: int  # cumulative
    simulated_seconds: float = 0.0  # cumulative; 0 without devices


def start(job: Job) -> State:
    """The state before round 0.

    Raises:
        UserError: the job cannot run (`refusals`).
    """
    state, population = blank(job)
    if job.algorithm.prologue is None:
        return state
    done = job.engine.prologue(job.problem, job.duty, state.server, state.store, population)
    return state._replace(
        server=done.server, bytes_up=done.bytes_up, bytes_down=done.bytes_down, gradient_steps=done.gradient_steps
    )


def blank(job: Job) -> tuple[State, Population]:
    """The state before all clients are asked for what a method's prologue wants: what a checkpoint is read into.

    Raises:
        UserError: the job cannot run (`refusals`).
    """
    population = population_of(job)
    refusals.check(job)
    template = _template(job)
    server = job.algorithm.init(job.problem.init(job.schedule.seed), population)
    first = first_rows(job.problem, job.duty, server, template)
    store = job.engine.open(job.problem, job.duty, job.storage, template, first)
    return State(0, server, store, 0, 0, 0), population


def population_of(job: Job) -> Population:
    """What the method may know of all clients."""
    roster = job.problem.roster
    p = weights.objective(job.algorithm.weights, roster.sizes)
    return Population(roster.n, torch.as_tensor(p, device=job.problem.objective.device))


def state_bytes(job: Job, rounds: int) -> int:
    """What the clients' rows may grow to: bytes of a row times the clients that can be drawn in so many rounds."""
    return min(job.problem.roster.n, rounds * job.schedule.cohort) * row_bytes(job)


def row_bytes(job: Job) -> int:
    """Bytes that one client's row takes between rounds."""
    return job.storage.row_bytes(job.engine.kept(_template(job)))


def _template(job: Job) -> Tree:
    """A client's row before its first round."""
    row, private = job.algorithm.init_client(job.problem.init(job.schedule.seed)), job.problem.objective.private
    return row if private is None else TwoBlockRow(row, private.first)


def resolved(job: Job) -> Job:
    """The same job with the engine's own choices made, so that they can be written down."""
    state, _ = blank(replace(job, storage=Storage()))
    plan = plan_of(job, state)
    while len(plan.ids) == 0 and state.round < 100:  # a first round may find nobody
        state = state._replace(round=state.round + 1)
        plan = plan_of(job, state)
    return replace(job, engine=job.engine.resolve(job.problem, job.duty, plan)) if len(plan.ids) else job


def plan_of(job: Job, state: State) -> Plan:
    """The plan of the round that a state begins; most schedules do not look at the server's model."""

    def losses(ids: np.ndarray) -> np.ndarray:
        return job.engine.losses(job.problem, state.server.x, state.store, ids)

    view = View(lambda: job.cost, losses, job.problem.objective.dim)
    return job.schedule.plan(state.round, job.algorithm, job.problem.roster, view)


def advance(job: Job, state: State) -> State:
    """One round. Where nobody takes part the server keeps its state."""
    plan = plan_of(job, state)
    done = Outcome(state.server, 0, 0, 0)
    if len(plan.ids) or plan.aside.lost:
        done = job.engine.round(job.problem, job.duty, state.server, state.store, plan)
    return state._replace(
        round=state.round + 1,
        server=done.server,
        bytes_up=state.bytes_up + done.bytes_up + 8 * plan.aside.asked,
        bytes_down=state.bytes_down + done.bytes_down + tree_bytes(state.server.x) * plan.aside.asked,
        gradient_steps=state.gradient_steps + done.gradient_steps + plan.aside.gradient_steps,
        simulated_seconds=state.simulated_seconds + plan.seconds,
    )


def evaluate(job: Job, state: State) -> dict[str, float]:
    """Metrics of every model the method offers; the first one's have no prefix, others are 'name:metric'."""
    found: dict[str, float] = {}
    models: Mapping[str, torch.Tensor] = job.algorithm.models(state.server)
    for k, (name, x) in enumerate(models.items()):
        found |= {
            metric if k == 0 else f"{name}:{metric}": value
            for metric, value in job.problem.evaluator.evaluate(x).items()
        }
    return found


class Row(NamedTuple):
    """What is known after a round."""

    round: int
    metrics: dict[str, float] | None  # None where the round was not evaluated
    bytes_up: int  # cumulative, as the next two
    bytes_down: int
    gradient_steps: int
    seconds: float  # this round's training alone; 0 for round 0
    simulated_seconds: float = 0.0  # cumulative; 0 without devices


def train(
    job: Job,
    rounds: int,
    *,
    state: State | None = None,
    eval_every: int = 1,
    on_state: Callable[[State], None] | None = None,
) -> Iterator[Row]:
    """Train to `rounds` rounds in all, yielding a row for the start and for every round after it.

    Evaluation (every `eval_every` rounds and at the end) is outside the timed part. `on_state` sees the state after
    each round, before the row is yielded: what a checkpoint needs. In a team of processes only rank 0 evaluates.
    """
    lead = job.engine.team.rank == 0
    if state is None:
        state = start(job)
        yield _row(state, evaluate(job, state) if lead else None, 0.0)
    while state.round < rounds:
        begin = time.perf_counter()
        state = advance(job, state)
        if job.problem.objective.device.type == "cuda":
            torch.cuda.synchronize(job.problem.objective.device)
        seconds = time.perf_counter() - begin
        due = lead and (state.round % eval_every == 0 or state.round == rounds)
        row = _row(state, evaluate(job, state) if due else None, seconds)
        if on_state is not None:
            on_state(state)
        yield row


def _row(state: State, metrics: dict[str, float] | None, seconds: float) -> Row:
    return Row(
        state.round, metrics, state.bytes_up, state.bytes_down, state.gradient_steps, seconds, state.simulated_seconds
    )
