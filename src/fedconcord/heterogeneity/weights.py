"""How the server weighs the clients of a cohort."""

from __future__ import annotations

import numpy as np

from fedconcord.core import Weights


def objective(kind: Weights, sizes: np.ndarray) -> np.ndarray:
    """p [N], each client's weight in the objective sum_i p_i f_i: equal for `uniform`, by size otherwise."""
    p = np.ones_like(sizes) if kind == "uniform" else sizes
    return np.asarray(p / p.sum())


def cohort(kind: Weights, p: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """w [S], each client's weight in the server's step.

    `uniform` and `size`: p_i renormalised over the cohort, so they sum to 1. `unbiased`: (N / S) p_i, which sum to 1
    in expectation only (FedVRA eq. (21)).
    """
    held = p[ids]
    return np.asarray(held * (len(p) / len(ids)) if kind == "unbiased" else held / held.sum())
