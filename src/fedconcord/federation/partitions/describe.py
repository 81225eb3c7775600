"""A partition measured: how much each client holds, and how far its labels are from everybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedconcord.federation.partitions.simple import counts

if TYPE_CHECKING:
    from fedconcord.federation.data.dataset import Dataset

PLURAL = {"class": "classes", "target": "spans of the target", "label": "labels"}
BINS = 10  # of numbers to predict: between the deciles of all training samples


class Description(NamedTuple):
    """Who holds what, of N clients and C columns: classes, spans of the number to predict, or labels."""

    sizes: np.ndarray  # [N] int64 samples
    counts: np.ndarray  # [N, C] int64 samples of each column
    names: list[str]  # [C] of the columns
    what: str  # what a column is: "class", "target" or "label"
    entropy: np.ndarray  # [N] bits: -sum_c p_i(c) log2 p_i(c), p_i the client's shares of its samples
    distance: np.ndarray  # [N] in [0, 2]: sum_c |p_i(c) - p(c)|, p the shares of all clients together
    unused: int  # training samples that no client holds


def describe(dataset: Dataset, parts: Sequence[np.ndarray]) -> Description:
    """Measure the partition `parts` (sample indices of each client) of a data set.

    `distance` is the earth mover's distance of Zhao et al. 2018 ("Federated Learning with Non-IID Data"), the sum of
    absolute differences, which is twice the total variation: 0 where a client has everybody's mix, near 2 where it has
    a class that hardly anybody else has. With several numbers to predict the first is described. A sample may hold
    several labels, or none, or one for each token: then shares are of the labels it holds.
    """
    sizes = np.array([len(part) for part in parts], np.int64)
    if dataset.target == "labels":
        labels = dataset.train_y > 0.5
        table = np.stack([labels[part].sum(axis=0) for part in parts]).astype(np.int64)
        names, what = _names(dataset, table.shape[1]), "label"
    elif dataset.target == "number":
        bins, names = _spans(dataset)
        table, what = counts(bins, list(parts), len(names)), "target"
    elif dataset.target == "tokens":
        every = (dataset.train_y[part] for part in parts)
        table = np.stack([np.bincount(y[y >= 0], minlength=dataset.classes) for y in every])
        names, what = _names(dataset, dataset.classes), "label"
    else:
        table = counts(dataset.train_y, list(parts), dataset.classes)
        names, what = _names(dataset, dataset.classes), "class"
    unused = len(dataset.train_y) - int(sizes.sum())
    return Description(sizes, table, names, what, entropy(_shares(table)), distance(table), unused)


def distance(counts: np.ndarray) -> np.ndarray:
    """sum_c |p_i(c) - p(c)| [N] of samples of each column [N, C]: a client's shares against those of all together."""
    everybody = counts.sum(axis=0) / max(1, counts.sum())
    return np.asarray(np.abs(_shares(counts) - everybody).sum(axis=1))


def _shares(counts: np.ndarray) -> np.ndarray:
    """Each client's shares of its samples [N, C]."""
    return np.asarray(counts / np.maximum(1, counts.sum(axis=1, keepdims=True)))


def entropy(shares: np.ndarray) -> np.ndarray:
    """Entropy in bits along the last axis of shares that sum to 1; 0 where there are none."""
    bits: np.ndarray = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=-1) + 0.0  # no -0
    return bits


def summary(description: Description) -> list[tuple[str, str]]:
    """What there is to say of a partition in few numbers: (quantity, value)."""
    sizes, several = description.sizes, (description.counts > 0).sum(axis=1)
    everybody = description.counts.sum(axis=0) / max(1, description.counts.sum())
    spread = float(sizes.std(ddof=1)) if len(sizes) > 1 else 0.0
    return [
        ("clients", f"{len(sizes)}"),
        ("samples", f"{sizes.sum()}" + (f" ({description.unused} unused)" if description.unused else "")),
        ("samples a client", f"{_range(sizes)}, mean {sizes.mean():.4g}, stdev {spread:.4g}"),
        (f"{PLURAL[description.what]} a client", f"{_range(several)} of {len(description.names)}"),
        ("entropy a client (bits)", f"{_range(description.entropy)}; of all together {float(entropy(everybody)):.3g}"),
        ("distance to all (0 to 2)", f"{_range(description.distance)}, mean {description.distance.mean():.3g}"),
    ]


def _range(values: np.ndarray) -> str:
    return f"{_number(values.min())} to {_number(values.max())}, median {_number(np.median(values))}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.4g}"


def _names(dataset: Dataset, columns: int) -> list[str]:
    return dataset.output_names or [str(c) for c in range(columns)]


def _spans(dataset: Dataset) -> tuple[np.ndarray, list[str]]:
    """The span of each training sample's number [n], 0 .. B-1, and the spans' names, in the number's own unit."""
    y = dataset.train_y.reshape(len(dataset.train_y), -1)[:, 0].astype(np.float64)
    if dataset.unit is not None:
        y = y * dataset.unit[1][0] + dataset.unit[0][0]
    edges = np.unique(np.quantile(y, np.linspace(0, 1, BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, y, side="left")
    used, bins = np.unique(bins, return_inverse=True)
    low, high = [y[bins == b].min() for b in range(len(used))], [y[bins == b].max() for b in range(len(used))]
    return bins, [f"{a:.4g} to {b:.4g}" if a < b else f"{a:.4g}" for a, b in zip(low, high, strict=True)]
