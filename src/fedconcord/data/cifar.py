"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their published binary files; the pickled versions are never read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np

from fedconcord.basis.parameters import about
from fedconcord.data.dataset import Dataset
from fedconcord.data.published import Download, Published, damaged

SHAPE = (3, 32, 32)
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]  # of CIFAR-10
COARSE, FINE = 20, 100


def _published(name: str, title: str, folder: str, archive: str, md5: str, files: tuple[str, ...]) -> Published:
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    members = {f"{folder}/{file}": f"{folder}/{file}" for file in files}
    page = f"https://www.cs.toronto.edu/~kriz/cifar.html ({title} binary version)"  # which has the checksums
    return Published(name, page, folder, files, (Download((url,), f"md5:{md5}", members),))


CIFAR10 = _published(
    "cifar10",
    "CIFAR-10",
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
)
CIFAR100 = _published(
    "cifar100",
    "CIFAR-100",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    ("train.bin", "test.bin"),
)


def cifar10(folder: Path, seed: int, /) -> Dataset:
    """CIFAR-10 photographs, 32x32 colour, 10 classes, 50,000 + 10,000 samples; six files in cifar-10-batches-bin/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.491, 0.482, 0.447) and standard
    deviation (0.247, 0.243, 0.262), as FedDyn and A-FedPD do. `seed` is not used.

    Raises:
        UserError: a file is missing or not as published.
    """
    paths = CIFAR10.paths(folder)
    pixels, labels = np.empty((len(paths), 10_000, *SHAPE), np.uint8), np.empty((len(paths), 10_000), np.int64)
    for k, path in enumerate(paths):
        label, pixels[k] = read_rows(path, 10_000, 1)
        if label.max() >= 10:
            raise damaged(path, f"it holds the label {label.max()}, CIFAR-10's are 0 to 9")
        labels[k] = label[:, 0]
    train_x, train_y = pixels[:-1].reshape(-1, *SHAPE), labels[:-1].reshape(-1)
    scale = {"kind": "scale", "divide": 255.0, "mean": [0.491, 0.482, 0.447], "std": [0.247, 0.243, 0.262]}
    return Dataset("cifar10", train_x, train_y, pixels[-1], labels[-1], 10, output_names=NAMES, preprocessing=scale)


def cifar100(
    folder: Path,
    seed: int,
    /,
    coarse: Annotated[bool, about("whether labels are the 20 superclasses in place of the 100 classes")] = False,
) -> Dataset:
    """CIFAR-100 photographs, 32x32 colour, 100 classes, 50,000 + 10,000 samples; two files in cifar-100-binary/.

    Samples are [3, 32, 32], pixels divided by 255, then scaled a channel with mean (0.507, 0.487, 0.441) and standard
    deviation (0.267, 0.256, 0.276). Each row of a file is a coarse label, a fine label and three planes. `seed` is not
    used.

    Raises:
        UserError: a file is missing or not as published.
    """
    x, y = [], []
    for path, rows in zip(CIFAR100.paths(folder), (50_000, 10_000), strict=True):
        labels, pixels = read_rows(path, rows, 2)
        most = labels.max(axis=0)
        if (most >= (COARSE, FINE)).any():
            raise damaged(
                path, f"it holds the coarse label {most[0]} and the fine label {most[1]}, CIFAR-100's end at 19 and 99"
            )
        x.append(np.ascontiguousarray(pixels))  # without the labels between them
        y.append(labels[:, 0 if coarse else 1])
    scale = {"kind": "scale", "divide": 255.0, "mean": [0.507, 0.487, 0.441], "std": [0.267, 0.256, 0.276]}
    return Dataset("cifar100", x[0], y[0], x[1], y[1], COARSE if coarse else FINE, preprocessing=scale)


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
