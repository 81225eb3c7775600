"""The reference engine: one client at a time, written to be read."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedconcord.core import (
    Outcome,
    Plan,
    Population,
    Problem,
    Sender,
    Space,
    Tree,
    cohort_of,
    orders_of,
    sender_of,
    space_of,
    total_of,
    tree_bytes,
    tree_map,
    tree_sum,
)
from fedconcord.engines import base
from fedconcord.engines.team import ALONE, Team
from fedconcord.local.duty import Duty, settled
from fedconcord.local.step import ask, client_step, passes
from fedconcord.state import First, Storage, Store


class Serial:
    """Runs the clients of a cohort one after the other; the definition of what the other engines must compute."""

    team: Team = ALONE  # the processes that share every round

    def resolve(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Serial:
        """Itself: there is nothing to choose."""
        return self

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """Rows as the storage keeps them."""
        return storage.open(template, first, problem.roster.n)

    def kept(self, template: Tree) -> Tree:
        """The row itself."""
        return template

    def report(self, store: Store) -> dict[str, int]:
        """Nothing: all clients are at hand."""
        return {}

    def prologue(self, problem: Problem, duty: Duty, server: Tree, store: Store, population: Population) -> Outcome:
        """All clients once before round 0."""
        return base.prologue(problem, duty, server, population)

    def losses(self, problem: Problem, x: Tensor, store: Store, ids: np.ndarray) -> np.ndarray:
        """The loss [S] of each of these clients over all its samples at x [d]."""
        return base.losses(problem, x, ids)

    def round(self, problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan) -> Outcome:
        """One round, as `core.contract` states it."""
        if len(plan.ids) == 0:
            return base.nobody(problem, duty, server, store, plan)
        algorithm, objective, space = duty.algorithm, problem.objective, space_of(problem)
        talks = algorithm.communicates is None or algorithm.communicates(cohort_of(space, plan))
        orders = {int(i): orders_of(plan, k, algorithm) for k, i in enumerate(plan.ids)}
        rows = {i: _first(store.gather(np.array([i]))) for i in orders}
        reached = int((~plan.answers).sum()) + len(plan.aside.lost)
        down = broadcast = algorithm.broadcast(server)
        bytes_down = base.joining(algorithm, store, plan, ALONE, talks) * tree_bytes(server.x)
        bytes_down += reached * tree_bytes(down) if talks else 0
        bytes_up = evaluations = 0
        asked: dict[int, Tensor] = {}
        chosen = plan
        if algorithm.prelude is not None:
            gradients = {i: ask(duty, objective, i, down, rows[i]) for i in orders}
            bytes_up += sum(tree_bytes(gradient) for gradient in gradients.values())
            evaluations += sum(passes(duty, objective, i) for i, order in orders.items() if not order.answers)
            plan = base.kept(duty, plan, [gradients[int(i)] for i in plan.ids])
            senders, cohort = _senders(space, plan), cohort_of(space, plan)
            pairs = zip(plan.ids.tolist(), senders, strict=True)
            total = tree_sum([algorithm.prelude.contribute(gradients[i], sender, cohort) for i, sender in pairs])
            bytes_down += (reached - len(chosen.ids) + len(plan.ids)) * tree_bytes(total)
            down = algorithm.prelude.absorb(down, total)
            asked = gradients if algorithm.needs_full_gradient else {}

        made = {i: client_step(duty, objective, i, down, rows[i], orders[i], asked.get(i)) for i in plan.ids.tolist()}
        evaluations += sum(done.gradient_steps for done in made.values())
        if talks:
            bytes_up += sum(tree_bytes(done.up) for i, done in made.items() if not orders[i].late)
            plan = base.kept(duty, plan, [made[int(i)].up for i in plan.ids])
        for i in plan.ids.tolist():
            store.scatter(np.array([i]), tree_map(lambda leaf: leaf[None], made[i].row))
        if talks:
            cohort = cohort_of(space, plan)
            pairs = zip(plan.ids.tolist(), _senders(space, plan), strict=True)
            shares = [algorithm.contribute(made[i].up, sender, cohort) for i, sender in pairs]
            total = total_of(algorithm, server, shares, np.arange(len(plan.ids)), space, plan)
            server = algorithm.update(server, total, cohort)
            if algorithm.settle is not None:
                sent = algorithm.settle.send(broadcast, server)
                bytes_down += cohort.size * tree_bytes(sent)
                store.scatter(plan.ids, settled(algorithm.settle, sent, store.gather(plan.ids)))
        return Outcome(server, bytes_down, bytes_up, evaluations, base.refused(chosen, plan))


def _senders(space: Space, plan: Plan) -> list[Sender]:
    return [sender_of(space, plan, k) for k in range(len(plan.ids))]


def _first(rows: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[0], rows)
