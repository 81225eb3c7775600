"""Metrics of a classifier's probabilities: how it ranks samples, and whether its confidence can be believed.

Classes have the softmax of the outputs, labels that may hold together the sigmoid of each. With two classes there is
one question, the second class; with more, or with labels, each is a question of its own and the figure their mean over
those that have samples of both kinds (macro, one against the rest). NaN where none has, or an output is not finite.
What ranks goes by log-odds, which order samples as probabilities do, and do not all round to 1 where outputs are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BINS = 15  # of confidence, of equal width


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve, by scikit-learn."""
    from sklearn.metrics import roc_auc_score  # a second to import; most jobs do not ask for it

    return _macro(roc_auc_score, outputs, targets)


def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Area under the curve of precision against recall as a sum of steps, by scikit-learn."""
    from sklearn.metrics import average_precision_score

    return _macro(average_precision_score, outputs, targets)


def brier(outputs: Tensor, targets: Tensor) -> float:
    """Mean squared error of the probabilities (Brier, Monthly Weather Review 1950): of the second of two classes, of
    each label, summed over more classes."""
    guess, truth = _questions(outputs, targets)
    squares = np.square(guess - truth)
    return float(squares.mean() if targets.ndim > 1 else squares.sum(1).mean()) if len(squares) else math.nan


def right(outputs: Tensor, classes: Tensor, threshold: float, second: bool) -> float:
    """Of the samples of one of two classes the share that is told so, where the second class is said from a probability
    on: sensitivity of the second class, specificity of the first. NaN without such samples."""
    mine = classes == int(second)
    predicted = outputs.double().softmax(-1)[:, 1] >= threshold
    return float((predicted == second)[mine].double().mean()) if len(outputs) and bool(mine.any()) else math.nan


def ece(outputs: Tensor, classes: Tensor) -> float:
    """Expected calibration error: sum over `BINS` bins of share of samples * |accuracy - mean confidence|, confidence
    being the largest probability (Guo, Pleiss, Sun and Weinberger, ICML 2017, eq. (3))."""
    guess = outputs.double().softmax(-1).cpu().numpy()
    if not len(guess) or not np.isfinite(guess).all():
        return math.nan
    sure, right = guess.max(1), guess.argmax(1) == classes.cpu().numpy()
    place = np.clip(np.ceil(sure * BINS) - 1, 0, BINS - 1).astype(np.int64)
    gaps = np.bincount(place, weights=right - sure, minlength=BINS)
    return float(np.abs(gaps).sum() / len(sure))


def _questions(outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, truth) [m, Q] float64 of Q yes-or-no questions."""
    each = outputs.double()
    first = _first(outputs, targets)
    guess = each.sigmoid() if targets.ndim > 1 else each.softmax(-1)[:, first:]
    return np.asarray(guess.cpu().numpy()), _truth(outputs, targets)


def _first(outputs: Tensor, targets: Tensor) -> int:
    """The first class that is a question: of two classes the second."""
    return 1 if targets.ndim == 1 and outputs.shape[1] == 2 else 0


def _truth(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """The answers [m, Q] of the questions, 0 or 1."""
    if targets.ndim > 1:
        return np.asarray((targets > 0.5).double().cpu().numpy())
    classes = np.arange(_first(outputs, targets), outputs.shape[1])
    return np.asarray((targets.cpu().numpy()[:, None] == classes), dtype=np.float64)


def log_odds(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """log p / (1 - p) [m, Q] float64 of each question: an output's margin over those of all other classes."""
    each = outputs.double()
    if targets.ndim == 1:
        others = [each[:, [j for j in range(each.shape[1]) if j != k]].logsumexp(-1) for k in range(each.shape[1])]
        each = (each - torch.stack(others, -1))[:, _first(outputs, targets) :]
    return np.asarray(each.cpu().numpy())


def _macro(of: Callable[[np.ndarray, np.ndarray], float], outputs: Tensor, targets: Tensor) -> float:
    guess, truth = log_odds(outputs, targets), _truth(outputs, targets)
    both = (truth.max(0) > truth.min(0)) if len(truth) else np.zeros(truth.shape[1], bool)
    if not both.any() or not np.isfinite(guess).all():
        return math.nan
    return float(np.mean([of(truth[:, k], guess[:, k]) for k in np.flatnonzero(both)]))
