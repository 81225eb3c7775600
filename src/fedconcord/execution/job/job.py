"""One training run, fully specified, and what it carries from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import Engine, Stacked
from fedconcord.execution.rows import Storage, Store
from fedconcord.federation.objectives.judging import Models, supervised
from fedconcord.federation.participation.clock import Cost
from fedconcord.federation.participation.participation import View
from fedconcord.method.contract import (
    Algorithm,
    Draws,
    Parts,
    Plan,
    Population,
    Problem,
    Roster,
    Tree,
    TwoBlockRow,
    tree_bytes,
    weights,
)
from fedconcord.method.contract.pieces import gradients_of
from fedconcord.method.contract.round import bytes_of_all
from fedconcord.method.step.assignment import Assignment, with_oracle
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.forms import Forms, forms


class Planner(Protocol):
    """Draws the plan of a round; `participation.schedule.Schedule` is the one that users configure."""

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

    problem: Problem  # the federation
    algorithm: Algorithm  # the method
    schedule: Planner  # who takes part, and how much work they do
    solver: Solver = Solver()  # the clients' local step
    engine: Engine = Stacked()  # what runs a round
    storage: Storage = Storage()  # where clients' rows lie
    hostile: tuple[int, ...] = ()  # clients that attack, in a simulation; the method and the data have what they do

    @cached_property
    def assignment(self) -> Assignment:
        """What every client is told before round 0."""
        return Assignment(self.algorithm, self.solver, self.schedule.draws)

    @cached_property
    def cost(self) -> Cost:
        """What a round asks of one client: bytes, and mini-batch gradients; the mean over all clients, where they hold
        different parts of the model."""
        oracle = self.assignment.oracle
        messages = forms(self.algorithm, self.problem.init(self.schedule.seed))
        each = gradients_of(self.assignment.pieces(with_oracle(messages.local, oracle, messages.x, messages.x)))
        whole = oracle.kind == "full" or self.solver.kind == "lbfgs"
        return bytes_of(self.algorithm, messages, self.problem.roster.n)._replace(
            per_step=0 if whole else each,
            full_per_step=(each if whole else 0) + (self.solver.tolerance is not None and self.solver.kind == "sgd"),
            full=int(self.assignment.uses_full_gradient or self.algorithm.phases.prelude is not None),
        )


def bytes_of(algorithm: Algorithm, messages: Forms, clients: int) -> Cost:
    """The bytes that a round asks of one client, from the forms of its messages: the mean over so many, rounded."""
    portion, n = algorithm.phases.portion, clients if algorithm.phases.portion is not None else 1
    down, up = (round(bytes_of_all(portion, tree, np.arange(n)) / n) for tree in (messages.down, messages.up))
    return Cost(
        down=down + tree_bytes(messages.answer),
        up=up + tree_bytes(messages.asked),
        exchanges=1 if algorithm.phases.prelude is None else 2,
        x0=tree_bytes(messages.x) if algorithm.needs.x0 else 0,
        settled=tree_bytes(messages.settled),
    )


class State(NamedTuple):
    """Everything that a run carries from round to round. `save` writes it to a file, `load` reads it again.

    The store is one and the same in all states of a run: `advance` changes rows in place.
    """

    round: int  # rounds done
    server: Tree  # the server's state
    store: Store  # the clients' rows
    bytes_up: int  # cumulative
    bytes_down: int  # cumulative
    gradient_steps: int  # cumulative
    simulated_seconds: float = 0.0  # cumulative; 0 without devices
    refused: Mapping[int, int] = MappingProxyType({})  # client -> replies that were not finite and left out
    versions: Mapping[int, Tree] = MappingProxyType({})  # round -> its broadcast, where jobs in flight began from it
    between: tuple[int, ...] = ()  # cumulative, as in `Outcome`
    left_out: Mapping[int, str] = MappingProxyType({})  # client whose reply the last round did without -> lost, refused


class Row(NamedTuple):
    """What is known after a round."""

    round: int  # rounds done
    metrics: dict[str, float] | None  # None where the round was not evaluated
    bytes_up: int  # cumulative
    bytes_down: int  # cumulative
    gradient_steps: int  # cumulative mini-batch gradients
    seconds: float  # this round's training alone; 0 for round 0
    simulated_seconds: float = 0.0  # cumulative; 0 without devices


def population_of(job: Job) -> Population:
    """What the method may know of all clients."""
    roster = job.problem.roster
    p = weights.objective(job.algorithm.weights, roster.sizes)
    return Population(roster.n, torch.as_tensor(p, device=job.problem.objective.device))


def model_of(job: Job, state: State) -> Tensor:
    """The model that the method answers with [d]: the first of those it offers."""
    return next(iter(job.algorithm.models(state.server).values()))


def own_models(job: Job, state: State) -> Models:
    """Every client's own model, where the answer is one a client: the method's for it, with its private part.

    Where clients have statistics alone for themselves it is the server's model for every one.
    """
    client_model, parts = job.algorithm.client_model, job.problem.objective.private
    has_parts, x = isinstance(parts, Parts), model_of(job, state)

    def model(client: int) -> Tensor | None:
        if client_model is None and not has_parts:
            return x
        one = np.array([client])
        if not state.store.known(one)[0]:
            return None
        whole = state.store.gather(one)
        row, private = (whole.row, whole.private) if has_parts else (whole, None)
        mine = x if client_model is None else client_model(row, x)[0]
        return mine if private is None else torch.cat([mine, private[0]])

    return model


def has_own_models(job: Job) -> bool:
    """Whether the answer is a model a client: the method's, or one with a private part or statistics of its own."""
    inner = supervised(job.problem)
    has_parts = isinstance(job.problem.objective.private, Parts) and inner is not None
    return has_parts or job.algorithm.client_model is not None or (inner is not None and inner.norm == "silo")


def state_bytes(job: Job, rounds: int) -> int:
    """What the clients' rows may grow to: bytes of a row times the clients that can be drawn in so many rounds."""
    return min(job.problem.roster.n, rounds * job.schedule.cohort) * row_bytes(job)


def row_bytes(job: Job) -> int:
    """Bytes that one client's row takes between rounds."""
    return job.storage.row_bytes(job.engine.can.stored_row(template(job)))


def template(job: Job) -> Tree:
    """A client's row before its first round."""
    row, private = job.algorithm.init_client(job.problem.init(job.schedule.seed)), job.problem.objective.private
    return row if private is None else TwoBlockRow(row, private.first)
