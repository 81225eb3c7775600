"""How unlike the clients' data are: sizes, labels, features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Features(NamedTuple):
    """How much of the features' variance lies between clients."""

    share: float  # adjusted for chance: 0 in expectation where clients draw from one distribution, 1 at most
    distance: np.ndarray  # [n] distance of the client's mean to everybody's, in standard deviations of one feature
    within: str  # "class" where means of classes were taken out first, else "all"


def features(x: np.ndarray, owner: np.ndarray, n: int, labels: np.ndarray | None = None) -> Features:
    """Of samples x [m, q] that clients owner [m] (0 .. n-1) hold.

    With labels [m] the mean of each class is taken out first, so that clients who hold other classes do not count as
    others in their features. The share is epsilon^2 of a one-way analysis of variance, summed over the features:
    (SS_between - (n - 1) MS_within) / SS_total (Kelley, PNAS 1935).
    """
    x = np.asarray(x, np.float64)
    groups = np.zeros(len(x), np.int64) if labels is None else np.unique(labels, return_inverse=True)[1]
    x = x - _means(x, groups, int(groups.max()) + 1)[groups]
    means, counts = _means(x, owner, n), np.bincount(owner, minlength=n)
    between = float(counts @ (means**2).sum(1))
    total = float((x**2).sum())
    holders = int((counts > 0).sum())
    free = max(len(x) - holders - int(groups.max()), 1)  # degrees of freedom within
    share = (between - (holders - 1) * (total - between) / free) / total if total > 0 else 0.0
    unit = np.sqrt(total / max(x.size, 1))
    distance = np.sqrt((means**2).mean(1)) / unit if unit > 0 else np.zeros(n)
    return Features(share, distance, "all" if labels is None else "class")


def _means(x: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Means [groups, q] of x [m, q] by group; 0 for an empty one."""
    sums = np.zeros((groups, x.shape[1]))
    np.add.at(sums, group, x)
    return sums / np.maximum(np.bincount(group, minlength=groups), 1)[:, None]
