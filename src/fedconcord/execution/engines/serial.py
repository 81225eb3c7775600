"""The reference engine: one client at a time, written to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedconcord.execution.engines.base import Abilities, Clients, Simulated
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.rows import First, Storage, Store
from fedconcord.method.contract import (
    PRELUDE,
    Costs,
    Gathered,
    Phase,
    Plan,
    Problem,
    Tree,
    cut_for,
    finite,
    orders_of,
    space_of,
    total_of,
    tree_bytes,
    tree_map,
)
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.step import Step, ask, client_step, passes


class Serial:
    """Runs the clients of a cohort one after the other; the definition of what the other engines must compute."""

    team: Team = ALONE  # the processes that share every round
    can = Abilities()  # a client at a time, all of them here

    def prepare(self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int = 1) -> Serial:
        """Itself: there is nothing to choose."""
        return self

    def open(
        self, problem: Problem, assignment: Assignment, storage: Storage, template: Tree, first: First | None
    ) -> Store:
        """Rows as the storage keeps them."""
        return storage.open(template, first, problem.roster.n)

    def clients(self, problem: Problem, assignment: Assignment, store: Store) -> Clients:
        """All of them, in this process."""
        return Simulated(problem, assignment, store, SerialCohort)


class SerialCohort:
    """The clients of one round, one after the other; see `engines.base.CohortLink`."""

    def __init__(self, clients: Simulated, server: Tree, plan: Plan) -> None:
        self.clients, self.server, self.store = clients, server, clients.store
        self.assignment, self.objective = clients.assignment, clients.problem.objective
        self.rows = {i: tree_map(lambda leaf: leaf[0], self.store.gather(np.array([i]))) for i in plan.ids.tolist()}
        self.gradients: dict[int, Tensor] = {}  # of a prelude
        self.steps: dict[int, Step] = {}
        self.costs = Costs()

    def gather(self, phase: Phase, plan: Plan) -> Gathered:
        bytes_down, ids = self.clients.bytes_down(self.server, phase, plan), plan.ids.tolist()
        if phase.number == PRELUDE:
            replies: Mapping[int, Tree] = self._gradients(phase.down, plan)
        else:
            self._train([phase.down_of(plan, k) for k in range(len(ids))], plan)
            replies = {i: self.steps[i].up for i in ids}
        bytes_up = sum(tree_bytes(cut_for(phase.portion, replies[i], i)) for i in plan.ids[plan.heard].tolist())
        self.costs = self.costs.plus(bytes_down, bytes_up)
        rest = self.clients.sound(plan, np.array([bool(finite(replies[i], 1)) for i in ids], bool))
        refused = np.setdiff1d(plan.ids, rest.ids).tolist()
        return Gathered(rest, total_of(phase, replies, space_of(self.clients.problem), rest), tuple(refused))

    def train_silently(self, plan: Plan) -> None:
        self.costs = self.costs.plus(self.clients.bytes_down(self.server, None, plan))
        self._train([self.assignment.algorithm.broadcast(self.server)] * len(plan.ids), plan)
        self.keep(plan)

    def keep(self, plan: Plan) -> None:
        for i in plan.ids.tolist():
            self.store.scatter(np.array([i]), tree_map(lambda leaf: leaf[None], self.steps[i].row))

    def _gradients(self, down: Tree, plan: Plan) -> Mapping[int, Tensor]:
        """Every client's full gradient."""
        for k, i in enumerate(plan.ids.tolist()):
            self.gradients[i] = ask(self.assignment.algorithm, self.objective, i, down, self.rows[i])
            self.costs = self.costs.plus(0, 0, 0 if plan.answers[k] else passes(self.assignment, self.objective, i))
        return self.gradients

    def _train(self, downs: Sequence[Tree], plan: Plan) -> None:
        """Every client's local steps; downs: [S] what each has of the server."""
        algorithm = self.assignment.algorithm
        for k, i in enumerate(plan.ids.tolist()):
            gradient = self.gradients.get(i) if algorithm.needs.full_gradient else None
            orders = orders_of(plan, k, algorithm)
            self.steps[i] = client_step(self.assignment, self.objective, i, downs[k], self.rows[i], orders, gradient)
            self.costs = self.costs.plus(0, 0, self.steps[i].gradient_steps)
