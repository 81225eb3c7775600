"""The round loop. `train` is the short way; `start` and `advance` are the parts for a loop written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import torch

from fedconcord.execution.engines import run_round
from fedconcord.execution.engines.base import first_rows, losses
from fedconcord.execution.job import refusals
from fedconcord.execution.job.job import Job, Row, State, has_own_models, own_models, population_of, template
from fedconcord.execution.rows import Storage
from fedconcord.federation.objectives.judging import evaluate_own, supervised
from fedconcord.federation.participation.participation import View
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Outcome, Plan, Tree, UnmeasuredError, tree_bytes
from fedconcord.method.wrappers.forms import forms


class Step(NamedTuple):
    """The state before round 0 or after a round, and what is known of it."""

    state: State
    row: Row


def start(job: Job) -> State:
    """The state before round 0.

    Raises:
        UserError: the job cannot run (`refusals`).
    """
    return asked(job, blank(job))


def blank(job: Job) -> State:
    """The state before all clients are asked for what a method's prologue wants: what a checkpoint is read into.

    Raises:
        UserError: the job cannot run (`refusals`).
    """
    refusals.check(job)
    empty = template(job)
    server = job.algorithm.init(job.problem.init(job.schedule.seed), population_of(job))
    first = first_rows(job.problem, job.assignment, server, empty)
    return State(0, server, job.engine.open(job.problem, job.assignment, job.storage, empty, first), 0, 0, 0)


def asked(job: Job, state: State) -> State:
    """The state before round 0, from a blank one: all clients are asked for what a method's prologue wants."""
    if job.algorithm.phases.prologue is None:
        return state
    outcome = job.engine.clients(job.problem, job.assignment, state.store).prologue(state.server, population_of(job))
    return state._replace(
        server=outcome.server,
        bytes_up=outcome.bytes_up,
        bytes_down=outcome.bytes_down,
        gradient_steps=outcome.gradient_steps,
        between=_asked_between(job),
    )


def _asked_between(job: Job) -> tuple[int, ...]:
    """Bytes between servers before round 0: x^0 to every edge server, and a total of the prologue from each."""
    tree = job.schedule.tree if isinstance(job.schedule, Schedule) else None
    if tree is None:
        return ()
    x = job.problem.init(job.schedule.seed)
    each = tree_bytes(x), tree_bytes(forms(job.algorithm, x).share)
    return tuple(count * size for count in tree.counts for size in each)


def resolved(job: Job, state: State | None = None, rounds: int = 1) -> Job:
    """The same job with the engine's own choices made, for so many rounds, so that they can be written down.

    Args:
        state: a blank one of the job, which stays so; made where it is not given.
    """
    if state is None:
        state = blank(replace(job, storage=Storage()))
    plan = _first_plan(job, state)
    while len(plan.ids) == 0 and state.round < 100:  # a first round may find nobody
        state = state._replace(round=state.round + 1)
        plan = _first_plan(job, state)
    return replace(job, engine=job.engine.prepare(job.problem, job.assignment, plan, rounds)) if len(plan.ids) else job


def _first_plan(job: Job, state: State) -> Plan:
    """The plan of a round that is not begun: nobody is asked for a loss over the engine's way, which counts it."""
    return _plan(job, state, lambda ids: losses(job.problem, state.server.x, ids))


def plan_of(job: Job, state: State) -> Plan:
    """The plan of the round that a state begins; most schedules do not look at the server's model."""
    clients = job.engine.clients(job.problem, job.assignment, state.store)
    return _plan(job, state, lambda ids: clients.losses(state.server.x, ids))


def _plan(job: Job, state: State, asks: Callable[[np.ndarray], np.ndarray]) -> Plan:
    view = View(lambda: job.cost, asks, job.problem.objective.dim)
    return job.schedule.plan(state.round, job.algorithm, job.problem.roster, view)


def advance(job: Job, state: State) -> State:
    """One round: the state after it. Where nobody takes part the server keeps its own, unless the method says otherwise
    (`unheard`).

    The server's part of the state is new; the rows of those who take part are changed in place, in the store that both
    states have. So go on from what is returned alone; to come back to a state, `save` it before and `load` it then.
    """
    plan = plan_of(job, state)
    outcome = Outcome(state.server, 0, 0, 0)
    if len(plan.ids) or plan.aside.lost or job.algorithm.phases.unheard is not None:
        outcome = run_round(job.engine, job.problem, job.assignment, state.server, state.store, plan, state.versions)
    versions: Mapping[int, Tree] = {}
    if plan.in_flight:
        here = {**state.versions, state.round: job.algorithm.broadcast(state.server)}
        versions = {version: here[version] for version in plan.in_flight}
    return state._replace(
        round=state.round + 1,
        server=outcome.server,
        bytes_up=state.bytes_up + outcome.bytes_up + 8 * plan.aside.asked + _unused(job, plan),
        bytes_down=state.bytes_down + outcome.bytes_down + tree_bytes(state.server.x) * plan.aside.asked,
        gradient_steps=state.gradient_steps + outcome.gradient_steps + plan.aside.gradient_steps,
        simulated_seconds=state.simulated_seconds + plan.seconds,
        refused={**state.refused, **{i: state.refused.get(i, 0) + 1 for i in outcome.refused}},
        versions=versions,
        between=_added(state.between, outcome.between),
        left_out=dict.fromkeys(outcome.missing, "lost") | dict.fromkeys(outcome.refused, "refused"),
    )


def _added(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes between servers so far, the last those to the root: a run at sites may go on with more tiers, or fewer."""
    return tuple(a + b for a, b in zip_longest(before[::-1], now[::-1], fillvalue=0))[::-1]


def _unused(job: Job, plan: Plan) -> int:
    """Bytes of replies that came too late for an update."""
    return job.cost.up * len(plan.aside.stale) if plan.aside.stale else 0


def evaluate(job: Job, state: State) -> dict[str, float]:
    """Metrics of every model the method offers; the first one's have no prefix, others are 'name:metric'. Then the
    numbers that it tells of its own state. Where the answer is a model a client, those of
    `objectives.judging.evaluate_own`."""
    own_numbers = dict(job.algorithm.facts.numbers(state.server))
    of_clients = own_models(job, state) if has_own_models(job) else None
    if of_clients is not None and (len(state.store) or of_clients(0) is not None):
        inner = supervised(job.problem)
        assert inner is not None
        return evaluate_own(inner, of_clients) | own_numbers
    metrics: dict[str, float] = {}
    models: Mapping[str, torch.Tensor] = job.algorithm.models(state.server)
    for k, (name, x) in enumerate(models.items()):
        metrics |= {
            metric if k == 0 else f"{name}:{metric}": value
            for metric, value in job.problem.evaluator.evaluate(x).items()
        }
    return metrics | own_numbers


def train(job: Job, rounds: int, *, state: State | None = None, eval_every: int = 1) -> Iterator[Row]:
    """Train to `rounds` rounds in all, yielding a row for the start and for every round after it.

    `steps` gives the states too. Evaluation (every `eval_every` rounds and at the end) is outside the timed part. In a
    team of processes only rank 0 evaluates. The engine makes its choices for so many rounds (`resolved`), which a loop
    of `advance` does for one.
    """
    job = resolved(job, rounds=rounds)
    took = 0.0 if state is None else None
    for step in steps(job, start(job) if state is None else state, rounds, eval_every=eval_every, took=took):
        yield step.row


def steps(
    job: Job,
    state: State,
    rounds: int,
    *,
    eval_every: int = 1,
    took: float | None = None,
    trained: Callable[[State, float], None] = lambda state, seconds: None,
) -> Iterator[Step]:
    """`train` from a state on, with the state after every round.

    Args:
        took: the state was not measured yet, and its round took so many seconds (0 before round 0): it comes first.
        trained: is told of the state after each round and its seconds, before it is measured.
    """
    lead = job.engine.team.rank == 0
    if took is not None:
        yield _step(state, _measured(job, state) if lead else None, took)
    while state.round < rounds:
        begin = time.perf_counter()
        state = advance(job, state)
        if job.problem.objective.device.type == "cuda":
            torch.cuda.synchronize(job.problem.objective.device)
        seconds = time.perf_counter() - begin
        trained(state, seconds)
        due = lead and (state.round % eval_every == 0 or state.round == rounds)
        yield _step(state, _measured(job, state) if due else None, seconds)


def _measured(job: Job, state: State) -> dict[str, float] | None:
    """`evaluate`, or None where nobody could."""
    try:
        return evaluate(job, state)
    except UnmeasuredError:
        return None


def _step(state: State, metrics: dict[str, float] | None, seconds: float) -> Step:
    counts = state.bytes_up, state.bytes_down, state.gradient_steps
    return Step(state, Row(state.round, metrics, *counts, seconds, state.simulated_seconds))
