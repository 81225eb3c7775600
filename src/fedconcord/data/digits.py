"""scikit-learn's handwritten digits (UCI, Alpaydin and Kaynak 1998): real images that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.core.rng import Purpose, generator
from fedconcord.data.dataset import Dataset

TRAIN_SHARE = 0.8


def digits(folder: Path, seed: int, /) -> Dataset:
    """Handwritten digits of scikit-learn, 8x8 grey, 10 classes, 1,437 + 360 samples; no download.

    Samples are [1, 8, 8], pixels in [0, 1]. The split is one and the same for every seed, so that test figures of
    different seeds compare; `folder` and `seed` are not used.
    """
    from sklearn.datasets import load_digits  # a second to import; the other data sets do not need it

    bunch = load_digits()
    x = (bunch.data / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = bunch.target.astype(np.int64)
    order = generator(0, Purpose.SPLIT).permutation(len(y))
    train, test = np.split(order, [int(TRAIN_SHARE * len(y))])
    scale = {"kind": "scale", "divide": 16.0, "mean": [0.0], "std": [1.0]}
    return Dataset("digits", x[train], y[train], x[test], y[test], classes=10, preprocessing=scale)
