"""Client drift: where local steps end, away from where they go together; whose it is, and what would remove it.

Symbols: Delta_i = x_i^K - x^t of n clients with weights p_i, Delta = sum_i p_i Delta_i, a_i = ||a_i||_1 the client's
local steps as FedNova weighs them, g_i = grad f_i(x^t), eta the local step size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.diagnosis.gradients import TINY, lengths, mean_of


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
    control: float  # exact control variates: SCAFFOLD, to first order in eta
    both: float  # FedNova-VR


def remedies(p: np.ndarray, moves: Tensor, work: np.ndarray, gradients: Tensor, lr: float) -> Remedies:
    """Of moves [n, d], made without corrections by clients that did work a [n] from gradients [n, d] at x^t.

    Equal work: Delta_i a / a_i, with a = sum_i p_i a_i (Wang et al., IEEE TSP 2021, eq. (15)). Control variates:
    Delta_i + eta a_i (g_i - sum_j p_j g_j) (Karimireddy et al., ICML 2020, Algorithm 1), exact while gradients do not
    change along the local steps.
    """
    column = torch.as_tensor(work).to(moves)[:, None]
    scale = float(p @ work) / column
    steered = moves + lr * column * (gradients - mean_of(p, gradients))

    def total(of: Tensor) -> float:
        return float(p @ lengths(of - mean_of(p, of)) ** 2)

    before = max(total(moves), TINY)
    return Remedies(*(1 - total(of) / before for of in (moves * scale, steered, steered * scale)))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two columns [n], ties at their mean rank; 0 where one does not vary."""
    ranks = [_ranks(np.asarray(column, np.float64)) for column in (a, b)]
    if len(a) < 2 or any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    found: np.ndarray = (last - (count - 1) / 2)[place]
    return found
