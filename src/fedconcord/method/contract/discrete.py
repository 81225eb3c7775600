"""The discrete Gaussian on whole numbers, P(k) proportional to f(k) = exp(-k^2 / (2 SIGMA^2)), drawn exactly.

The noise is that of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020; the
sampler is another one, by rejection (von Neumann). Cells of equal width cover the curve 2^32 f, each one whole number
higher than the curve is at its left. A uniform point of all cells has |k| as its place, and is kept if it is below the
curve. For nearly all points a comparison with the lowest value of the curve in the cell tells; the others, 3 of 1,000,
are compared with as many digits of f, and get as many random bits, as it takes.

SIGMA = 2^24 is the one deviation: all that gets noise is brought to steps in which its noise has that. Numbers of 32
SIGMA or more are not drawn; their chance is below 10^-220, which changes no delta that can be written down.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from typing import NamedTuple

import numpy as np

BITS = 24
SIGMA = 1 << BITS
Words = Callable[[int], np.ndarray]  # n -> [n] uint64, each of 64 random bits

_MOST = 32  # SIGMA, beyond which nothing is drawn
_FINE = 8  # bits of a cell's number in one SIGMA
_TALL = 32  # bits of the curve's height at 0
_COARSE = 27  # bits of a point's number that the guide to cells leaves out


def discrete(words: Words, n: int, bits: int = BITS) -> np.ndarray:
    """n numbers [n] int64 of deviation 2^bits, of a word each and a few more."""
    numbers, rest = np.empty(n, np.int64), np.arange(n)
    while rest.size:
        stays, numbers[rest] = _points(words, rest.size, _cells(bits))
        rest = rest[~stays]
    return numbers


class _Cells(NamedTuple):
    bits: int  # of SIGMA
    low: int  # of a place in a cell
    ends: np.ndarray  # [cells] int64: points in cells up to this one, of floor(2^32 f) + 1 each, f at its first k
    sure: np.ndarray  # [cells] int64: from which point on one may be above the curve somewhere in its cell
    guide: np.ndarray  # [.] int64: the cell of every 2^27th point


@cache
def _cells(bits: int) -> _Cells:
    low = max(bits - _FINE, 0)
    heights = [_curve(j << low, bits, _TALL) for j in range((_MOST << bits - low) + 1)]
    ends = np.cumsum(np.array(heights[:-1]) + 1)
    sure = ends - np.array(heights[:-1]) - 1 + np.maximum(np.array(heights[1:]) - 1, 0)
    return _Cells(bits, low, ends, sure, np.searchsorted(ends, np.arange(0, ends[-1], 1 << _COARSE), "right"))


def _points(words: Words, n: int, cells: _Cells) -> tuple[np.ndarray, np.ndarray]:
    """n points: whether each is kept [n] bool, and its number [n] int64 under a sign."""
    word, last = words(n), int(cells.ends[-1])
    point = (word >> np.uint64(cells.low + 1)).astype(np.int64)
    stays = point < (1 << 63 - cells.low) // last * last  # what is above the largest multiple is drawn again
    point %= last
    cell = cells.guide[point >> _COARSE]
    cell += point >= cells.ends[cell]
    if (far := np.flatnonzero(point >= cells.ends[cell])).size:
        cell[far] = np.searchsorted(cells.ends, point[far], "right")
    size = (cell << cells.low) + (word & np.uint64((1 << cells.low) - 1)).astype(np.int64)
    for place in np.flatnonzero(point >= cells.sure[cell]):
        before = int(cells.ends[cell[place] - 1]) if cell[place] else 0
        stays[place] &= _is_below(words, int(point[place]) - before, int(size[place]), cells.bits)
    is_negative = (word >> np.uint64(cells.low)) & np.uint64(1) == 1
    stays &= ~(is_negative & (size == 0))  # zero has one sign
    return stays, np.where(is_negative, -size, size)


def _is_below(words: Words, height: int, k: int, bits: int) -> bool:
    """Whether a uniform number from [height, height + 1) is below 2^32 f(k)."""
    tall = _TALL
    while abs(height - (curve := _curve(k, bits, tall))) <= 1:
        height, tall = height << 64 | int(words(1)[0]), tall + 64
    return height < curve


def _curve(k: int, bits: int, tall: int) -> int:
    """2^tall f(k), rounded down; where it is within 10^-10 of a whole number, that may be one too few or too many."""
    with localcontext(prec=tall // 3 + 20):
        return int((-Decimal(k * k) / (1 << 2 * bits + 1)).exp() * (1 << tall))
