"""The default engine: the clients of a cohort trained at once, as rows of one matrix [S, d]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Done, Local, Oracle, Plan, Problem, Tree, tree_bytes, tree_map
from fedconcord.engines import chunk
from fedconcord.engines.base import Outcome, clients_of, cohort_of, oracle_of
from fedconcord.solvers import SGD, ascent, clipped, normaliser
from fedconcord.state import MemoryStore

SLICE = 512  # samples of a client in one pass of a full gradient


@dataclass(frozen=True)
class Stacked:
    """Trains `chunk` clients at a time; "auto" measures once what is fastest here, None takes the whole cohort.

    Clients are sorted by their number of steps, most first, and step k runs on the prefix that still has one: unequal
    clients cost their own steps.
    """

    chunk: int | Literal["auto"] | None = "auto"

    def resolve(self, problem: Problem, plan: Plan) -> Stacked:
        """This engine with its chunk a number, for rounds like this one."""
        if self.chunk == "auto":
            return Stacked(chunk.auto(problem, plan))
        return Stacked(min(self.chunk or len(plan.ids), len(plan.ids)))

    def round(
        self, problem: Problem, algorithm: Algorithm, solver: SGD, server: Tree, store: MemoryStore, plan: Plan
    ) -> Outcome:
        """One round, as `core` states it."""
        cohort = cohort_of(problem, plan)
        down = algorithm.broadcast(server)
        order = np.argsort(-plan.steps, kind="stable")
        width = self.resolve(problem, plan).chunk
        assert isinstance(width, int)
        total: Tree = None
        bytes_up = 0
        for begin in range(0, len(order), width):
            select = order[begin : begin + width]
            ids = plan.ids[select]
            rows = store.gather(ids)
            gradient = None
            if algorithm.full_gradient:
                shared = server.x.expand(len(ids), -1)
                gradient = _full(problem, shared, problem.offsets[ids], problem.offsets[ids + 1])
            client = clients_of(problem, plan, select, gradient)
            local = algorithm.start(down, rows, client)
            done = _solve(problem, solver, oracle_of(algorithm, solver), local, plan, select)
            up, rows = algorithm.finish(down, rows, done, client)
            share = tree_map(lambda leaf: leaf.sum(0), algorithm.contribute(up, client, cohort))
            total = share if total is None else tree_map(torch.add, total, share)
            bytes_up += tree_bytes(up)
            store.scatter(ids, rows)
        server = algorithm.update(server, total, cohort)
        if algorithm.settle is not None:
            for begin in range(0, len(order), width):
                ids = plan.ids[order[begin : begin + width]]
                store.scatter(ids, algorithm.settle(down, server, store.gather(ids)))
        extra = len(plan.ids) if algorithm.full_gradient else 0
        return Outcome(server, len(plan.ids) * tree_bytes(down), bytes_up, int(plan.steps.sum()) + extra)


def _solve(problem: Problem, solver: SGD, oracle: Oracle, local: Local, plan: Plan, select: np.ndarray) -> Done:
    """The local loop for the clients `select`, sorted by steps, most first."""
    ids, steps = plan.ids[select], plan.steps[select]
    x = local.x.expand(len(select), -1).clone()  # [S, d], updated in place
    # the step has one affine form: x <- (1 - lr rho) x - lr (filter(kappa g + wd x + linear) - rho anchor)
    shift = None  # [S, d] or [d]
    keep: float | Tensor = 1.0
    if local.anchor is not None and (isinstance(local.prox, Tensor) or local.prox != 0.0):
        shift, keep = local.prox * local.anchor, 1.0 - plan.lr * local.prox
    buffer: Tensor | None = None
    full = plan.batches is None or oracle.kind == "full"
    index, weight = (None, None) if full else _batches(problem, plan, select)
    for k in range(int(steps[0])):
        m = int(np.count_nonzero(steps > k))
        xs = x[:m]

        def gradient(at: Tensor, k: int = k, m: int = m) -> Tensor:
            if index is None:
                return _full(problem, at, problem.offsets[ids[:m]], problem.offsets[ids[:m] + 1])
            return problem.gradients(at, index[:m, k], None if weight is None else weight[:m, k])

        g = gradient(xs)
        if oracle.kind == "sam":
            g = gradient(ascent(xs, g, oracle.radius))
        g = clipped(g, solver.clip)
        if local.scale != 1.0:
            g = local.scale * g
        if solver.weight_decay:
            g = g.add(xs, alpha=solver.weight_decay)
        if local.linear is not None:
            g = g + _rows(local.linear, m)
        if solver.momentum:
            buffer = g if buffer is None else buffer[:m].mul_(solver.momentum).add_(g)
            g = buffer
        if shift is not None:
            xs.mul_(_rows(keep, m)).add_(_rows(shift, m), alpha=plan.lr)
        xs.sub_(g, alpha=plan.lr)
    count = torch.as_tensor(steps, device=problem.device).to(problem.dtype)[:, None]
    return Done(x, count, normaliser(count, local.prox, plan.lr, solver.momentum))


def _rows(value: float | Tensor, m: int) -> float | Tensor:
    """The first m rows of a stacked value; a number or a shared vector as it is."""
    return value[:m] if isinstance(value, Tensor) and value.ndim == 2 else value


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


def _full(problem: Problem, x: Tensor, first: np.ndarray, last: np.ndarray) -> Tensor:
    """Gradients [S, d] over all samples first .. last-1 of each client, in slices of bounded memory."""
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
