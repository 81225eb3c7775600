"""Samples of every client that are set apart: never trained on, there to judge a model on that client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconcord.core.rng import Purpose, generator


def hold_out(parts: Sequence[np.ndarray], share: float, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(training samples, held-out samples) of each client, both in the order of `parts`.

    A client of n >= 2 samples sets apart round(share n) of them, at least 1 and at most n - 1, drawn by the key (seed,
    VALIDATION, client); a client with a single sample trains on it and sets none apart.

    Args:
        parts: N arrays of sample indices.
        share: in (0, 1).
    """
    kept, held = [], []
    for i, part in enumerate(parts):
        count = min(max(1, round(share * len(part))), len(part) - 1)
        apart = np.zeros(len(part), bool)
        apart[generator(seed, Purpose.VALIDATION, client=i).permutation(len(part))[:count]] = True
        kept.append(part[~apart])
        held.append(part[apart])
    return kept, held
