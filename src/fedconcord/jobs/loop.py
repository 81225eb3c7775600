"""The round loop. `train` is the short way; `start` and `advance` are the parts for a loop written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from fedconcord.core import (
    Outcome,
    Plan,
    Population,
    tree_bytes,
)
from fedconcord.engines.base import first_rows
from fedconcord.federation.participation import View
from fedconcord.jobs import refusals
from fedconcord.jobs.job import Job, Row, State, population_of, template
from fedconcord.state import Storage


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
    empty = template(job)
    server = job.algorithm.init(job.problem.init(job.schedule.seed), population)
    first = first_rows(job.problem, job.duty, server, empty)
    store = job.engine.open(job.problem, job.duty, job.storage, empty, first)
    return State(0, server, store, 0, 0, 0), population


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
