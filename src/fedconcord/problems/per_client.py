"""Figures of one model for every client: all samples go through it once, then they are summed by client."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from fedconcord.problems.resident import Resident


class Samples(NamedTuple):
    """What clients are judged on: samples of all of them in one list, client after client."""

    split: Literal["train", "validation"]  # what the clients trained on, or what they set apart
    x: Resident  # [n, *shape]
    y: Tensor  # [n, ...]
    offsets: np.ndarray  # [N + 1] int64: those of client i are offsets[i] .. offsets[i+1]-1, perhaps none


class Scores(NamedTuple):
    """The figures of each client."""

    split: str
    samples: np.ndarray  # [N] int64 it was judged on
    values: dict[str, np.ndarray]  # metric -> [N] float64, NaN for a client without such samples
    overall: Mapping[str, float] = MappingProxyType({})  # metrics that are no mean over samples, of all samples


def by_client(values: Tensor, offsets: np.ndarray) -> np.ndarray:
    """The mean over each client's samples [N] float64 of values [n]; NaN for none. Summed in order, on the host."""
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(owner, weights=values.double().cpu().numpy(), minlength=len(counts))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def validation(scores: Scores, score: str, judged: np.ndarray) -> dict[str, float]:
    """`validation_loss` and `validation_<score>` over all samples of the clients that are judged [N] bool, and
    `validation_client_<score>`, in which each of them weighs the same."""
    means = {}
    for name in ("loss", score):
        values = scores.values[name]
        means[f"validation_{name}"] = float(np.average(values[judged], weights=scores.samples[judged]))
    return means | {f"validation_client_{score}": float(scores.values[score][judged].mean())}
