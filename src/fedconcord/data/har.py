"""Human Activity Recognition Using Smartphones (Anguita et al., ESANN 2013) from its published text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.data.dataset import Dataset
from fedconcord.data.published import Download, Published, damaged, read_labels, read_numbers

FILES = ("train/X_train.txt", "train/y_train.txt", "train/subject_train.txt", "test/X_test.txt", "test/y_test.txt")
FEATURES, CLASSES = 561, 6
NAMES = ["walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"]
HAR = Published(
    "har",
    "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    "UCI HAR Dataset",
    FILES,
    (
        Download(
            ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
            "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
            {f"UCI HAR Dataset/{name}": f"UCI HAR Dataset/{name}" for name in FILES},
            "UCI HAR Dataset.zip",
            "UCI gives no checksum; this one is what several public projects recorded",
        ),
    ),
)


def har(folder: Path, seed: int, /) -> Dataset:
    """Smartphone motion, 561 features, 6 activities, 7,352 + 2,947 samples, 21 + 9 persons; in UCI HAR Dataset/.

    Features are in [-1, 1] as published. The persons who train are clients of `partition = "natural"`, in the order of
    their numbers; the test persons are others. `seed` is not used.

    Raises:
        UserError: a file is missing or not as published.
    """
    x_path, y_path, persons_path, test_x_path, test_y_path = HAR.paths(folder)
    train_x, train_y = _pair(x_path, y_path)
    test_x, test_y = _pair(test_x_path, test_y_path)
    subject = read_numbers(persons_path, 1)[:, 0].astype(np.int64)
    if len(subject) != len(train_y):
        raise damaged(persons_path, f"it has {len(subject)} lines for {len(train_y)} samples")
    persons = np.unique(subject)
    return Dataset(
        "har",
        train_x,
        train_y,
        test_x,
        test_y,
        CLASSES,
        natural=[np.flatnonzero(subject == person) for person in persons],
        client_names=[f"person {person}" for person in persons],
        output_names=NAMES,
    )


def _pair(x_path: Path, y_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 561] float32 and labels [n] int64, 0 .. 5, of one split."""
    x = read_numbers(x_path, FEATURES)
    y = read_labels(y_path, read_numbers(y_path, 1)[:, 0], CLASSES)
    if len(x) != len(y):
        raise damaged(y_path, f"it has {len(y)} labels for {len(x)} samples")
    return x.astype(np.float32), y
