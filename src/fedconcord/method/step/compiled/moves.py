"""The step that a gradient makes, compiled: of the round's size, or of one that a rule finds (`step.sizes`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fedconcord.method.step.compiled.arrays import ADAMW, DELTA, LION, NORMED, Optimiser
from fedconcord.method.step.compiled.products import UINT, add, compiled, mix, scale

SIZE = 0  # of every rule's state; then
RATIO, MOVED, LIMIT, CURVATURE = range(1, 5)
FAR, FIRST, SQUARES = range(1, 4)
OPENING, POWER = range(1, 3)
TINY = np.finfo(np.float32).tiny


class Mine(NamedTuple):
    """`Terms` of one client at one step."""

    x: np.ndarray  # [d], in place
    eta: float
    scale: float
    pull: float  # eta rho
    linear: np.ndarray  # [d], or [0] where there is none; so the next
    anchor: np.ndarray
    buffer: np.ndarray
    table: np.ndarray  # of the step's block
    mean: np.ndarray
    table_rate: float
    rho: float


@compiled
def second(x, anchor, eta, pull):
    """A second model x <- (1 - eta pull) x - eta g + eta pull anchor: its `eta` is -eta pull, its `scale` -eta."""
    none, zero = x[:0], x.dtype.type(0)
    return Mine(x, -eta * pull, -eta, zero, anchor, none, none, none, none, zero, zero)


@compiled
def direct(terms, mine, g, begin, lo, size):
    """The gradient g [begin : begin + size] becomes the direction of x [lo : lo + size]; tables and duals move."""
    begin, lo, size = UINT(begin), UINT(lo), UINT(size)
    linear, table, mean = mine.linear, mine.table, mine.mean
    if len(table) > 0:
        for i in range(size):
            now = g[begin + i]
            news = now - table[lo + i]
            table[lo + i] = now
            g[begin + i] = mine.scale * (news + mean[lo + i])
            mean[lo + i] += mine.table_rate * news
        if len(linear) > 0:
            add(g, begin, size, linear, lo, g.dtype.type(1))
    elif len(linear) > 0:
        for i in range(size):
            g[begin + i] = mine.scale * g[begin + i] + linear[lo + i]
    elif mine.scale != 1:
        scale(g, begin, size, mine.scale)
    if terms.weight_decay != 0:
        add(g, begin, size, mine.x, lo, terms.weight_decay)


@compiled
def move(terms, mine, g, begin, lo, size):
    """The step x [lo : lo + size] by the gradient g [begin : begin + size], which it overwrites: `step.walk`."""
    direct(terms, mine, g, begin, lo, size)
    begin, lo, size = UINT(begin), UINT(lo), UINT(size)
    x, linear, buffer, anchor = mine.x, mine.linear, mine.buffer, mine.anchor
    eta, momentum, keep = mine.eta, terms.momentum, x.dtype.type(1) - mine.pull
    if len(buffer) > 0:
        for i in range(size):
            buffer[lo + i] = momentum * buffer[lo + i] + g[begin + i]
            g[begin + i] = g[begin + i] + momentum * buffer[lo + i] if terms.nesterov else buffer[lo + i]
    if len(anchor) == 0:
        mix(x, lo, size, keep, g, begin, -eta)
        return
    for i in range(size):
        x[lo + i] = keep * x[lo + i] + (mine.pull * anchor[lo + i] - eta * g[begin + i])
    if terms.dual_rate != 0:
        for i in range(size):
            linear[lo + i] += terms.dual_rate * (x[lo + i] - anchor[lo + i])


@njit(inline="always")
def row(values, s):
    """A client's, or what all share; [0] of nothing."""
    return values[min(s, len(values) - 1)]


@compiled
def of_client(all, s, corrections):
    """The optimiser of client s in its next step, with `corrections` for `t`."""
    if all.t.size > 0:
        all.t[s, 0] += 1
        for i, beta in enumerate((all.beta, all.beta2)):
            corrections[i] = 1 / (1 - beta ** all.t[s, 0])
    m, raw, second, total = row(all.m, s), row(all.raw, s), row(all.second, s), row(all.total, s)
    return Optimiser(all.kind, m, raw, second, total, corrections, all.beta, all.beta2, all.eps, all.decay)


@compiled
def sign(v, one):
    """Torch's: 0 for NaN."""
    return one if v > 0 else -one if v < 0 else one - one


@compiled
def squares(v, beta, g, begin, lo, size):
    """A second moment of g [begin : begin + size], where there is one."""
    for i in range(size if len(v) > 0 else 0):
        v[lo + i] = beta * v[lo + i] + (v.dtype.type(1) - beta) * g[begin + i] * g[begin + i]


@compiled
def turned(terms, optimiser, mine, g, begin, lo, size):
    """As `move`, with the whole direction turned into a move by an optimiser."""
    begin, lo, size = UINT(begin), UINT(lo), UINT(size)
    x, m, raw, second = mine.x, optimiser.m, optimiser.raw, optimiser.second
    one = x.dtype.type(1)
    if len(optimiser.total) > 0:
        add(optimiser.total, lo, size, g, begin, one)
    squares(raw, optimiser.beta2, g, begin, lo, size)
    direct(terms, mine, g, begin, lo, size)
    for i in range(size if mine.rho != 0 else 0):
        g[begin + i] += mine.rho * (x[lo + i] - mine.anchor[lo + i])
    squares(second, optimiser.beta2, g, begin, lo, size)
    if optimiser.kind == ADAMW:
        first, other, now = optimiser.t[0], optimiser.t[1], raw if len(raw) > 0 else second
        for i in range(size):
            v = now[lo + i]
            if len(second) > 0:
                v = max(v, second[lo + i])
            m[lo + i] += (one - optimiser.beta) * (g[begin + i] - m[lo + i])
            g[begin + i] = first * m[lo + i] / (np.sqrt(other * v) + optimiser.eps)
    elif optimiser.kind == LION:
        for i in range(size):
            now = g[begin + i]
            g[begin + i] = sign(m[lo + i] + (one - optimiser.beta) * (now - m[lo + i]), one)
            m[lo + i] += (one - optimiser.beta2) * (now - m[lo + i])
    else:
        for i in range(size):
            g[begin + i] = sign(g[begin + i], one)
    mix(x, lo, size, one - mine.eta * optimiser.decay, g, begin, -mine.eta)


@compiled
def norm(g):
    total = g.dtype.type(0)
    for i in range(len(g)):
        total += g[i] * g[i]
    return np.sqrt(total)


# -- of a size that a rule finds -----------------------------------------------------------------------------------


@compiled
def delta(terms, pace, norm, change, opens):
    """Delta-SGD's step size, from ||D_k|| and ||D_k - D_{k-1}||."""
    if not opens:
        steep, size = change * 0, np.sqrt(1 + terms.growth * pace[RATIO]) * pace[SIZE]
        if change > 0 and pace[MOVED] > 0:
            steep = change / pace[MOVED]
            if np.isnan(steep):
                steep = np.inf
        size = min(size, pace[LIMIT])
        if steep > 0:
            size = min(size, terms.reach / steep)
        pace[RATIO] = size / pace[SIZE] if pace[SIZE] > 0 else 0
        pace[CURVATURE] = max(pace[CURVATURE], steep)
        pace[SIZE] = size


@compiled
def dog(pace, norm, far):
    """DoG's step size, from ||D_k|| and ||x_k - x_0||."""
    opening = pace[FIRST] * norm if pace[SQUARES] == 0 else 0 * norm
    pace[FAR] = max(pace[FAR], far, opening)
    pace[SQUARES] += norm * norm
    pace[SIZE] = pace[FAR] / np.sqrt(pace[SQUARES]) if pace[SQUARES] > 0 else 0


@compiled
def normed(terms, pace, norm):
    """The step size of `normed`, from ||D_k||."""
    pace[POWER] += norm * norm
    long = max(norm, TINY)
    if pace[OPENING] == 0:
        pace[OPENING] = terms.reach / long
    pace[SIZE] = min(pace[OPENING], terms.growth * terms.reach / long)


@compiled
def gauge(terms, g, last, x, lo, size, rate, sums, opens):
    """g [lo : lo + size] gains rate x, and `sums` its squares and, for delta, those of its difference to `last`."""
    total = change = x.dtype.type(0)
    begin, size = UINT(lo), UINT(size)
    if terms.rule == DELTA and not opens:
        for i in range(size):
            now = g[begin + i] + rate * x[begin + i]
            difference = now - last[begin + i]
            g[begin + i] = now
            total += now * now
            change += difference * difference
    else:
        for i in range(size):
            now = g[begin + i] + rate * x[begin + i]
            g[begin + i] = now
            total += now * now
    sums[0] += total
    sums[1] += change


@compiled
def directed(terms, mine, g, last, sums, opens):
    """The gradient g [d] becomes the direction, with its sums as `gauge` has them."""
    x, anchor, d = mine.x, mine.anchor, UINT(len(g))
    direct(terms, mine, g, 0, 0, d)
    if len(anchor) > 0:
        for i in range(d):
            g[i] += mine.rho * (x[i] - anchor[i])
    gauge(terms, g, last, x, 0, d, mine.rho if len(anchor) == 0 else 0 * mine.rho, sums, opens)


@compiled
def stride(terms, mine, g, last, pace, start, sums, k, etas):
    """The step along the direction g [d] with these sums; `last` becomes it, where delta wants it."""
    x, d = mine.x, UINT(len(g))
    size = np.sqrt(sums[0])
    if terms.rule == DELTA:
        delta(terms, pace, size, np.sqrt(sums[1]), k == 0)
        pace[MOVED] = mine.eta * pace[SIZE] * size
    elif terms.rule == NORMED:
        normed(terms, pace, size)
    else:
        far = size * 0
        for i in range(d):
            far += (x[i] - start[i]) * (x[i] - start[i])
        dog(pace, size, np.sqrt(far))
    eta = x.dtype.type(mine.eta * pace[SIZE])
    if len(etas) > 0:
        etas[k] = eta
    if terms.rule == DELTA:
        for i in range(d):
            x[i] -= eta * g[i]
            last[i] = g[i]
    else:
        for i in range(d):
            x[i] -= eta * g[i]
    if terms.dual_rate != 0 and len(mine.anchor) > 0:
        for i in range(d):
            mine.linear[i] += terms.dual_rate * (x[i] - mine.anchor[i])
