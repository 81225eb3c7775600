"""scikit-learn's handwritten digits (UCI, Alpaydin and Kaynak 1998): real images that need no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedconcord.core.rng import Purpose, generator
from fedconcord.data.dataset import Dataset
from fedconcord.data.published import read_numbers

TRAIN_SHARE = 0.8


def digits(folder: Path, seed: int, /) -> Dataset:
    """Handwritten digits of scikit-learn, 8x8 grey, 10 classes, 1,437 + 360 samples; no download.

    Samples are [1, 8, 8], pixels in [0, 1]. The split is one and the same for every seed, so that test figures of
    different seeds compare; `folder` and `seed` are not used.
    """
    table = _table()
    x = (table[:, :-1] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = table[:, -1].astype(np.int64)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    train, test = np.split(order, [int(TRAIN_SHARE * len(y))])
    scale = {"kind": "scale", "divide": 16.0, "mean": [0.0], "std": [1.0]}
    return Dataset("digits", x[train], y[train], x[test], y[test], classes=10, preprocessing=scale)


def _table() -> np.ndarray:
    """Pixels and the digit of all images [1797, 65], from scikit-learn's file: importing the package takes a second."""
    spec = find_spec("sklearn")
    path = Path((spec and spec.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        return read_numbers(path, 65, ",")
    from sklearn.datasets import load_digits  # of a version that keeps it elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
