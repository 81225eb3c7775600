"""The round loop. `train` is the short way; `start` and `advance` are the parts for a loop written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fedconcord import solvers
from fedconcord.core import (
    Algorithm,
    Plan,
    Population,
    Problem,
    Prologue,
    Tree,
    TwoBlock,
    TwoBlockRow,
    n_clients,
    tree_bytes,
    tree_map,
)
from fedconcord.engines import Engine, Stacked
from fedconcord.engines.base import Outcome, everything, oracle_of, wants_full_gradient
from fedconcord.errors import UserError
from fedconcord.heterogeneity import sampling, weights
from fedconcord.heterogeneity.clock import Cost
from fedconcord.heterogeneity.turnout import View
from fedconcord.messages import forms
from fedconcord.solvers import Solver
from fedconcord.state import First, Storage, Store


class Planner(Protocol):
    """Draws the plan of a round; `heterogeneity.schedule.Schedule` is the one that users configure."""

    @property
    def seed(self) -> int: ...

    @property
    def cohort(self) -> int: ...

    def members(self, client: int, algorithm: Algorithm, offsets: np.ndarray) -> list[np.ndarray]: ...

    def refuse(self, algorithm: Algorithm, n: int) -> str | None: ...

    def plan(
        self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray, view: View | None = None
    ) -> Plan: ...


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
    def cost(self) -> Cost:
        """What a round asks of one client: bytes, and mini-batch gradients."""
        oracle = oracle_of(self.algorithm, self.solver)
        found = forms(self.algorithm, self.problem.init(self.schedule.seed))
        each = 1 + (oracle.kind == "sam") + (found.snapshot or oracle.kind == "svrg")
        whole = oracle.kind == "full" or self.solver.kind == "lbfgs"
        return Cost(
            down=found.bytes_down,
            up=found.bytes_up,
            exchanges=1 if self.algorithm.prelude is None else 2,
            per_step=0 if whole else each,
            full_per_step=(each if whole else 0) + (self.solver.tolerance is not None and self.solver.kind == "sgd"),
            full=int(wants_full_gradient(self.algorithm, oracle)),
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
        UserError: the method refuses this population or cohort, or cohort or processes exceed the population.
    """
    state, population = blank(job)
    if job.algorithm.prologue is None:
        return state
    return _prologue(job, job.algorithm.prologue, state, population)


def blank(job: Job) -> tuple[State, Population]:
    """The state before all clients are asked for what a method's prologue wants: what a checkpoint is read into.

    Raises:
        UserError: as `start`.
    """
    n, cohort = n_clients(job.problem), job.schedule.cohort
    sampling.check(cohort, n)
    p = weights.objective(job.algorithm.weights, job.problem.sizes)
    population = Population(n, torch.as_tensor(p, device=job.problem.device))
    reason = (
        job.algorithm.refuse(population, cohort)
        or solvers.refuse(job.solver, job.algorithm, job.problem.regulariser is not None)
        or job.schedule.refuse(job.algorithm, n)
        or ("late replies cannot be kept where clients have private blocks" if _private_and_late(job) else None)
    )
    if reason is not None:
        raise UserError(reason)
    if job.engine.team.size > n:
        raise UserError(f"{job.engine.team.size} processes cannot share {n} clients; start at most {n}")
    x = job.problem.init(job.schedule.seed)
    template = job.algorithm.init_client(x)
    if isinstance(job.problem, TwoBlock):
        template = TwoBlockRow(template, job.problem.private)
    server = job.algorithm.init(x, population)
    store = job.storage.open(template, _first_rows(job, job.algorithm.prologue, server, template))
    return State(0, server, store, 0, 0, 0), population


def _first_rows(job: Job, prologue: Prologue | None, server: Tree, template: Tree) -> First | None:
    """What a client holds after the prologue, computed when it first takes part: one that never does costs nothing.

    It depends on x^0 and the client alone, so it has the same bits whenever it is asked for.
    """
    if prologue is None:
        return None
    empty = template.row if isinstance(template, TwoBlockRow) else template

    def rows(ids: np.ndarray) -> Tree:
        found = [prologue.row(empty, _block_gradients(job, int(i), server.x)) for i in ids]
        stacked = tree_map(lambda *leaves: torch.stack(leaves), *found)
        if not isinstance(template, TwoBlockRow):
            return stacked
        return TwoBlockRow(stacked, template.private.expand(len(ids), *template.private.shape).clone())

    return rows


def _block_gradients(job: Job, client: int, x: torch.Tensor) -> torch.Tensor:
    """Gradients [M, d] of a client's blocks at x [d]."""
    members = job.schedule.members(client, job.algorithm, job.problem.offsets)
    index = np.zeros((len(members), max(map(len, members))), np.int64)
    weight = np.zeros(index.shape)
    for row, share, block in zip(index, weight, members, strict=True):
        row[: len(block)], share[: len(block)] = block, 1 / len(block)
    samples = torch.as_tensor(index + job.problem.offsets[client], device=job.problem.device)
    short = len(members[0]) > len(members[-1])
    shares = torch.as_tensor(weight).to(samples.device, job.problem.dtype) if short else None
    return job.problem.gradients(x.expand(len(members), -1), samples, shares)


def _private_and_late(job: Job) -> bool:
    return isinstance(job.problem, TwoBlock) and job.algorithm.keeps_late


def _prologue(job: Job, prologue: Prologue, state: State, population: Population) -> State:
    """Every client's block gradients at x^0, and what the server makes of them: the one pass over all clients."""
    total, sent, x = None, 0, state.server.x
    for i in np.flatnonzero(job.engine.team.owns(np.arange(population.n))):
        gradients = _block_gradients(job, int(i), x)
        share = prologue.contribute(gradients, population.p[i].to(gradients))
        total = share if total is None else tree_map(torch.add, total, share)
        sent += tree_bytes(share)
    total, (sent,) = job.engine.team.total(total, (sent,))
    down = population.n * tree_bytes(x)
    evaluations = population.n * len(gradients)
    return state._replace(
        server=prologue.update(state.server, total), bytes_up=sent, bytes_down=down, gradient_steps=evaluations
    )


def state_bytes(job: Job, rounds: int) -> int:
    """What the clients' rows may grow to: bytes of a row times the clients that can be drawn in so many rounds."""
    return min(n_clients(job.problem), rounds * job.schedule.cohort) * row_bytes(job)


def row_bytes(job: Job) -> int:
    """Bytes that one client's row takes between rounds."""
    own = job.storage.row_bytes(job.algorithm.init_client(job.problem.init(job.schedule.seed)))
    return own + (job.storage.row_bytes(job.problem.private) if isinstance(job.problem, TwoBlock) else 0)


def resolved(job: Job) -> Job:
    """The same job with the engine's own choices made, so that they can be written down."""
    x = job.problem.init(job.schedule.seed)
    plan = plan_of(job, 0, x)
    later = 0
    while len(plan.ids) == 0 and later < 100:  # a first round may find nobody
        later += 1
        plan = plan_of(job, later, x)
    return replace(job, engine=job.engine.resolve(job.problem, plan)) if len(plan.ids) else job


def plan_of(job: Job, round: int, x: torch.Tensor) -> Plan:
    """The plan of a round that the server begins at x [d]; most schedules do not look at x."""
    problem = job.problem

    def losses(ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.array([float(problem.loss(x, everything(problem, int(i)))) for i in ids])

    view = View(lambda: job.cost, losses, problem.dim)
    return job.schedule.plan(round, job.algorithm, problem.offsets, problem.sizes, view)


def advance(job: Job, state: State) -> State:
    """One round. Where nobody takes part the server keeps its state."""
    plan = plan_of(job, state.round, state.server.x)
    done = Outcome(state.server, 0, 0, 0)
    if len(plan.ids):
        done = job.engine.round(job.problem, job.algorithm, job.solver, state.server, state.store, plan)
    working = len(plan.ids) if plan.waited is None else int((plan.waited == 0).sum())
    size = max(len(plan.ids), 1)  # messages of one kind have one size; those that come late were counted when sent
    return state._replace(
        round=state.round + 1,
        server=done.server,
        bytes_up=state.bytes_up + done.bytes_up // size * working + plan.aside.bytes_up,
        bytes_down=state.bytes_down
        + done.bytes_down // size * working
        + (plan.aside.down and job.cost.down * plan.aside.down),
        gradient_steps=state.gradient_steps + done.gradient_steps + plan.aside.gradient_steps,
        simulated_seconds=state.simulated_seconds + plan.seconds,
    )


def evaluate(job: Job, state: State) -> dict[str, float]:
    """Metrics of every model the method offers; the first one's have no prefix, others are 'name:metric'."""
    found: dict[str, float] = {}
    models: Mapping[str, torch.Tensor] = job.algorithm.models(state.server)
    for k, (name, x) in enumerate(models.items()):
        found |= {metric if k == 0 else f"{name}:{metric}": value for metric, value in job.problem.evaluate(x).items()}
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
        if job.problem.device.type == "cuda":
            torch.cuda.synchronize(job.problem.device)
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
