"""The discrete Gaussian on whole numbers, P(k) proportional to exp(-k^2 / (2 SIGMA^2)), drawn exactly.

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1 to 3, with the
one deviation SIGMA = 2^24: every number that gets noise is brought to steps in which its noise has that. It is a power
of two, so that all chances are fractions of 64-bit words and of small whole numbers, and nothing is rounded: a draw
follows from random words by comparisons of integers. A number of 180 SIGMA or more, of a chance below 10^-7000, would
not fit 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BITS = 24
SIGMA = 1 << BITS
Words = Callable[[int], np.ndarray]  # n -> [n] uint64, each of 64 random bits


def discrete(words: Words, n: int, bits: int = BITS) -> np.ndarray:
    """n numbers [n] int64 of deviation s = 2^bits: Algorithm 3. A discrete Laplace number y of scale s is kept with the
    chance exp(-(|y| - s)^2 / (2 s^2)); Algorithm 2 draws y as u + s v under a sign."""
    numbers, rest = np.zeros(n, np.int64), np.arange(n)
    while rest.size:
        word = words(rest.size)
        u, is_negative = (word & np.uint64(2**bits - 1)).astype(np.int64), word >> np.uint64(63) == 1
        places = np.flatnonzero(_happens(words, u, bits))  # u is kept with the chance exp(-u / s)
        size = u[places] + (_successes(words, places.size) << bits)
        away = size - 2**bits
        stays = _happens(words, away * away, 2 * bits + 1) & ~(is_negative[places] & (size == 0))
        places, size = places[stays], size[stays]
        numbers[rest[places]] = np.where(is_negative[places], -size, size)
        rest = np.delete(rest, places)
    return numbers


def _successes(words: Words, n: int) -> np.ndarray:
    """How often [n] what has the chance 1/e happens before it first does not."""
    count, rest = np.zeros(n, np.int64), np.arange(n)
    while rest.size:
        rest = rest[_within_one(words, np.ones(rest.size, np.int64), 0)]
        count[rest] += 1
    return count


def _happens(words: Words, a: np.ndarray, bits: int) -> np.ndarray:
    """Whether [n] bool something happens whose chance is exp(-a / 2^bits), for whole a >= 0: Algorithm 1."""
    happens, a, one = np.ones(len(a), bool), a.copy(), 1 << bits
    while (rest := np.flatnonzero(happens & (a > 0))).size:
        happens[rest] = _within_one(words, np.minimum(a[rest], one), bits)
        a[rest] -= one
    return happens


def _within_one(words: Words, a: np.ndarray, bits: int) -> np.ndarray:
    """The same for a <= 2^bits: trials of chance a / (2^bits k), k = 1, 2, ..., until one fails, at an odd k."""
    is_odd, rest, k = np.zeros(len(a), bool), np.arange(len(a)), 0
    while rest.size:
        k += 1
        happens = (words(rest.size) >> np.uint64(64 - bits)).astype(np.int64) < a[rest] if bits else rest >= 0
        if k > 1:
            happens = happens & (_below(words, rest.size, k) == 0)
        is_odd[rest[~happens]] = k % 2
        rest = rest[happens]
    return is_odd


def _below(words: Words, n: int, k: int) -> np.ndarray:
    """Uniform whole numbers [n] from 0 to k - 1: words above the largest multiple of k are drawn again."""
    last, numbers = np.uint64(2**64 // k * k - 1), words(n)
    while (is_above := numbers > last).any():
        numbers = np.where(is_above, words(n), numbers)
    return np.asarray(numbers % np.uint64(k))
