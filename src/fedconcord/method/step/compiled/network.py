"""The local steps of fully connected networks, compiled: all K steps of a client in one call without Python's lock.

A step reads the weights twice and writes them once: the gradient of a few rows of a layer is added to them, or stays in
the second cache, where `move` makes the step of it. `step.walk` is what they have to come to.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedconcord.method.step.compiled.arrays import CROSS_ENTROPY, LOGISTIC, NONE, PLAIN
from fedconcord.method.step.compiled.moves import (
    Mine,
    directed,
    gauge,
    move,
    norm,
    of_client,
    row,
    second,
    stride,
    turned,
)
from fedconcord.method.step.compiled.products import (
    OPTIONS,
    UINT,
    add,
    clear,
    compiled,
    mix,
    outputs,
    scale,
    slopes,
    updates,
)

# -- a gradient ----------------------------------------------------------------------------------------------------


@compiled
def read(net, i, a, p):
    """A sample into the activations at p."""
    n, p = UINT(net.widths[0]), UINT(p)
    if len(net.bytes) > 0:
        run = n // UINT(len(net.table))
        for c in range(len(net.table)):
            begin, table, sample = UINT(c) * run, net.table[c], net.bytes[i]
            for j in range(run):
                a[p + begin + j] = table[UINT(sample[begin + j])]
    elif len(net.narrow) > 0:
        sample32 = net.narrow[i]
        for j in range(n):
            a[p + j] = sample32[j]
    else:
        sampled = net.inputs[i]
        for j in range(n):
            a[p + j] = sampled[j]


@compiled
def gather(net, draw, own, s, k):
    """The samples of a client's step k side by side; how many there are."""
    n, B, even = net.widths[0], 0, draw.weight.size == 0
    for b in range(draw.samples.shape[2]):
        if even or draw.weight[s, k, b] != 0:
            i = draw.samples[s, k, b]
            own.labels[B] = i
            own.share[B] = 1 / draw.samples.shape[2] if even else draw.weight[s, k, b]
            read(net, net.order[i] if len(net.order) > 0 else i, own.activations, B * n)
            B += 1
    return B


@compiled
def forward(net, own, x, B, factor):
    """Activations of the batch at x, and in `above` factor x the derivative of its loss by the outputs."""
    L, zero, a = len(net.widths) - 1, x.dtype.type(0), own.activations
    for layer in range(L):
        n, m = net.widths[layer], net.widths[layer + 1]
        w, q = own.first[layer], own.place[layer + 1]
        outputs(x, w, m, n, a, own.place[layer], B, a, q)
        for b in range(B):
            bias, z = UINT(w + m * n), UINT(q + b * m)
            for i in range(UINT(m)):
                v = a[z + i] + x[bias + i]
                a[z + i] = zero if layer < L - 1 and v <= zero else v
    m, q = net.widths[L], own.place[L]
    for b in range(B):
        z, f, i = q + b * m, factor * own.share[b], own.labels[b]
        if net.loss == CROSS_ENTROPY:
            top, total = a[z], zero
            for j in range(m):
                top = max(top, a[z + j])
            for j in range(m):
                e = np.exp(a[z + j] - top)
                own.above[b * m + j] = e
                total += e
            for j in range(m):
                own.above[b * m + j] *= f / total
            own.above[b * m + net.classes[i]] -= f
        else:
            for j in range(m):
                answer = a[z + j]
                if net.loss == LOGISTIC:
                    answer = x.dtype.type(1) / (x.dtype.type(1) + np.exp(-answer))
                own.above[b * m + j] = f * (answer - net.targets[i, j]) / x.dtype.type(m)


STORE, ADD, HEAVY_BALL, MOVE, DIRECT = range(5)


@compiled
def backward(net, own, terms, optimiser, mine, at, B, mode, keep):
    """What is to be done with the gradient at `at`, some rows of a layer after the other, last layer first.

    STORE: own.gradient <- keep own.gradient + gradient, keep 0 or 1. ADD: x <- keep x - eta linear + gradient.
    HEAVY_BALL: the same to the momentum buffer, and x <- keep x - eta buffer + pull anchor. MOVE: as `move` has it, or
    with an optimiser `turned`.
    DIRECT: own.gradient <- gradient + linear + (rho + weight decay) x, and own.sums as `gauge` has them.
    """
    zero, one, a = at.dtype.type(0), at.dtype.type(1), own.activations
    f, before = own.above, own.below
    for layer in range(len(net.widths) - 2, -1, -1):
        n, m, p = net.widths[layer], net.widths[layer + 1], own.place[layer]
        first = own.first[layer]
        if layer > 0:
            slopes(before, n, at, first, m, f, B)
            q = UINT(p)
            for i in range(UINT(B * n)):
                before[i] = before[i] if a[q + i] > zero else zero
        most = m if mode == ADD else own.rows[layer]
        for r in range((m + most - 1) // most * most, -1, -most):  # its biases, then its rows: those read last first
            rows = min(most, m - r)
            lo, size = first + r * n, rows * n
            if rows <= 0:
                lo, size = first + m * n, m
            into, w, u, e, kept = mine.x, lo, mine.linear, -mine.eta, keep
            if mode == HEAVY_BALL:
                into, e, kept = mine.buffer, one, terms.momentum
            elif mode != ADD:
                into, w, kept = (own.tile, 0, one) if mode == MOVE else (own.gradient, lo, one)
                e = one if mode == DIRECT else zero
                if mode != STORE or keep == 0:
                    clear(into, w, size)  # what there was may not be finite
            if len(u) == 0:
                e = zero
            if rows > 0:
                updates(into, w, rows, n, a, p, B, f, r, m, kept, u, e)
            else:
                if e != 0:
                    mix(into, w, size, kept, u, w, e)
                elif kept != 1:
                    scale(into, w, size, kept)
                for b in range(B):
                    add(into, w, m, f, b * m, one)
            if mode == MOVE and optimiser.kind == PLAIN:
                move(terms, mine, own.tile, 0, lo, size)
            elif mode == MOVE:
                turned(terms, optimiser, mine, own.tile, 0, lo, size)
            elif mode == DIRECT:
                rate = mine.rho + terms.weight_decay
                gauge(terms, own.gradient, own.last, mine.x, lo, size, rate, own.sums, own.sums[2] > 0)
            elif mode == HEAVY_BALL:
                if terms.weight_decay != 0:
                    add(into, w, size, mine.x, lo, terms.weight_decay)
                mix(mine.x, lo, size, keep, mine.buffer, lo, -mine.eta)
                if len(mine.anchor) > 0:
                    add(mine.x, lo, size, mine.anchor, lo, mine.pull)
        f, before = before, f


# -- a step --------------------------------------------------------------------------------------------------------


@compiled
def ascend(terms, tilt, common, x, g, point):
    """SAM's point above x by the gradient g, which is overwritten; and the tilt's move."""
    if len(tilt) > 0:
        for i in range(len(x)):
            g[i] -= tilt[i] + common[i]
    reach = terms.radius / (norm(g) + x.dtype.type(1e-7))
    for i in range(len(x)):
        point[i] = x[i] + reach * g[i]
    if len(tilt) > 0:
        for i in range(len(x)):
            tilt[i] += point[i] - x[i] - common[i]


@compiled
def mixed(further, share, beside, x, g):
    """APFL's first step, by the gradient g at the mixture of v, which is `beside.x`, and x: of v, and of v's share."""
    v, zero, one = beside.x, x.dtype.type(0), x.dtype.type(1)
    slope = zero
    for i in range(len(x)):
        slope += (v[i] - x[i]) * g[i]
    mix(v, 0, len(v), one + beside.eta, g, 0, share[0] * beside.scale)
    if beside.eta != 0:
        add(v, 0, len(v), beside.linear, 0, -beside.eta)
    if further.share_rate != 0:
        share[0] = min(max(share[0] - further.share_rate * slope, zero), one)


BESIDE, ASCENT, REFERENCE, DESCENT = range(4)  # the gradients of a step; before them those of steps inside


@njit(**OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True})  # called by address
def cohort(net, draw, terms, further, optimiser, x, own):
    """All steps of the clients of a cohort; x [S, d] in place, own of `scratch`."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    ascends, refers, ruled = terms.radius > 0, terms.snapshot.size > 0, terms.rule != NONE
    whole = refers or further.nested or terms.clip > 0
    added = terms.table.size == 0 and terms.dual_rate == 0 and not terms.nesterov and optimiser.kind == PLAIN
    for s in range(len(x)):
        linear, anchor, buffer = row(terms.linear, s), row(terms.anchor, s), row(terms.buffer, s)
        snapshot, start, mean, table = row(terms.snapshot, s), row(terms.start, s), row(terms.mean, s), buffer[:0]
        point, share, shift = row(further.point, s), row(further.share, s), row(further.shift, s)
        inner = second(point, x[s], further.inner_eta, further.lam)
        beside = second(row(further.beside, s), row(further.beside_anchor, s), further.beside_eta, further.beside_pull)
        for k in range(draw.steps[s]):
            if k == 0 or draw.samples.shape[1] > 1:
                B = gather(net, draw, own, s, k)
            if terms.table.size > 0:
                table = terms.table[s, draw.blocks[s, k]]
            eta = terms.eta[k]
            rho, pull = terms.prox[s], eta * terms.prox[s]
            mine = Mine(x[s], eta, terms.scale[s], pull, linear, anchor, buffer, table, mean, terms.table_rate[s], rho)
            if k == 0 or optimiser.kind != PLAIN:
                now = of_client(optimiser, s, own.corrections)
            own.sums[:] = zero
            own.sums[2] = one if k == 0 else zero
            for i in range(x.shape[1] if further.inner > 0 else 0):
                point[i] = mine.x[i]
            for turn in range(-further.inner, 4):
                at, moves, factor, mode, keep = mine.x, mine, one, STORE, zero
                if turn <= BESIDE:
                    moves = inner if turn < BESIDE else beside
                    if len(moves.x) == 0:
                        continue
                    at, mode, factor, keep = moves.x, ADD, moves.scale, one + moves.eta
                    if turn == BESIDE and further.share.size > 0:
                        at = point
                        for i in range(x.shape[1]):
                            point[i] = mine.x[i] + share[0] * (moves.x[i] - mine.x[i])
                        factor *= share[0]
                        if k == 0:
                            mode, factor, keep = STORE, one, zero
                elif turn == ASCENT:
                    if not ascends:
                        continue
                elif turn == REFERENCE:
                    if not refers:
                        continue
                    at, factor = snapshot, -one
                else:
                    for i in range(len(shift)):
                        point[i] = mine.x[i] + shift[i]
                    at = point if ascends or further.inner > 0 or len(shift) > 0 else mine.x
                    if whole:
                        keep = one if refers else zero
                    elif ruled and added and len(anchor) == 0:
                        mode, factor = DIRECT, mine.scale
                    elif ruled:
                        pass
                    elif added and len(buffer) > 0:
                        mode, factor, keep = HEAVY_BALL, mine.scale, one - pull
                    elif added:
                        mode, factor = ADD, -eta * mine.scale
                        keep = one - pull - eta * terms.weight_decay
                    else:
                        mode = MOVE
                    if further.nested:
                        for i in range(x.shape[1]):  # what there was may not be finite
                            away = further.lam * (mine.x[i] - point[i])
                            own.gradient[i] = away if keep == 0 else own.gradient[i] + away
                        continue
                forward(net, own, at, B, factor)
                backward(net, own, terms, now, moves, at, B, mode, keep)
                if turn == BESIDE and mode == STORE:
                    mixed(further, share, beside, mine.x, own.gradient)
                if turn == ASCENT:
                    ascend(terms, row(terms.tilt, s), row(terms.common, s), mine.x, own.gradient, point)
            if whole:
                add(own.gradient, 0, terms.reference.shape[1], row(terms.reference, s), 0, one)
                long = norm(own.gradient) if terms.clip > 0 else zero
                if long > terms.clip:
                    scale(own.gradient, 0, x.shape[1], terms.clip / long)
                if not ruled:
                    move(terms, mine, own.gradient, 0, 0, x.shape[1])
            if ruled:
                if mode == STORE:
                    directed(terms, mine, own.gradient, own.last, own.sums, k == 0)
                stride(terms, mine, own.gradient, own.last, terms.pace[s], start, own.sums, k, row(terms.etas, s))
