"""The reference engine: one client at a time, one step at a time, written to be read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Client, Done, Local, Oracle, Plan, Problem, Tree, tree_bytes, tree_map
from fedconcord.engines.base import Outcome, clients_of, cohort_of, oracle_of
from fedconcord.solvers import SGD, ascent, clipped, normaliser
from fedconcord.state import MemoryStore


class Serial:
    """Runs the clients of a cohort one after the other; the definition of what the other engines must compute."""

    def resolve(self, problem: Problem, plan: Plan) -> Serial:
        """Itself: there is nothing to choose."""
        return self

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: SGD, server: Tree, store: MemoryStore, plan: Plan
    ) -> Outcome:
        """One round, as `core` states it."""
        cohort = cohort_of(problem, plan)
        oracle = oracle_of(algorithm, solver)
        down = algorithm.broadcast(server)
        total: Tree = None
        bytes_up = 0
        for position, i in enumerate(plan.ids):
            row = tree_map(lambda leaf: leaf[0], store.gather(plan.ids[position : position + 1]))
            everything = torch.arange(problem.offsets[i], problem.offsets[i + 1], device=problem.device)
            gradient = problem.gradient(server.x, everything) if algorithm.full_gradient else None
            client = _one(clients_of(problem, plan, np.array([position]), None))._replace(gradient=gradient)
            batches = plan.batches[position] if plan.batches is not None and oracle.kind != "full" else None
            steps = [
                everything
                if batches is None
                else problem.offsets[i] + torch.as_tensor(batches[k][batches[k] >= 0], device=problem.device)
                for k in range(plan.steps[position])
            ]
            done = self._local(problem, solver, oracle, algorithm.start(down, row, client), steps, plan.lr)
            up, row = algorithm.finish(down, row, done, client)
            share = algorithm.contribute(up, client, cohort)
            total = share if total is None else tree_map(torch.add, total, share)
            bytes_up += tree_bytes(up)
            store.scatter(plan.ids[position : position + 1], tree_map(lambda leaf: leaf[None], row))
        server = algorithm.update(server, total, cohort)
        if algorithm.settle is not None:
            rows = store.gather(plan.ids)
            store.scatter(plan.ids, algorithm.settle(down, server, rows))
        extra = len(plan.ids) if algorithm.full_gradient else 0
        return Outcome(server, len(plan.ids) * tree_bytes(down), bytes_up, int(plan.steps.sum()) + extra)

    def _local(
        self, problem: Problem, solver: SGD, oracle: Oracle, local: Local, steps: list[Tensor], lr: float
    ) -> Done:
        x, buffer = local.x, None
        for samples in steps:
            g = problem.gradient(x, samples)
            if oracle.kind == "sam":
                g = problem.gradient(ascent(x, g, oracle.radius), samples)
            direction = local.scale * clipped(g, solver.clip) + solver.weight_decay * x
            if local.linear is not None:
                direction = direction + local.linear
            buffer = direction if buffer is None else solver.momentum * buffer + direction
            pull = 0.0 if local.anchor is None else local.prox * (x - local.anchor)
            x = x - lr * (buffer + pull)
        count = torch.tensor(float(len(steps)), dtype=problem.dtype, device=problem.device)
        return Done(x, count, normaliser(count, local.prox, lr, solver.momentum))


def _one(clients: Client) -> Client:
    """The only client of a stack of one, scalars as []."""
    id, w, p, steps = (column[0, 0] for column in (clients.id, clients.w, clients.p, clients.steps))
    return Client(id, w, p, steps, clients.lr)
