"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) from its published IDX files, which are MNIST's but for the pictures."""

from __future__ import annotations

from pathlib import Path

from fedconcord.data.dataset import Dataset
from fedconcord.data.mnist import images

PAGE = "https://github.com/zalandoresearch/fashion-mnist"
MEAN, STD = 0.2860, 0.3530
NAMES = [
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
]


def fmnist(folder: Path, seed: int, /) -> Dataset:
    """Fashion-MNIST clothes, 28x28 grey, 10 classes, 60,000 + 10,000 samples; four files in fmnist/.

    Samples are [1, 28, 28], pixels divided by 255, then (x - 0.2860) / 0.3530. The files are read from folder/fmnist,
    gzipped (name ending in .gz, as published) or not; `seed` is not used.

    Raises:
        UserError: a file is missing, truncated or not in the IDX format.
    """
    return images("fmnist", folder, PAGE, MEAN, STD, NAMES)
