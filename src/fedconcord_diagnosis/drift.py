"""Client drift: where local steps end, away from where they go together; whose it is, and what would remove it.

Symbols: Delta_i = x_i^K - x^t of n clients with weights p_i, Delta = sum_i p_i Delta_i, a_i = ||a_i||_1 the client's
local steps as FedNova weighs them, eta the local step size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord_diagnosis.gradients import TINY, lengths, mean_of


class Drift(NamedTuple):
    """What the local steps of one round come to."""

    move: np.ndarray  # [n] ||Delta_i||: SCAFFOLD's client drift is the mean of its square
    away: np.ndarray  # [n] ||Delta_i - Delta||
    share: np.ndarray  # [n] of p_i ||Delta_i - Delta||^2 in the sum, sum 1
    mean: float  # ||Delta||
    ratio: float  # sum_i p_i ||Delta_i - Delta||^2 / ||Delta||^2


def drift(p: np.ndarray, moves: Tensor) -> Drift:
    """Of moves [n, d] with weights p [n]."""
    mean = mean_of(p, moves)
    away = lengths(moves - mean)
    parts, length = p * away**2, float(torch.linalg.vector_norm(mean))
    total = float(parts.sum())
    share = parts / total if total > 0 else np.zeros_like(parts)
    return Drift(lengths(moves), away, share, length, total / max(length**2, TINY))


class Remedies(NamedTuple):
    """The share of the drift, sum_i p_i ||Delta_i - Delta||^2, that a change would remove; below 0: it would add."""

    equal_work: float  # as many steps' worth from everyone: FedNova's normalised averaging
    control: float  # control variates refreshed at this model: SCAFFOLD


def remedies(p: np.ndarray, moves: Tensor, work: np.ndarray, steered: Tensor) -> Remedies:
    """Of moves [n, d] that clients made without corrections, doing work a [n].

    Equal work: Delta_i a / a_i, with a = sum_i p_i a_i (Wang et al., IEEE TSP 2021, eq. (15)).

    Args:
        steered: [n, d] the moves of the same steps on the same batches, taken with `control(...)` in their direction.
    """
    before = max(_apart(p, moves), TINY)
    equal = moves * (float(p @ work) / torch.as_tensor(work).to(moves)[:, None])
    return Remedies(1 - _apart(p, equal) / before, 1 - _apart(p, steered) / before)


def control(p: np.ndarray, moves: Tensor, work: np.ndarray, lr: float) -> Tensor:
    """c - c_i [n, d] with c_i = -Delta_i / (eta a_i), the client's mean gradient on its way, and c = sum_i p_i c_i.

    Karimireddy et al., ICML 2020, Algorithm 1, option II, as it is just after a round of all clients.
    """
    variates = -moves / (lr * torch.as_tensor(work).to(moves)[:, None])
    return mean_of(p, variates) - variates


def _apart(p: np.ndarray, moves: Tensor) -> float:
    return float(p @ lengths(moves - mean_of(p, moves)) ** 2)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two columns [n], ties at their mean rank; 0 where one does not vary."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped]  # half a second

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b).statistic)
