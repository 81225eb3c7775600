"""Products of few samples with a layer's weights, 4 rows and 5 samples at a time: 20 sums or factors in registers.

Vectors lie in flat arrays: rows of x and samples of a are n numbers each, one after the other, from w and p on. Sums
may be taken in any order; NaN and infinity are kept, so that a run that diverges is seen to.
"""

from __future__ import annotations

import numpy as np
from numba import njit

UINT = np.uintp  # numba's signed indices may count from the end, which keeps loops from being vectorised
FASTER = {"reassoc", "contract", "nsz", "arcp"}
compiled = njit(fastmath=FASTER, nogil=True, error_model="numpy")
kept = njit(fastmath=FASTER, nogil=True, error_model="numpy", cache=True)  # on disk, with all that it calls


@compiled
def places(p, n):
    """Where five neighbours of n numbers begin."""
    return UINT(p), UINT(p + n), UINT(p + 2 * n), UINT(p + 3 * n), UINT(p + 4 * n)


@compiled
def four(f, q):
    """A sample's factors of four rows."""
    return f[q], f[q + 1], f[q + 2], f[q + 3]


@compiled
def dots(x, w, n, a, p, z, q, m):  # 4 rows of x by 5 samples
    w0, w1, w2, w3, _ = places(w, n)
    p0, p1, p2, p3, p4 = places(p, n)
    zero = x.dtype.type(0)
    s00 = s01 = s02 = s03 = s04 = s10 = s11 = s12 = s13 = s14 = zero
    s20 = s21 = s22 = s23 = s24 = s30 = s31 = s32 = s33 = s34 = zero
    for i in range(UINT(n)):
        a0, a1, a2, a3, a4 = a[p0 + i], a[p1 + i], a[p2 + i], a[p3 + i], a[p4 + i]
        v = x[w0 + i]
        s00 += v * a0
        s01 += v * a1
        s02 += v * a2
        s03 += v * a3
        s04 += v * a4
        v = x[w1 + i]
        s10 += v * a0
        s11 += v * a1
        s12 += v * a2
        s13 += v * a3
        s14 += v * a4
        v = x[w2 + i]
        s20 += v * a0
        s21 += v * a1
        s22 += v * a2
        s23 += v * a3
        s24 += v * a4
        v = x[w3 + i]
        s30 += v * a0
        s31 += v * a1
        s32 += v * a2
        s33 += v * a3
        s34 += v * a4
    z[q], z[q + 1], z[q + 2], z[q + 3] = s00, s10, s20, s30
    q += m
    z[q], z[q + 1], z[q + 2], z[q + 3] = s01, s11, s21, s31
    q += m
    z[q], z[q + 1], z[q + 2], z[q + 3] = s02, s12, s22, s32
    q += m
    z[q], z[q + 1], z[q + 2], z[q + 3] = s03, s13, s23, s33
    q += m
    z[q], z[q + 1], z[q + 2], z[q + 3] = s04, s14, s24, s34


@compiled
def dot(x, w, n, a, p):
    w, p, s = UINT(w), UINT(p), x.dtype.type(0)
    for i in range(UINT(n)):
        s += x[w + i] * a[p + i]
    return s


@compiled
def outputs(x, w, m, n, a, p, B, z, q):
    """z[b, r] = sum_i x[r, i] a[b, i] of a layer's m rows [n] at w and B samples [n] at p."""
    for r in range(0, m, 4):
        whole = B - B % 5 if r + 4 <= m else 0
        for b in range(0, whole, 5):
            dots(x, w + r * n, n, a, p + b * n, z, q + b * m + r, m)
        for b in range(whole, B):
            for k in range(r, min(r + 4, m)):
                z[q + b * m + k] = dot(x, w + k * n, n, a, p + b * n)


@compiled
def combine(c, w, n, a, p, f, q, m):  # 4 rows of c by 5 samples, factors f[s, r]
    w0, w1, w2, w3, _ = places(w, n)
    p0, p1, p2, p3, p4 = places(p, n)
    f00, f10, f20, f30 = four(f, q)
    f01, f11, f21, f31 = four(f, q + m)
    f02, f12, f22, f32 = four(f, q + 2 * m)
    f03, f13, f23, f33 = four(f, q + 3 * m)
    f04, f14, f24, f34 = four(f, q + 4 * m)
    for i in range(UINT(n)):
        a0, a1, a2, a3, a4 = a[p0 + i], a[p1 + i], a[p2 + i], a[p3 + i], a[p4 + i]
        c[w0 + i] += f00 * a0 + f01 * a1 + f02 * a2 + f03 * a3 + f04 * a4
        c[w1 + i] += f10 * a0 + f11 * a1 + f12 * a2 + f13 * a3 + f14 * a4
        c[w2 + i] += f20 * a0 + f21 * a1 + f22 * a2 + f23 * a3 + f24 * a4
        c[w3 + i] += f30 * a0 + f31 * a1 + f32 * a2 + f33 * a3 + f34 * a4


@compiled
def blend(c, w, n, a, p, f, q, m, keep, u, e):  # `combine`, and the rest of the step in the same pass: keep c + e u
    w0, w1, w2, w3, _ = places(w, n)
    p0, p1, p2, p3, p4 = places(p, n)
    f00, f10, f20, f30 = four(f, q)
    f01, f11, f21, f31 = four(f, q + m)
    f02, f12, f22, f32 = four(f, q + 2 * m)
    f03, f13, f23, f33 = four(f, q + 3 * m)
    f04, f14, f24, f34 = four(f, q + 4 * m)
    for i in range(UINT(n)):
        a0, a1, a2, a3, a4 = a[p0 + i], a[p1 + i], a[p2 + i], a[p3 + i], a[p4 + i]
        g0 = f00 * a0 + f01 * a1 + f02 * a2 + f03 * a3 + f04 * a4
        g1 = f10 * a0 + f11 * a1 + f12 * a2 + f13 * a3 + f14 * a4
        g2 = f20 * a0 + f21 * a1 + f22 * a2 + f23 * a3 + f24 * a4
        g3 = f30 * a0 + f31 * a1 + f32 * a2 + f33 * a3 + f34 * a4
        c[w0 + i] = keep * c[w0 + i] + (e * u[w0 + i] + g0)
        c[w1 + i] = keep * c[w1 + i] + (e * u[w1 + i] + g1)
        c[w2 + i] = keep * c[w2 + i] + (e * u[w2 + i] + g2)
        c[w3 + i] = keep * c[w3 + i] + (e * u[w3 + i] + g3)


@compiled
def spread(c, p, n, x, w, f, q, m):  # 5 samples of c by 4 rows of x, factors f[s, r]
    w0, w1, w2, w3, _ = places(w, n)
    p0, p1, p2, p3, p4 = places(p, n)
    f00, f10, f20, f30 = four(f, q)
    f01, f11, f21, f31 = four(f, q + m)
    f02, f12, f22, f32 = four(f, q + 2 * m)
    f03, f13, f23, f33 = four(f, q + 3 * m)
    f04, f14, f24, f34 = four(f, q + 4 * m)
    for i in range(UINT(n)):
        x0, x1, x2, x3 = x[w0 + i], x[w1 + i], x[w2 + i], x[w3 + i]
        c[p0 + i] += f00 * x0 + f10 * x1 + f20 * x2 + f30 * x3
        c[p1 + i] += f01 * x0 + f11 * x1 + f21 * x2 + f31 * x3
        c[p2 + i] += f02 * x0 + f12 * x1 + f22 * x2 + f32 * x3
        c[p3 + i] += f03 * x0 + f13 * x1 + f23 * x2 + f33 * x3
        c[p4 + i] += f04 * x0 + f14 * x1 + f24 * x2 + f34 * x3


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


@compiled
def updates(c, w, rows, n, a, p, B, f, q, m, keep, u, e):
    """c[r] <- keep c[r] + e u[r] + sum_b f[b, r] a[b] of some rows [n] at w, B samples [n] at p, factors at q.

    With e = 0 and keep = 1 the rows are only added to; u lies as c does, and is another array.
    """
    more = e != 0 or keep != 1
    for r in range(0, rows, 4):
        whole = B - B % 5 if r + 4 <= rows else 0
        if more and (whole == 0 or e == 0):
            for k in range(r, min(r + 4, rows)):
                if e == 0:
                    scale(c, w + k * n, n, keep)
                else:
                    mix(c, w + k * n, n, keep, u, w + k * n, e)
        for b in range(0, whole, 5):
            if b == 0 and e != 0:
                blend(c, w + r * n, n, a, p, f, q + r, m, keep, u, e)
            else:
                combine(c, w + r * n, n, a, p + b * n, f, q + b * m + r, m)
        for b in range(whole, B):
            for k in range(r, min(r + 4, rows)):
                add(c, w + k * n, n, a, p + b * n, f[q + b * m + k])


@compiled
def slopes(c, n, x, w, m, f, B):
    """c[b] = sum_r f[b, r] x[r] of B samples [n] and a layer's m rows [n] at w: the derivative before the layer."""
    clear(c, 0, B * n)
    for r in range(0, m, 4):
        whole = B - B % 5 if r + 4 <= m else 0
        for b in range(0, whole, 5):
            spread(c, b * n, n, x, w + r * n, f, b * m + r, m)
        for b in range(whole, B):
            for k in range(r, min(r + 4, m)):
                add(c, b * n, n, x, w + k * n, f[b * m + k])
