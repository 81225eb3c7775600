"""The default engine: the clients of a cohort trained at once, as rows of one matrix [S, d]."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Cohort, Plan, Problem, Tree, tree_bytes, tree_map
from fedconcord.engines import chunk, workers
from fedconcord.engines.base import (
    ALONE,
    Outcome,
    Team,
    clients_of,
    close_rows,
    cohort_of,
    curvature,
    full_costs,
    open_rows,
    oracle_of,
    settled,
    wants_full_gradient,
    with_oracle,
)
from fedconcord.engines.local import full_gradient, solve
from fedconcord.solvers import Solver
from fedconcord.state import MemoryStore, Store


@dataclass(frozen=True)
class Stacked:
    """Trains `chunk` clients at a time, on `workers` threads; "auto" goes by the rule of `engines.chunk`.

    None takes the whole cohort as one chunk. A chunk's clients are sorted by their number of steps, most first, and
    step k runs on the prefix that still has one: unequal clients cost their own steps. Every worker has its share of
    torch's threads. What is summed is summed in the order of the chunks, so that no bit depends on who was first.
    A team of several processes trains each its own clients and sums what they send.
    """

    chunk: int | Literal["auto"] | None = "auto"
    workers: int | Literal["auto"] = "auto"
    team: Team = ALONE

    def resolve(self, problem: Problem, plan: Plan) -> Stacked:
        """This engine with its chunk and workers numbers, for rounds like this one; rank 0's choice for a team."""

        def choice() -> str:
            return json.dumps(chunk.auto(problem, plan, self.chunk, self.workers))

        width, number = json.loads(self.team.tell(choice) if "auto" in (self.chunk, self.workers) else choice())
        return replace(self, chunk=width, workers=number)

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: Solver, server: Tree, store: Store, plan: Plan
    ) -> Outcome:
        """One round, as `core` states it."""
        cohort = cohort_of(problem, plan)
        talks = algorithm.communicates is None or algorithm.communicates(cohort)
        full = wants_full_gradient(algorithm, oracle_of(algorithm, solver))
        now = self.resolve(problem, plan)
        assert isinstance(now.chunk, int)
        assert isinstance(now.workers, int)
        everyone = np.argsort(-plan.steps, kind="stable")
        order = everyone[self.team.owns(plan.ids[everyone])]
        idle = len(order) == 0
        if idle:  # the form of the sums is one client's without local steps, in a store that nobody keeps
            order, plan = everyone[-1:], plan._replace(steps=np.zeros_like(plan.steps))
            store = MemoryStore(store.template)
        number = -(-len(order) // now.chunk)
        chunks = [order[k::number] for k in range(number)]  # dealt out: about the same work in each
        down = algorithm.broadcast(server)
        bytes_down = len(everyone) * tree_bytes(down) if talks else 0
        bytes_up = 0
        gradients: list[Tensor | None] = [None] * number  # of the chunks, for methods that use them after a prelude too
        if algorithm.prelude is not None:
            total = None
            for k, select in enumerate(chunks):
                ids = plan.ids[select]
                own, _, _ = open_rows(problem, server.x, store.gather(ids), ids)
                client = clients_of(problem, plan, select)
                client = client._replace(gradient=full_gradient(own, server.x.expand(len(ids), -1), ids))
                total = _add(total, _reduce(algorithm.prelude.contribute(client, cohort)))
                bytes_up += tree_bytes(client.gradient)
                gradients[k] = client.gradient if algorithm.full_gradient else None
            total, _ = self.team.total(_zeros(total) if idle else total, ())
            bytes_down += len(everyone) * tree_bytes(total)
            down = algorithm.prelude.absorb(down, total)

        total = None
        evaluations = int(full_costs(plan)[order].sum()) if full else 0
        held = threading.Lock()  # of the store

        def work(k: int) -> Trained:
            select, heard = chunks[k], cohort if talks else None
            ids = plan.ids[select]
            with held:
                rows = store.gather(ids)
            done = train(problem, algorithm, solver, server, down, rows, plan, select, heard, gradients[k])
            with held:
                store.scatter(ids, done.rows)
            return done._replace(rows=())

        threads = now.workers if _threads_may(problem, algorithm, solver) else 1
        for done in workers.ordered(work, range(number), threads):
            evaluations += done.gradient_steps
            if talks:
                total = _add(total, done.share)
                bytes_up += done.bytes_up
        total = total if talks else ()
        if idle:
            total, bytes_up, evaluations = _zeros(total), 0, 0
        total, (bytes_up, evaluations) = self.team.total(total, (bytes_up, evaluations))
        if talks:
            server = algorithm.update(server, total, cohort)
            if algorithm.settle is not None:
                for select in chunks:
                    ids = plan.ids[select]
                    store.scatter(ids, settled(algorithm.settle, down, server, store.gather(ids)))
        return Outcome(server, bytes_down, bytes_up, evaluations)


class Trained(NamedTuple):
    """What some clients of a round made."""

    share: Tree  # their contributions, summed; None in a round without messages
    rows: Tree  # [S, ...] as they are stored
    bytes_up: int
    gradient_steps: int


def train(
    problem: Problem,
    algorithm: Algorithm,
    solver: Solver,
    server: Tree,
    down: Tree,
    rows: Tree,
    plan: Plan,
    select: np.ndarray,
    cohort: Cohort | None,
    gradient: Tensor | None,
) -> Trained:
    """The clients at the positions `select` of the plan, most steps first, from their stored rows to what they send.

    Args:
        down: the broadcast, a prelude's total in it.
        cohort: None in a round without messages.
        gradient: full gradients [S, d] at the server's model, where a prelude had them evaluated for these functions.
    """
    ids, oracle = plan.ids[select], oracle_of(algorithm, solver)
    own, rows, private = open_rows(problem, server.x, rows, ids)
    client = clients_of(problem, plan, select)._replace(gradient=gradient)
    if wants_full_gradient(algorithm, oracle) and algorithm.prelude is None:
        client = client._replace(gradient=full_gradient(own, server.x.expand(len(ids), -1), ids))
    if algorithm.hessian_at is not None:
        points = algorithm.hessian_at(down, rows).expand(len(ids), -1)
        squares = [curvature(own, x, int(i)) for x, i in zip(points, ids, strict=True)]
        client = client._replace(hessian=torch.stack(squares))
    local = with_oracle(algorithm.start(down, rows, client), oracle, server.x, client.gradient)
    done, cost = solve(own, algorithm, solver, local, plan, select)
    up, rows = algorithm.finish(down, rows, done, client)
    share = None if cohort is None else _reduce(algorithm.contribute(up, client, cohort))
    return Trained(share, close_rows(rows, private), tree_bytes(up), cost)


def _threads_may(problem: Problem, algorithm: Algorithm, solver: Solver) -> bool:
    """Whether several threads may compute at once: kernels may, torch.nn modules and line searches may not."""
    return chunk.has_kernel(problem) and algorithm.hessian_at is None and solver.kind != "lbfgs"


def _reduce(shares: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.sum(0), shares)


def _zeros(shares: Tree) -> Tree:
    return tree_map(torch.zeros_like, shares)


def _add(total: Tree, more: Tree) -> Tree:
    return more if total is None else tree_map(torch.add, total, more)
