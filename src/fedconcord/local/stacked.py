"""The local loop of stacked clients [S, d]: one definition, and a shorter one where the gradient need not be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Accumulate, Done, Drawn, Local, Objective, Oracle, Orders, Regulariser
from fedconcord.local import compiled, lbfgs
from fedconcord.local.duty import Duty, local_regulariser
from fedconcord.local.graphs import Graphs
from fedconcord.local.solver import Solver, ascent, clipped, momentum_of, normaliser

SLICE = 512  # samples of a client in one pass of a full gradient


def solve(
    objective: Objective,
    duty: Duty,
    local: Local,
    places: np.ndarray,
    orders: Sequence[Orders],
    whole: bool = False,
    graphs: Graphs | None = None,
) -> tuple[Done, int]:
    """The local loop of clients, sorted by steps, most first; and the mini-batch gradients it took.

    Args:
        whole: all steps of a client in one compiled call, as `local.compiled.suits` this job.
        graphs: where to record and replay steps whose kernels are the same every round.
    """
    algorithm, solver, oracle = duty.algorithm, duty.solver, duty.oracle
    regulariser, lr = local_regulariser(objective, algorithm), orders[0].lr
    counts, steps = objective.counts(places), np.array([order.steps for order in orders], np.int64)
    cost = duty.draws.full_cost(algorithm, counts)  # of a full gradient
    if solver.kind == "lbfgs":
        return _lbfgs(objective, solver, local, places, steps, cost)
    mine = [duty.draws.draw(algorithm, order, int(n)) for order, n in zip(orders, counts, strict=True)]
    momentum = momentum_of(solver, local)
    full = mine[0].batches is None or oracle.kind == "full"
    samples = _everything(objective, places) if full else _batches(objective, places, mine)
    each = (1 + (oracle.kind == "sam") + (local.snapshot is not None)) * (cost if oracle.kind == "full" else 1)
    each = each + (cost if solver.tolerance is not None else 0)

    def loop(given: tuple[Local, Samples | None]) -> tuple[Moved, np.ndarray, int]:
        local, drawn = given
        x = local.x.expand(len(places), -1).clone()  # [S, d], updated in place
        if whole and objective.network is not None and drawn is not None:
            blocks = None if mine[0].blocks is None else _blocks(objective, mine)
            rest = compiled.steps(objective.network, duty, local, lr, x, drawn.samples, drawn.weight, blocks, steps)
            return Moved(x, *rest), steps, int((each * steps).sum())
        accumulate = _fused(objective, solver, local, momentum)
        if accumulate is not None and drawn is not None:
            linear, buffer = _short(accumulate, solver, oracle, regulariser, local, lr, x, drawn, steps)
            return Moved(x, linear, local.table, buffer, None), steps, int((each * steps).sum())
        x, linear, table, buffer, tilt, taken, evaluations = _general(
            objective, solver, oracle, regulariser, local, places, mine, lr, x, drawn, steps, each
        )
        return Moved(x, linear, table, buffer, tilt), taken, evaluations

    if graphs is not None and samples is not None and _static(solver, local):
        numbers = solver, oracle, algorithm.regularise, lr, steps.tobytes()
        moved = graphs.run(objective, numbers, lambda given: loop(given)[0], (local, samples))
        taken, evaluations = steps, int((each * steps).sum())
    else:
        moved, taken, evaluations = loop((local, samples))
    x, linear, table, buffer, tilt = moved
    count = torch.as_tensor(taken, device=objective.device).to(objective.dtype)[:, None]
    norm = count * torch.nan
    if algorithm.needs_normaliser:
        step = lr * local.lr_scale
        norm = normaliser(
            count, int(steps[0]), local.prox, step, momentum, solver.step_decay, local.scale, solver.nesterov
        )
    return Done(x, count, norm, linear, table, buffer, tilt), evaluations


class Moved(NamedTuple):
    """What the steps of clients end with."""

    x: Tensor  # [S, d]
    linear: Tensor | None
    table: Tensor | None
    buffer: Tensor | None
    tilt: Tensor | None


def _static(solver: Solver, local: Local) -> bool:
    """Whether the steps of every round are the same kernels: no value, block or matrix is looked at from the host."""
    return solver.tolerance is None and local.table is None and local.metric is None


def _fused(objective: Objective, solver: Solver, local: Local, momentum: float) -> Accumulate | None:
    """The problem's kernel where a step only adds the gradient, times a number, to the model or the momentum buffer.

    That is where nothing acts on the gradient alone (clip, table) or on the direction (clip_direction, nesterov,
    metric), SAM's ascent is its own, no tolerance asks for more, clients share the numbers rho and kappa, and there is
    no dual rate beside a buffer.
    """
    filtered = momentum or local.buffer is not None
    plain = (
        not (solver.clip or solver.clip_direction or solver.nesterov)
        and not (solver.tolerance is not None or (local.dual_rate and filtered))
        and local.table is None
        and local.metric is None
        and local.tilt is None
        and not any(isinstance(number, Tensor) for number in (local.prox, local.scale))
    )
    return objective.accumulate if plain else None


def _short(
    accumulate: Accumulate,
    solver: Solver,
    oracle: Oracle,
    regulariser: Regulariser | None,
    local: Local,
    lr: float,
    x: Tensor,
    drawn: Samples,
    steps: np.ndarray,
) -> tuple[Tensor | None, Tensor | None]:
    """The steps where the gradient is only added: x [S, d] in place; linear and buffer as they ended.

    Without a buffer a step is x <- (1 - eta (rho + wd)) x - eta kappa g - eta b with b = linear - rho anchor.
    """
    momentum, kappa = momentum_of(solver, local), float(local.scale)
    linear, rho, pulled, buffer = local.linear, 0.0, None, local.buffer
    if local.anchor is not None and local.prox != 0.0:
        rho, pulled = float(local.prox), local.prox * local.anchor
    if buffer is not None:
        buffer = buffer.expand(len(x), -1).clone()
    elif momentum:
        buffer = torch.zeros_like(x)
    elif pulled is not None:
        linear = -pulled if linear is None else linear - pulled
    dual = 0.0 if local.linear is None or local.anchor is None else local.dual_rate
    if dual and linear is not None:
        linear = linear.expand(len(x), -1).clone()
    snapshot = None if local.snapshot is None else local.snapshot.expand(len(x), -1)
    above = torch.empty_like(x) if oracle.kind == "sam" else None
    alive = (steps[:, None] > np.arange(steps[0])).sum(0).tolist()  # a prefix, as clients are sorted
    for k, m in enumerate(alive):
        here = slice(0, m)
        xs, (samples, weight) = x[here], drawn.step(here, k)
        eta = lr * local.lr_scale * solver.step_decay**k
        at = xs
        if above is not None:
            accumulate(above[here], 0.0, 1.0, xs, samples, weight)
            at = ascent(xs, above[here], oracle.radius, out=above[here])
        into, beta, rate = xs, 1.0 - eta * (rho + solver.weight_decay), -eta
        if buffer is not None:
            into, beta, rate = buffer[here], momentum, 1.0
        accumulate(into, beta, rate * kappa, at, samples, weight)
        if snapshot is not None:
            accumulate(into, 1.0, -rate * kappa, snapshot[here], samples, weight)
        if linear is not None:
            into.add_(_rows(linear, here), alpha=rate)
        if buffer is not None:
            if solver.weight_decay:
                into.add_(xs, alpha=solver.weight_decay)
            if pulled is not None:
                xs.mul_(1.0 - eta * rho).add_(_rows(pulled, here), alpha=eta)
            xs.sub_(into, alpha=eta)
        if regulariser is not None:
            xs.copy_(regulariser.prox(xs, eta))
        if dual and linear is not None:
            linear[here].add_(xs, alpha=dual).sub_(_rows(local.anchor, here), alpha=dual)
    if not dual:
        return local.linear, buffer
    return linear if pulled is None or linear is None else linear + pulled, buffer


def _general(
    objective: Objective,
    solver: Solver,
    oracle: Oracle,
    regulariser: Regulariser | None,
    local: Local,
    places: np.ndarray,
    mine: Sequence[Drawn],
    lr: float,
    x: Tensor,
    drawn: Samples | None,
    steps: np.ndarray,
    per_step: np.ndarray | int,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, np.ndarray, int]:
    """The steps as `core.Local` and `local.solver` state them; x, linear, table, buffer, tilt, taken, evaluations.

    The affine form: x <- (1 - eta rho) x - eta (filter(kappa g + wd x + linear) - rho anchor).
    """
    linear = local.linear
    if linear is not None and (local.table is not None or local.dual_rate):
        linear = linear.expand(len(x), -1).clone()
    table = None if local.table is None else local.table.clone()  # [S, M, d]
    buffer = None if local.buffer is None else local.buffer.expand(len(x), -1).clone()
    tilt = None if local.tilt is None else local.tilt.own.expand(len(x), -1).clone()
    momentum = momentum_of(solver, local)
    anchor, pulled = local.anchor, None
    if anchor is not None and (isinstance(local.prox, Tensor) or local.prox != 0.0):
        pulled = local.prox * anchor  # [S, d] or [d], once and not at every step
    snapshot = None if local.snapshot is None else local.snapshot.expand(len(x), -1)
    blocks = None if mine[0].blocks is None else _blocks(objective, mine)
    released = solver.clip_direction is not None and solver.clip_form == "released"
    each = np.broadcast_to(per_step, len(x))
    taken = steps.copy()
    evaluations = 0
    active = np.arange(len(x))  # shrinks with the steps, or where a client meets the tolerance
    for k in range(int(steps[0])):
        active = active[steps[active] > k] if solver.tolerance is None else active[taken[active] > k]
        m = len(active)
        if m == 0:
            break
        whole = m == active[-1] + 1  # a prefix: views instead of gathers
        here: slice | Tensor = slice(0, m) if whole else torch.as_tensor(active, device=x.device)
        xs = x[here]

        def gradient(at: Tensor, k: int = k, here: slice | Tensor = here, active: np.ndarray = active) -> Tensor:
            return (
                full_gradient(objective, at, places[active])
                if drawn is None
                else objective.gradients(at, *drawn.step(here, k))
            )

        g = gradient(xs)  # ours: changed in place from here on
        if oracle.kind == "sam":
            if local.tilt is not None and tilt is not None:
                g = g.sub_(tilt[here]).sub_(_rows(local.tilt.common, here))
            above = ascent(xs, g, oracle.radius)
            if local.tilt is not None and tilt is not None:
                tilt[here] += above - xs - _rows(local.tilt.common, here)
            g = gradient(above)
        if snapshot is not None:
            g = g.sub_(gradient(snapshot[here]))
        g = direction = clipped(g, solver.clip)
        if table is not None:
            assert blocks is not None
            rows = torch.arange(m, device=x.device) if isinstance(here, slice) else here
            entry = (rows, blocks[here, k])
            before = table[entry]
            table[entry] = g
            direction = g.sub_(before).clone()  # g still moves `linear` below
        if isinstance(local.scale, Tensor) or local.scale != 1.0:
            direction.mul_(_rows(local.scale, here))
        if solver.weight_decay and not released:
            direction.add_(xs, alpha=solver.weight_decay)
        if linear is not None:
            direction.add_(_rows(linear, here))
        if released:
            constant = direction if pulled is None else direction.sub_(_rows(pulled, here))
            direction = clipped(constant, solver.clip_direction).add(xs, alpha=solver.weight_decay)
        if momentum or buffer is not None:
            if buffer is None:
                buffer = torch.zeros_like(x)
            kept = buffer[here].mul_(momentum).add_(direction)
            if not isinstance(here, slice):
                buffer[here] = kept
            direction = direction.add(kept, alpha=momentum) if solver.nesterov else kept
        eta = lr * local.lr_scale * solver.step_decay**k
        if local.metric is not None:
            pull = _rows(local.prox, here) * (xs - _rows(anchor, here)) if anchor is not None else 0.0
            xs.sub_(torch.linalg.solve(_rows(local.metric, here), direction + pull), alpha=eta)
        elif solver.clip_direction is not None:
            if released:
                step = direction if pulled is None else direction + _rows(local.prox, here) * xs
            else:
                pull = 0.0 if pulled is None else _rows(local.prox, here) * xs - _rows(pulled, here)
                step = clipped(direction + pull, solver.clip_direction)
            xs.sub_(step, alpha=eta)
        else:
            if pulled is not None:
                xs.mul_(1.0 - eta * _rows(local.prox, here)).add_(_rows(pulled, here), alpha=eta)
            xs.sub_(direction, alpha=eta)
        if regulariser is not None:
            xs.copy_(regulariser.prox(xs, eta))
        if not isinstance(here, slice):
            x[here] = xs
        if table is not None and linear is not None:
            linear[here] = linear[here] + _rows(local.table_rate, here) * g
        if local.dual_rate and linear is not None:
            linear[here] += local.dual_rate * (xs - _rows(anchor, here))
        evaluations += int(each[active].sum())
        if solver.tolerance is not None:
            residual = (
                _rows(local.scale, here) * full_gradient(objective, xs, places[active]) + solver.weight_decay * xs
            )
            if linear is not None:
                residual = residual + _rows(linear, here)
            if anchor is not None:
                residual = residual + _rows(local.prox, here) * (xs - _rows(anchor, here))
            reached = (residual.square().sum(-1) <= solver.tolerance).cpu().numpy()
            taken[active[reached]] = k + 1
    return x, linear, table, buffer, tilt, taken, evaluations


def _lbfgs(
    objective: Objective, solver: Solver, local: Local, places: np.ndarray, steps: np.ndarray, costs: np.ndarray
) -> tuple[Done, int]:
    """Client by client: line searches do not batch."""
    found, taken, evaluations = [], [], 0
    for k, i in enumerate(places):
        one = Local(
            local.x.expand(len(places), -1)[k],
            None if local.linear is None else local.linear.expand(len(places), -1)[k],
            local.prox[k] if isinstance(local.prox, Tensor) else local.prox,
            None if local.anchor is None else local.anchor.expand(len(places), -1)[k],
            local.scale[k] if isinstance(local.scale, Tensor) else local.scale,
        )
        x, iterations, passes = lbfgs.minimise(objective, solver, one, objective.samples(int(i)), int(steps[k]))
        found.append(x)
        taken.append(iterations)
        evaluations += passes * int(costs[k])
    count = torch.tensor(taken, dtype=objective.dtype, device=objective.device)[:, None]
    return Done(torch.stack(found), count, count * torch.nan), evaluations


def _rows(value: float | Tensor | None, here: slice | Tensor) -> Tensor:
    """These rows of a stacked value; a number or a shared vector as it is."""
    return value[here] if isinstance(value, Tensor) and value.ndim >= 2 else value  # type: ignore[return-value]


class Samples(NamedTuple):
    """The samples of every step."""

    samples: Tensor  # [S, K, B], or [S, 1, B] where all steps use the same
    weight: Tensor | None  # of the same shape; None: 1/B each

    def step(self, here: slice | Tensor, k: int) -> tuple[Tensor, Tensor | None]:
        """Those of step k for these clients."""
        k = k if self.samples.shape[1] > 1 else 0
        return self.samples[here, k], None if self.weight is None else self.weight[here, k]


def _batches(objective: Objective, places: np.ndarray, mine: Sequence[Drawn]) -> Samples:
    """Mini-batches, moved over once."""
    drawn = [one.batches for one in mine if one.batches is not None]
    longest, widest = len(drawn[0]), max(batch.shape[1] for batch in drawn)
    local = np.full((len(drawn), longest, widest), -1, np.int64)
    for row, batch in zip(local, drawn, strict=True):
        row[: len(batch), : batch.shape[1]] = batch
    valid = local >= 0
    count = valid.sum(-1, keepdims=True)
    short = any(np.any(batch < 0) or batch.shape[1] < widest for batch in drawn)
    index = np.where(valid, local, 0) + objective.offsets[places][:, None, None]
    weight = torch.as_tensor(valid / np.maximum(count, 1)).to(objective.dtype) if short else None
    return Samples(
        torch.as_tensor(index).to(objective.device, non_blocking=True),
        None if weight is None else weight.to(objective.device, non_blocking=True),
    )


def _everything(objective: Objective, places: np.ndarray) -> Samples | None:
    """All samples of each client, the same at every step; None if they are too many for one pass."""
    longest = int(objective.counts(places).max())
    if longest > SLICE:
        return None
    index, weight = _slice(objective, places, 0, longest)
    return Samples(index[:, None], None if weight is None else weight[:, None])


def _slice(objective: Objective, places: np.ndarray, begin: int, end: int) -> tuple[Tensor, Tensor | None]:
    """Samples `begin` to `end` of each client [S, B] and their weights in its mean; None for 1/B each."""
    first, counts = objective.offsets[places], objective.counts(places)
    position = np.arange(begin, end)[None, :]
    valid = position < counts[:, None]
    index = torch.as_tensor(first[:, None] + np.where(valid, position, 0)).to(objective.device)
    if begin == 0 and (counts == end).all():
        return index, None
    return index, torch.as_tensor(valid / counts[:, None]).to(dtype=objective.dtype, device=objective.device)


def _blocks(objective: Objective, mine: Sequence[Drawn]) -> Tensor:
    """The block [S, K] of every step."""
    drawn = [one.blocks for one in mine if one.blocks is not None]
    out = np.zeros((len(drawn), len(drawn[0])), np.int64)
    for row, block in zip(out, drawn, strict=True):
        row[: len(block)] = block
    return torch.as_tensor(out).to(objective.device)


def full_gradient(objective: Objective, x: Tensor, places: np.ndarray) -> Tensor:
    """Gradients [S, d] over all samples of each client, in slices of bounded memory."""
    longest = int(objective.counts(places).max())
    g = None
    for begin in range(0, longest, SLICE):
        part = objective.gradients(x, *_slice(objective, places, begin, min(begin + SLICE, longest)))
        g = part if g is None else g.add_(part)
    assert g is not None
    return g
