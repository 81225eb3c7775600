"""CIFAR-10 (Krizhevsky 2009) from its published binary files; the pickled version is never read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import damaged, missing

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-10 binary version)"
TRAIN = [f"data_batch_{k}.bin" for k in range(1, 6)]
TEST = "test_batch.bin"
MEAN, STD = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]
ROWS, SHAPE, CLASSES = 10_000, (3, 32, 32), 10
ROW_BYTES = 1 + 3 * 32 * 32
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar10(folder: Path, seed: int, /) -> Dataset:
    """CIFAR-10 photographs, 32x32 colour, 10 classes, 50,000 + 10,000 samples; six files in cifar-10-batches-bin/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.491, 0.482, 0.447) and standard
    deviation (0.247, 0.243, 0.262), as FedDyn and A-FedPD do. `seed` is not used.

    Raises:
        UserError: a file is missing or not as published.
    """
    folder = folder / "cifar-10-batches-bin"
    files = [*TRAIN, TEST]
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise missing("cifar10", folder, files, absent, PAGE)
    pixels, labels = np.empty((len(files), ROWS, *SHAPE), np.uint8), np.empty((len(files), ROWS), np.int64)
    for k, name in enumerate(files):
        pixels[k], labels[k] = read_batch(folder / name)
    train_x, train_y = pixels[:-1].reshape(-1, *SHAPE), labels[:-1].reshape(-1)
    scale = {"kind": "scale", "divide": 255.0, "mean": MEAN, "std": STD}
    return Dataset(
        "cifar10", train_x, train_y, pixels[-1], labels[-1], CLASSES, output_names=NAMES, preprocessing=scale
    )


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [10000, 3, 32, 32] uint8 and labels [10000] int64 of one file: rows of a label byte and three planes.

    Raises:
        UserError: the file cannot be read, has another length or a label above 9.
    """
    labels, pixels = read_rows(path, ROWS, 1)
    if labels.max() >= CLASSES:
        raise damaged(path, f"it holds the label {labels.max()}, CIFAR-10's are 0 to 9")
    return pixels, labels[:, 0]


def read_rows(path: Path, rows: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows, label_bytes] int64 and pixels [rows, 3, 32, 32] uint8 of a file in CIFAR's binary form.

    Raises:
        UserError: the file cannot be read or has another length.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise damaged(path, str(error)) from error
    row_bytes = label_bytes + math.prod(SHAPE)
    if data.size != rows * row_bytes:
        raise damaged(path, f"it has {data.size} bytes, the published file {rows * row_bytes}")
    table = data.reshape(rows, row_bytes)
    return table[:, :label_bytes].astype(np.int64), table[:, label_bytes:].reshape(rows, *SHAPE)
