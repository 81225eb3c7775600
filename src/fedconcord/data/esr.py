"""Epileptic Seizure Recognition (Wu and Fokoue 2017, after Andrzejak et al. 2001) from its published CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.core.rng import Purpose, generator
from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import missing, read_labels, read_numbers

PAGE = "https://archive.ics.uci.edu/dataset/388/epileptic+seizure+recognition"
FEATURES, CLASSES = 178, 5
TRAIN_SHARE = 0.8
NAMES = ["seizure", "tumour area", "healthy area", "eyes closed", "eyes open"]


def esr(folder: Path, seed: int, /) -> Dataset:
    """EEG of a second, 178 features, 5 classes, 9,200 + 2,300 samples; the file esr/data.csv.

    Each feature is scaled to mean 0 and standard deviation 1 over the training samples. The publisher has no split:
    80 % drawn at random train, the same for every seed, so that test figures compare. Samples are seconds of 500
    recordings, and a recording may have some in both. `folder` holds the file; `seed` is not used.

    Raises:
        UserError: the file is missing or not as published.
    """
    path = folder / "esr" / "data.csv"
    if not path.is_file():
        raise missing("esr", path.parent, ["data.csv"], ["data.csv"], PAGE)
    x, y = read_csv(path)
    order = generator(0, Purpose.SPLIT, client=2).permutation(len(y))
    train, test = np.split(order, [int(TRAIN_SHARE * len(y))])
    mean, std = x[train].mean(axis=0), x[train].std(axis=0)
    std[std == 0] = 1
    x = ((x - mean) / std).astype(np.float32)
    scale = {"kind": "scale", "divide": 1.0, "mean": mean.tolist(), "std": std.tolist()}
    return Dataset("esr", x[train], y[train], x[test], y[test], CLASSES, output_names=NAMES, preprocessing=scale)


def read_csv(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 178] float64 and labels [n] int64, 0 .. 4: lines of a name, X1 .. X178 and y in 1 .. 5.

    Raises:
        UserError: the file cannot be read or is not such a table.
    """
    table = read_numbers(path, FEATURES + 1, delimiter=",", skip=(1, 1))
    return table[:, :-1], read_labels(path, table[:, -1], CLASSES)
