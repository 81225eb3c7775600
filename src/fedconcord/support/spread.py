"""How unequally a figure is spread over clients: deciles, as q-FFL has them (Li et al., ICLR 2020)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """One metric over the clients that have samples to be judged on."""

    mean: float
    std: float
    worst_decile: float
    best_decile: float
    gap: float  # best minus worst decile, in absolute value
    worst: float


def spread(values: np.ndarray, higher: bool) -> Spread:
    """The figures above of values [N]; NaN is a client without samples, which is left out."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return Spread(*[math.nan] * len(Spread._fields))
    tenth = math.ceil(len(known) / 10)
    low, high = float(known[:tenth].mean()), float(known[-tenth:].mean())
    worst, best = (low, high) if higher else (high, low)
    return Spread(
        float(known.mean()), float(known.std()), worst, best, high - low, float(known[0] if higher else known[-1])
    )
