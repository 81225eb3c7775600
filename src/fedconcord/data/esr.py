"""Epileptic Seizure Recognition (Wu and Fokoue 2017, after Andrzejak et al. 2001) from its published CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.core.rng import Purpose, generator
from fedconcord.data.dataset import Dataset
from fedconcord.data.published import Download, Published, read_labels, read_numbers

FEATURES, CLASSES = 178, 5
TRAIN_SHARE = 0.8
NAMES = ["seizure", "tumour area", "healthy area", "eyes closed", "eyes open"]
ESR = Published(
    "esr",
    "https://archive.ics.uci.edu/dataset/388/epileptic+seizure+recognition",
    "esr",
    ("data.csv",),
    (
        Download(
            (
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00388/data.csv",
                "https://web.archive.org/web/20200318000445id_/"
                "http://archive.ics.uci.edu/ml/machine-learning-databases/00388/data.csv",
            ),
            None,
            {"esr/data.csv": ""},
            note="no checksum is known; UCI may have withdrawn the file, then the Internet Archive's copy is taken",
        ),
    ),
)


def esr(folder: Path, seed: int, /) -> Dataset:
    """EEG of a second, 178 features, 5 classes, 9,200 + 2,300 samples; the file esr/data.csv.

    Each feature is scaled to mean 0 and standard deviation 1 over the training samples. The publisher has no split:
    80 % drawn at random train, the same for every seed, so that test figures compare. Samples are seconds of 500
    recordings, and a recording may have some in both. `folder` holds the file; `seed` is not used.

    Raises:
        UserError: the file is missing or not as published.
    """
    (path,) = ESR.paths(folder)
    table = read_numbers(path, FEATURES + 1, delimiter=",", skip=(1, 1))  # lines of a name, X1 .. X178 and y in 1 .. 5
    x, y = table[:, :-1], read_labels(path, table[:, -1], CLASSES)
    order = generator(0, Purpose.SPLIT, client=2).permutation(len(y))
    train, test = np.split(order, [int(TRAIN_SHARE * len(y))])
    mean, std = x[train].mean(axis=0), x[train].std(axis=0)
    std[std == 0] = 1
    x = ((x - mean) / std).astype(np.float32)
    scale = {"kind": "scale", "divide": 1.0, "mean": mean.tolist(), "std": std.tolist()}
    return Dataset("esr", x[train], y[train], x[test], y[test], CLASSES, output_names=NAMES, preprocessing=scale)
