"""The default engine: the clients of a cohort trained at once, as rows of one matrix [S, d]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Done, Local, Plan, Problem, Tree, tree_bytes, tree_map
from fedconcord.engines import chunk, lbfgs
from fedconcord.engines.base import (
    Alone,
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
from fedconcord.state import MemoryStore

SLICE = 512  # samples of a client in one pass of a full gradient


@dataclass(frozen=True)
class Stacked:
    """Trains `chunk` clients at a time; "auto" measures once what is fastest here, None takes the whole cohort.

    Clients are sorted by their number of steps, most first, and step k runs on the prefix that still has one: unequal
    clients cost their own steps. A team of several processes trains each its own clients and sums what they send.
    """

    chunk: int | Literal["auto"] | None = "auto"
    team: Team = Alone()

    def resolve(self, problem: Problem, plan: Plan) -> Stacked:
        """This engine with its chunk a number, for rounds like this one."""
        if self.chunk == "auto":
            return replace(self, chunk=chunk.auto(problem, plan))
        return replace(self, chunk=min(self.chunk or len(plan.ids), len(plan.ids)))

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: Solver, server: Tree, store: MemoryStore, plan: Plan
    ) -> Outcome:
        """One round, as `core` states it."""
        cohort = cohort_of(problem, plan)
        oracle = oracle_of(algorithm, solver)
        talks = algorithm.communicates is None or algorithm.communicates(cohort)
        full = wants_full_gradient(algorithm, oracle)
        everyone = np.argsort(-plan.steps, kind="stable")
        order = everyone[self.team.owns(plan.ids[everyone])]
        idle = len(order) == 0
        if idle:  # the form of the sums is one client's without local steps, in a store that nobody keeps
            order, plan = everyone[-1:], plan._replace(steps=np.zeros_like(plan.steps))
            store = MemoryStore(store.template)
        width = self.resolve(problem, plan).chunk
        assert isinstance(width, int)
        chunks = [order[begin : begin + width] for begin in range(0, len(order), width)]
        down = algorithm.broadcast(server)
        bytes_down = len(everyone) * tree_bytes(down) if talks else 0
        bytes_up = 0
        if algorithm.prelude is not None:
            total = None
            for select in chunks:
                ids = plan.ids[select]
                own, _, _ = open_rows(problem, server.x, store.gather(ids), ids)
                client = clients_of(problem, plan, select)
                client = client._replace(gradient=_full(own, server.x.expand(len(ids), -1), ids))
                total = _add(total, _reduce(algorithm.prelude.contribute(client, cohort)))
                bytes_up += tree_bytes(client.gradient)
            total, _ = self.team.total(_zeros(total) if idle else total, ())
            bytes_down += len(everyone) * tree_bytes(total)
            down = algorithm.prelude.absorb(down, total)

        total = None
        evaluations = int(full_costs(plan)[order].sum()) if full else 0
        for select in chunks:
            ids = plan.ids[select]
            own, rows, private = open_rows(problem, server.x, store.gather(ids), ids)
            client = clients_of(problem, plan, select)
            if full and algorithm.prelude is None:
                client = client._replace(gradient=_full(own, server.x.expand(len(ids), -1), ids))
            if algorithm.hessian_at is not None:
                points = algorithm.hessian_at(down, rows).expand(len(ids), -1)
                squares = [curvature(own, x, int(i)) for x, i in zip(points, ids, strict=True)]
                client = client._replace(hessian=torch.stack(squares))
            local = with_oracle(algorithm.start(down, rows, client), oracle, server.x, client.gradient)
            done, cost = _solve(own, algorithm, solver, local, plan, select)
            evaluations += cost
            up, rows = algorithm.finish(down, rows, done, client)
            if talks:
                total = _add(total, _reduce(algorithm.contribute(up, client, cohort)))
                bytes_up += tree_bytes(up)
            store.scatter(ids, close_rows(rows, private))
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


def _reduce(shares: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.sum(0), shares)


def _zeros(shares: Tree) -> Tree:
    return tree_map(torch.zeros_like, shares)


def _add(total: Tree, more: Tree) -> Tree:
    return more if total is None else tree_map(torch.add, total, more)


def _solve(
    problem: Problem, algorithm: Algorithm, solver: Solver, local: Local, plan: Plan, select: np.ndarray
) -> tuple[Done, int]:
    """The local loop for the clients `select`, sorted by steps, most first; and the mini-batch gradients it took."""
    oracle, regulariser = oracle_of(algorithm, solver), local_regulariser(problem, algorithm)
    ids, steps = plan.ids[select], plan.steps[select]
    if solver.kind == "lbfgs":
        return _lbfgs(problem, solver, local, ids, steps, full_costs(plan)[select])
    x = local.x.expand(len(select), -1).clone()  # [S, d], updated in place as are the next three
    linear = local.linear
    if linear is not None and (local.table is not None or local.dual_rate):
        linear = linear.expand(len(select), -1).clone()
    table = None if local.table is None else local.table.clone()  # [S, M, d]
    buffer = None if local.buffer is None else local.buffer.expand(len(select), -1).clone()
    momentum = momentum_of(solver, local)
    # the step has one affine form: x <- (1 - lr rho) x - lr (filter(kappa g + wd x + linear) - rho anchor)
    anchor, pulled = local.anchor, None
    if anchor is not None and (isinstance(local.prox, Tensor) or local.prox != 0.0):
        pulled = local.prox * anchor  # [S, d] or [d], once and not at every step
    full = plan.batches is None or oracle.kind == "full"
    index, weight = (None, None) if full else _batches(problem, plan, select)
    blocks = None if plan.blocks is None else _blocks(problem, plan, select)
    cost = full_costs(plan)[select]  # of a full gradient
    per_step = (1 + (oracle.kind == "sam") + (local.snapshot is not None)) * (cost if oracle.kind == "full" else 1)
    per_step = per_step + (cost if solver.tolerance is not None else 0 * cost)
    taken = steps.copy()
    evaluations = 0
    active = np.arange(len(select))  # shrinks with the steps, or where a client meets the tolerance
    for k in range(int(steps[0])):
        active = active[steps[active] > k] if solver.tolerance is None else active[taken[active] > k]
        m = len(active)
        if m == 0:
            break
        whole = m == active[-1] + 1  # a prefix: views instead of gathers
        here: slice | Tensor = slice(0, m) if whole else torch.as_tensor(active, device=x.device)
        xs = x[here]

        def gradient(at: Tensor, k: int = k, here: slice | Tensor = here, active: np.ndarray = active) -> Tensor:
            if index is None:
                return _full(problem, at, ids[active])
            return problem.gradients(at, index[here, k], None if weight is None else weight[here, k])

        g = gradient(xs)
        if oracle.kind == "sam":
            g = gradient(ascent(xs, g, oracle.radius))
        if local.snapshot is not None:
            g = g - gradient(local.snapshot.expand(len(x), -1)[here])
        g = clipped(g, solver.clip)
        if table is not None:
            assert blocks is not None
            rows = torch.arange(m, device=x.device) if isinstance(here, slice) else here
            entry = (rows, blocks[here, k])
            fresh, g = g, g - table[entry]
            table[entry] = fresh
        direction = g if isinstance(local.scale, float) and local.scale == 1.0 else _rows(local.scale, here) * g
        if solver.weight_decay:
            direction = direction.add(xs, alpha=solver.weight_decay)
        if linear is not None:
            direction = direction + _rows(linear, here)
        if momentum:
            if buffer is None:
                buffer = torch.zeros_like(x)
            kept = buffer[here].mul_(momentum).add_(direction)
            if not isinstance(here, slice):
                buffer[here] = kept
            direction = kept
        eta = plan.lr * local.lr_scale * solver.step_decay**k
        if local.metric is not None:
            pull = _rows(local.prox, here) * (xs - _rows(anchor, here)) if anchor is not None else 0.0
            xs = xs - eta * torch.linalg.solve(_rows(local.metric, here), direction + pull)
            x[here] = xs
        else:
            if pulled is not None:
                xs = xs.mul_(1.0 - eta * _rows(local.prox, here))
                xs.add_(_rows(pulled, here), alpha=eta)
            xs.sub_(direction, alpha=eta)
            if regulariser is None and not isinstance(here, slice):
                x[here] = xs
        if regulariser is not None:
            xs = regulariser.prox(xs, eta)
            x[here] = xs
        if table is not None and linear is not None:
            linear[here] += _rows(local.table_rate, here) * g
        if local.dual_rate and linear is not None:
            linear[here] += local.dual_rate * (xs - _rows(anchor, here))
        evaluations += int(per_step[active].sum())
        if solver.tolerance is not None:
            residual = _rows(local.scale, here) * _full(problem, xs, ids[active]) + solver.weight_decay * xs
            if linear is not None:
                residual = residual + _rows(linear, here)
            if anchor is not None:
                residual = residual + _rows(local.prox, here) * (xs - _rows(anchor, here))
            reached = (residual.square().sum(-1) <= solver.tolerance).cpu().numpy()
            taken[active[reached]] = k + 1
    count = torch.as_tensor(taken, device=problem.device).to(problem.dtype)[:, None]
    norm = count * torch.nan
    if algorithm.normalised:
        step = plan.lr * local.lr_scale
        norm = normaliser(count, int(steps[0]), local.prox, step, momentum, solver.step_decay, local.scale)
    return Done(x, count, norm, linear, table, buffer), evaluations


def _lbfgs(
    problem: Problem, solver: Solver, local: Local, ids: np.ndarray, steps: np.ndarray, costs: np.ndarray
) -> tuple[Done, int]:
    """Client by client: line searches do not batch."""
    found, taken, evaluations = [], [], 0
    for k, i in enumerate(ids):
        one = Local(
            local.x.expand(len(ids), -1)[k],
            None if local.linear is None else local.linear.expand(len(ids), -1)[k],
            local.prox[k] if isinstance(local.prox, Tensor) else local.prox,
            None if local.anchor is None else local.anchor.expand(len(ids), -1)[k],
            local.scale[k] if isinstance(local.scale, Tensor) else local.scale,
        )
        x, iterations, passes = lbfgs.minimise(problem, solver, one, everything(problem, int(i)), int(steps[k]))
        found.append(x)
        taken.append(iterations)
        evaluations += passes * int(costs[k])
    count = torch.tensor(taken, dtype=problem.dtype, device=problem.device)[:, None]
    return Done(torch.stack(found), count, count * torch.nan), evaluations


def _rows(value: float | Tensor | None, here: slice | Tensor) -> Tensor:
    """These rows of a stacked value; a number or a shared vector as it is."""
    return value[here] if isinstance(value, Tensor) and value.ndim >= 2 else value  # type: ignore[return-value]


def _batches(problem: Problem, plan: Plan, select: np.ndarray) -> tuple[Tensor, Tensor | None]:
    """Sample indices [S, K, B] of every step and their weights (None if no batch is short), moved over once."""
    assert plan.batches is not None
    drawn = [plan.batches[s] for s in select]
    longest, widest = len(drawn[0]), max(batch.shape[1] for batch in drawn)
    local = np.full((len(drawn), longest, widest), -1, np.int64)
    for row, batch in zip(local, drawn, strict=True):
        row[: len(batch), : batch.shape[1]] = batch
    valid = local >= 0
    count = valid.sum(-1, keepdims=True)
    short = any(np.any(batch < 0) or batch.shape[1] < widest for batch in drawn)
    index = np.where(valid, local, 0) + problem.offsets[plan.ids[select]][:, None, None]
    weight = torch.as_tensor(valid / np.maximum(count, 1)).to(problem.dtype) if short else None
    return (
        torch.as_tensor(index).to(problem.device, non_blocking=True),
        None if weight is None else weight.to(problem.device, non_blocking=True),
    )


def _blocks(problem: Problem, plan: Plan, select: np.ndarray) -> Tensor:
    """The block [S, K] of every step."""
    assert plan.blocks is not None
    drawn = [plan.blocks[s] for s in select]
    out = np.zeros((len(drawn), len(drawn[0])), np.int64)
    for row, block in zip(out, drawn, strict=True):
        row[: len(block)] = block
    return torch.as_tensor(out).to(problem.device)


def _full(problem: Problem, x: Tensor, ids: np.ndarray) -> Tensor:
    """Gradients [S, d] over all samples of each client, in slices of bounded memory."""
    first, last = problem.offsets[ids], problem.offsets[ids + 1]
    counts = last - first
    g = None
    for begin in range(0, int(counts.max()), SLICE):
        position = np.arange(begin, min(begin + SLICE, int(counts.max())))[None, :]
        valid = position < counts[:, None]
        index = torch.as_tensor(np.where(valid, first[:, None] + position, first[:, None])).to(problem.device)
        weight = torch.as_tensor(valid / counts[:, None]).to(dtype=problem.dtype, device=problem.device)
        part = problem.gradients(x, index, weight)
        g = part if g is None else g.add_(part)
    assert g is not None
    return g
