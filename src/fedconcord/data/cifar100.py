"""CIFAR-100 (Krizhevsky 2009) from its published binary files; the pickled version is never read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.data.cifar10 import read_rows
from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import damaged, missing

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100 binary version)"
FILES = {"train.bin": 50_000, "test.bin": 10_000}
MEAN, STD = [0.507, 0.487, 0.441], [0.267, 0.256, 0.276]
COARSE, FINE = 20, 100


def cifar100(
    folder: Path,
    seed: int,
    /,
    coarse: Annotated[
        bool, Field(strict=True, description="the 20 superclasses for labels in place of the 100 classes")
    ] = False,
) -> Dataset:
    """CIFAR-100 photographs, 32x32 colour, 100 classes, 50,000 + 10,000 samples; two files in cifar-100-binary/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.507, 0.487, 0.441) and standard
    deviation (0.267, 0.256, 0.276). Each row of a file is a coarse label, a fine label and three planes. `seed` is not
    used.

    Raises:
        UserError: a file is missing or not as published.
    """
    folder = folder / "cifar-100-binary"
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise missing("cifar100", folder, [*FILES], absent, PAGE)
    x, y = [], []
    for name, rows in FILES.items():
        labels, pixels = read_rows(folder / name, rows, 2)
        if (labels.max(axis=0) >= (COARSE, FINE)).any():
            most = labels.max(axis=0)
            raise damaged(
                folder / name,
                f"it holds the coarse label {most[0]} and the fine label {most[1]}, CIFAR-100's end at 19 and 99",
            )
        x.append(np.ascontiguousarray(pixels))  # without the labels between them
        y.append(labels[:, 0 if coarse else 1])
    scale = {"kind": "scale", "divide": 255.0, "mean": MEAN, "std": STD}
    return Dataset("cifar100", x[0], y[0], x[1], y[1], COARSE if coarse else FINE, preprocessing=scale)
