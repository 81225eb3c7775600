"""Products of few samples with a layer's weights, some rows and samples at a time: their sums or factors in registers.

Vectors lie in flat arrays: rows of x and samples of a are n numbers each, one after the other, from w and p on. Sums
may be taken in any order; NaN and infinity are kept, so that a run that diverges is seen to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedconcord.method.step.compiled.blocks import FASTER, ROWS, SAMPLES, back, block_of, dots, spread

UINT = np.uintp  # numba's signed indices may count from the end, which keeps loops from being vectorised
# numba's arrays count who holds them by locked instructions, hundreds a step, for which products wait. Functions that
# make no array do without (`_nrt`); they may return none either, so that `moves.row` is inlined.
OPTIONS: Any = {"fastmath": {*FASTER}, "nogil": True, "error_model": "numpy", "_nrt": False}
compiled = njit(**OPTIONS)


def product(write, last_first=False):
    """What a block does, over rows [n] of x at w, B samples [n] of a at p, and numbers f [B, m] of them at q."""
    whole, row = block_of(write, ROWS, SAMPLES), block_of(write, 1, SAMPLES)
    sample, single = block_of(write, ROWS, 1), block_of(write, 1, 1)

    @compiled
    def over(x, w, rows, a, p, B, f, q, n, m, keep, u, e):
        one, zero = x.dtype.type(1), x.dtype.type(0)
        most, many = rows - rows % ROWS, B - B % SAMPLES
        for k in range(0, most, ROWS):
            r = most - ROWS - k if last_first else k
            for b in range(0, many, SAMPLES):  # keep, u and e are for the first samples alone
                whole(x, w, a, p, f, q, n, m, r, b, one if b else keep, u, zero if b else e)
            for b in range(many, B):
                sample(x, w, a, p, f, q, n, m, r, b, one if b else keep, u, zero if b else e)
        for r in range(most, rows):
            for b in range(0, many, SAMPLES):
                row(x, w, a, p, f, q, n, m, r, b, one if b else keep, u, zero if b else e)
            for b in range(many, B):
                single(x, w, a, p, f, q, n, m, r, b, one if b else keep, u, zero if b else e)

    return over


over_dots, over_rows, over_samples = product(dots), product(spread, last_first=True), product(back)


@compiled
def outputs(x, w, m, n, a, p, B, z, q):
    """z[b, r] = sum_i x[r, i] a[b, i] of a layer's m rows [n] at w and B samples [n] at p."""
    over_dots(x, w, m, a, p, B, z, q, n, m, x.dtype.type(1), x, x.dtype.type(0))


@compiled
def updates(c, w, rows, n, a, p, B, f, q, m, keep, u, e):
    """c[r] <- keep c[r] + e u[r] + sum_b f[b, r] a[b] of some rows [n] at w, B samples [n] at p, factors at q.

    u lies as c does, and is another array, or none with e = 0. The last rows come first: they were read last.
    """
    if len(u) == 0:
        u = c
    if B == 0:
        mix(c, w, rows * n, keep, u, w, e)
    over_rows(c, w, rows, a, p, B, f, q, n, m, keep, u, e)


@compiled
def slopes(c, n, x, w, m, f, B):
    """c[b] = sum_r f[b, r] x[r] of B samples [n] and a layer's m rows [n] at w: the derivative before the layer."""
    clear(c, 0, B * n)
    over_samples(x, w, m, c, 0, B, f, 0, n, m, x.dtype.type(1), x, x.dtype.type(0))


@compiled
def clear(c, w, n):
    w, zero = UINT(w), c.dtype.type(0)
    for i in range(UINT(n)):
        c[w + i] = zero


@compiled
def scale(c, w, n, keep):
    w = UINT(w)
    for i in range(UINT(n)):
        c[w + i] *= keep


@compiled
def add(c, w, n, a, p, f):
    w, p = UINT(w), UINT(p)
    for i in range(UINT(n)):
        c[w + i] += f * a[p + i]


@compiled
def mix(c, w, n, keep, a, p, f):
    w, p = UINT(w), UINT(p)
    for i in range(UINT(n)):
        c[w + i] = keep * c[w + i] + f * a[p + i]
