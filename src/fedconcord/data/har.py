"""Human Activity Recognition Using Smartphones (Anguita et al., ESANN 2013) from its published text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import damaged, missing, read_labels, read_numbers

PAGE = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
FOLDER = "UCI HAR Dataset"
FILES = ["train/X_train.txt", "train/y_train.txt", "train/subject_train.txt", "test/X_test.txt", "test/y_test.txt"]
FEATURES, CLASSES = 561, 6
NAMES = ["walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"]


def har(folder: Path, seed: int, /) -> Dataset:
    """Smartphone motion, 561 features, 6 activities, 7,352 + 2,947 samples, 21 + 9 persons; in UCI HAR Dataset/.

    Features are in [-1, 1] as published. The persons who train are clients of `partition = "natural"`, in the order of
    their numbers; the test persons are others. `seed` is not used.

    Raises:
        UserError: a file is missing or not as published.
    """
    folder = folder / FOLDER
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise missing("har", folder, FILES, absent, PAGE)
    train_x, train_y = _pair(folder, "train")
    test_x, test_y = _pair(folder, "test")
    path = folder / FILES[2]
    subject = read_numbers(path, 1)[:, 0].astype(np.int64)
    if len(subject) != len(train_y):
        raise damaged(path, f"it has {len(subject)} lines for {len(train_y)} samples")
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


def _pair(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 561] float32 and labels [n] int64, 0 .. 5, of one split."""
    x = read_numbers(folder / split / f"X_{split}.txt", FEATURES)
    path = folder / split / f"y_{split}.txt"
    y = read_labels(path, read_numbers(path, 1)[:, 0], CLASSES)
    if len(x) != len(y):
        raise damaged(path, f"it has {len(y)} labels for {len(x)} samples")
    return x.astype(np.float32), y
