"""Draws that nobody can repeat, from the operating system's generator: what privacy at real sites rests on.

Simulations draw by key (`core.rng`), to be repeated to the same bits; whoever knows the seed knows such noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Chance(NamedTuple):
    """A source of draws."""

    normal: Callable[[int], np.ndarray]  # n -> [n] float64, standard normal
    uniform: Callable[[int], np.ndarray]  # n -> [n] float64, uniform on [0, 1)


def uniform(n: int) -> np.ndarray:
    """n multiples of 2^-53 on [0, 1), each of 53 bits of `os.urandom`."""
    words = np.frombuffer(os.urandom(8 * n), np.uint64) >> np.uint64(11)
    return np.asarray(words * 2.0**-53)


def normal(n: int) -> np.ndarray:
    """n standard normal numbers: halved sums of four Box-Muller numbers each, of 53-bit uniforms.

    A single one's low bits tell which uniforms it came of; a sum of four leaves too many candidates to search
    (Holohan and Braghin, ESORICS 2021). That is a hardening and no proof: the numbers are still floating-point.
    """
    radius = np.sqrt(-2 * np.log1p(-uniform(2 * n))).reshape(2, n)  # of 1 - u in (0, 1]: never of 0
    angle = 2 * np.pi * uniform(2 * n).reshape(2, n)
    return np.asarray((radius * (np.cos(angle) + np.sin(angle))).sum(0) / 2)


SYSTEM = Chance(normal, uniform)
