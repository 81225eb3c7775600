"""The reference engine: one client at a time, one step at a time, written to be read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import (
    Algorithm,
    Client,
    Done,
    Local,
    Plan,
    Problem,
    Tree,
    tree_bytes,
    tree_map,
)
from fedconcord.engines import lbfgs
from fedconcord.engines.base import (
    ALONE,
    Outcome,
    Team,
    clients_of,
    close_rows,
    cohort_of,
    curvature,
    everything,
    full_costs,
    local_regulariser,
    open_rows,
    oracle_of,
    settled,
    wants_full_gradient,
    with_oracle,
)
from fedconcord.solvers import Solver, ascent, clipped, momentum_of, normaliser
from fedconcord.state import Store


class Serial:
    """Runs the clients of a cohort one after the other; the definition of what the other engines must compute."""

    team: Team = ALONE

    def resolve(self, problem: Problem, plan: Plan) -> Serial:
        """Itself: there is nothing to choose."""
        return self

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: Solver, server: Tree, store: Store, plan: Plan
    ) -> Outcome:
        """One round, as `core` states it."""
        cohort = cohort_of(problem, plan)
        oracle = oracle_of(algorithm, solver)
        talks = algorithm.communicates is None or algorithm.communicates(cohort)
        full = wants_full_gradient(algorithm, oracle)
        held = [everything(problem, int(i)) for i in plan.ids]
        clients = [_one(clients_of(problem, plan, np.array([k]))) for k in range(len(plan.ids))]
        opened = [open_rows(problem, server.x, store.gather(i[None]), i[None]) for i in plan.ids]
        if full:
            clients = [
                client._replace(gradient=own.gradient(server.x, samples))
                for client, (own, _, _), samples in zip(clients, opened, held, strict=True)
            ]
        down = algorithm.broadcast(server)
        bytes_down = len(clients) * tree_bytes(down) if talks else 0
        bytes_up = 0
        if algorithm.prelude is not None:
            total = _sum([algorithm.prelude.contribute(client, cohort) for client in clients])
            bytes_up += sum(tree_bytes(client.gradient) for client in clients)
            bytes_down += len(clients) * tree_bytes(total)
            down = algorithm.prelude.absorb(down, total)

        shares = []
        evaluations = int(full_costs(plan).sum()) if full else 0
        for k, client in enumerate(clients):
            ids = plan.ids[k : k + 1]
            own, rows, private = opened[k]
            row = tree_map(lambda leaf: leaf[0], rows)
            if algorithm.hessian_at is not None:
                at = algorithm.hessian_at(down, row)
                client = client._replace(hessian=curvature(own, at, int(plan.ids[k])))
            local = with_oracle(algorithm.start(down, row, client), oracle, server.x, client.gradient)
            batches = plan.batches[k] if plan.batches is not None and oracle.kind != "full" else None
            steps = [
                held[k]
                if batches is None
                else problem.offsets[plan.ids[k]]
                + torch.as_tensor(batches[step][batches[step] >= 0], device=problem.device)
                for step in range(plan.steps[k])
            ]
            blocks = plan.blocks[k] if plan.blocks is not None else None
            passes = int(full_costs(plan)[k])
            done, cost = solve(own, algorithm, solver, local, steps, blocks, held[k], plan.lr, passes)
            evaluations += cost
            up, row = algorithm.finish(down, row, done, client)
            if talks:
                shares.append(algorithm.contribute(up, client, cohort))
                bytes_up += tree_bytes(up)
            store.scatter(ids, close_rows(tree_map(lambda leaf: leaf[None], row), private))
        if talks:
            server = algorithm.update(server, _sum(shares), cohort)
            if algorithm.settle is not None:
                store.scatter(plan.ids, settled(algorithm.settle, down, server, store.gather(plan.ids)))
        return Outcome(server, bytes_down, bytes_up, evaluations)


def solve(
    problem: Problem,
    algorithm: Algorithm,
    solver: Solver,
    local: Local,
    steps: list[Tensor],
    blocks: np.ndarray | None,
    whole: Tensor,
    lr: float,
    full_cost: int = 1,
) -> tuple[Done, int]:
    """The local loop of one client, and the mini-batch gradients it evaluated.

    Args:
        steps: the samples of each step.
        blocks: the block of each step, for tables.
        whole: all samples of the client.
        full_cost: mini-batches in a full gradient.
    """
    oracle, regulariser = oracle_of(algorithm, solver), local_regulariser(problem, algorithm)
    x, linear, buffer = local.x, local.linear, local.buffer
    table = None if local.table is None else local.table.clone()
    tilt = None if local.tilt is None else local.tilt.own
    momentum = momentum_of(solver, local)
    taken = evaluations = 0
    if solver.kind == "lbfgs":
        x, taken, evaluations = lbfgs.minimise(problem, solver, local, whole, len(steps))
        count = torch.tensor(float(taken), dtype=problem.dtype, device=problem.device)
        return Done(x, count, count * torch.nan), evaluations * full_cost

    each = full_cost if oracle.kind == "full" else 1
    released = solver.clip_direction is not None and solver.clip_form == "released"

    def oracle_gradient(samples: Tensor) -> Tensor:
        nonlocal evaluations, tilt
        evaluations += each
        g = problem.gradient(x, samples)
        if oracle.kind == "sam":
            evaluations += each
            if local.tilt is not None and tilt is not None:
                g = g - tilt - local.tilt.common
            above = ascent(x, g, oracle.radius)
            if local.tilt is not None and tilt is not None:
                tilt = tilt + (above - x) - local.tilt.common
            g = problem.gradient(above, samples)
        if local.snapshot is not None:
            evaluations += each
            g = g - problem.gradient(local.snapshot, samples)
        return clipped(g, solver.clip)

    def pull() -> Tensor | float:
        return 0.0 if local.anchor is None else local.prox * (x - local.anchor)

    for k, samples in enumerate(steps):
        g = oracle_gradient(samples)
        if table is not None:
            assert blocks is not None
            g, table[blocks[k]] = g - table[blocks[k]], g
        direction = local.scale * g if released else local.scale * g + solver.weight_decay * x
        if linear is not None:
            direction = direction + linear
        if released:
            constant = direction if local.anchor is None else direction - local.prox * local.anchor
            direction = clipped(constant, solver.clip_direction) + solver.weight_decay * x
        buffer = direction if buffer is None else momentum * buffer + direction
        step = direction + momentum * buffer if solver.nesterov else buffer
        if released:
            step = step if local.anchor is None else step + local.prox * x
        else:
            step = clipped(step + pull(), solver.clip_direction)
        if local.metric is not None:
            step = torch.linalg.solve(local.metric, step)
        eta = lr * local.lr_scale * solver.step_decay**k
        x = x - eta * step
        if regulariser is not None:
            x = regulariser.prox(x, eta)
        if table is not None and linear is not None:
            linear = linear + local.table_rate * g
        if local.dual_rate and linear is not None and local.anchor is not None:
            linear = linear + local.dual_rate * (x - local.anchor)
        taken += 1
        if solver.tolerance is not None:
            evaluations += full_cost
            residual = local.scale * problem.gradient(x, whole) + solver.weight_decay * x + pull()
            residual = residual if linear is None else residual + linear
            if float(residual.square().sum()) <= solver.tolerance:
                break
    count = torch.tensor(float(taken), dtype=problem.dtype, device=problem.device)
    norm = count * torch.nan
    if algorithm.normalised:
        base = lr * local.lr_scale
        norm = normaliser(count, taken, local.prox, base, momentum, solver.step_decay, local.scale, solver.nesterov)
    return Done(x, count, norm, linear, table, buffer, tilt), evaluations


def _one(clients: Client) -> Client:
    """The only client of a stack of one, scalars as []."""
    id, w, p, steps, inclusion = (
        column[0, 0] for column in (clients.id, clients.w, clients.p, clients.steps, clients.inclusion)
    )
    late = None if clients.late is None else clients.late[0, 0]
    return Client(id, w, p, steps, inclusion, clients.lr, lambda n: clients.noise(n)[0], late=late)


def _sum(trees: list[Tree]) -> Tree:
    total = trees[0]
    for tree in trees[1:]:
        total = tree_map(torch.add, total, tree)
    return total
