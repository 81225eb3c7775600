"""The reference engine: one client at a time, written to be read."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedconcord.core import (
    Outcome,
    Plan,
    Population,
    Problem,
    Tree,
    cohort_of,
    orders_of,
    sender_of,
    space_of,
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

    team: Team = ALONE

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
            return base.nobody(problem, duty, server, plan)
        algorithm, objective, space = duty.algorithm, problem.objective, space_of(problem)
        cohort = cohort_of(space, plan)
        talks = algorithm.communicates is None or algorithm.communicates(cohort)
        orders = [orders_of(plan, k, algorithm) for k in range(len(plan.ids))]
        rows = [_first(store.gather(one)) for one in np.split(plan.ids, len(plan.ids))]
        senders = [sender_of(space, plan, k) for k in range(len(plan.ids))]
        reached = int((~plan.answers).sum()) + len(plan.aside.lost)
        down = broadcast = algorithm.broadcast(server)
        bytes_down = base.joining(algorithm, store, plan, plan.ids, talks) * tree_bytes(server.x)
        bytes_down += reached * tree_bytes(down) if talks else 0
        bytes_up = evaluations = 0
        asked: list[Tensor | None] = [None] * len(orders)
        if algorithm.prelude is not None:
            gradients = [ask(duty, objective, order.id, down, row) for order, row in zip(orders, rows, strict=True)]
            pairs = zip(gradients, senders, strict=True)
            total = tree_sum([algorithm.prelude.contribute(gradient, sender, cohort) for gradient, sender in pairs])
            bytes_up += sum(tree_bytes(gradient) for gradient in gradients)
            bytes_down += reached * tree_bytes(total)
            down = algorithm.prelude.absorb(down, total)
            evaluations += sum(passes(duty, objective, order.id) for order in orders if not order.answers)
            asked = list(gradients) if algorithm.needs_full_gradient else asked

        shares = []
        for order, row, sender, gradient in zip(orders, rows, senders, asked, strict=True):
            done = client_step(duty, objective, order.id, down, row, order, gradient)
            evaluations += done.gradient_steps
            store.scatter(np.array([order.id]), tree_map(lambda leaf: leaf[None], done.row))
            if talks:
                shares.append(algorithm.contribute(done.up, sender, cohort))
                bytes_up += 0 if order.late else tree_bytes(done.up)
        if talks:
            server = algorithm.update(server, tree_sum(shares), cohort)
            if algorithm.settle is not None:
                sent = algorithm.settle.send(broadcast, server)
                bytes_down += cohort.size * tree_bytes(sent)
                store.scatter(plan.ids, settled(algorithm.settle, sent, store.gather(plan.ids)))
        return Outcome(server, bytes_down, bytes_up, evaluations)


def _first(rows: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[0], rows)
