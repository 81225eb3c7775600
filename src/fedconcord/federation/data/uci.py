"""Two data sets of the UCI repository from their published text files.

Human Activity Recognition Using Smartphones (Anguita et al., ESANN 2013), and Epileptic Seizure Recognition (Wu and
Fokoue 2017, after Andrzejak et al. 2001).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconcord.federation.data.dataset import Dataset, scaling
from fedconcord.federation.data.published import Download, Published, archived, damaged, read_labels, read_numbers
from fedconcord.method.contract.rng import Purpose, generator

FILES = ("train/X_train.txt", "train/y_train.txt", "train/subject_train.txt", "test/X_test.txt", "test/y_test.txt")
ACTIVITIES = ["walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"]
HAR = archived(
    "har",
    "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    "UCI HAR Dataset",
    FILES,
    Download(
        ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
        "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        inside="UCI HAR Dataset.zip",
        note="UCI gives no checksum; this one is what several public projects recorded",
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
    train, test = _pair(x_path, y_path), _pair(test_x_path, test_y_path)
    subject = read_numbers(persons_path, 1)[:, 0].astype(np.int64)
    if len(subject) != len(train[1]):
        raise damaged(persons_path, f"it has {len(subject)} lines for {len(train[1])} samples")
    persons = np.unique(subject)
    natural = [np.flatnonzero(subject == person) for person in persons]
    who = [f"person {person}" for person in persons]
    return Dataset("har", *train, *test, len(ACTIVITIES), natural, client_names=who, output_names=ACTIVITIES)


def _pair(x_path: Path, y_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 561] float32 and labels [n] int64, 0 .. 5, of one split."""
    x = read_numbers(x_path, 561)
    y = read_labels(y_path, read_numbers(y_path, 1)[:, 0], len(ACTIVITIES))
    if len(x) != len(y):
        raise damaged(y_path, f"it has {len(y)} labels for {len(x)} samples")
    return x.astype(np.float32), y


TRAIN_SHARE = 0.8
STATES = ["seizure", "tumour area", "healthy area", "eyes closed", "eyes open"]
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
    table = read_numbers(path, 179, delimiter=",", skip=(1, 1))  # lines of a name, X1 .. X178 and y in 1 .. 5
    x, y = table[:, :-1], read_labels(path, table[:, -1], len(STATES))
    order = generator(0, Purpose.SPLIT, client=2).permutation(len(y))
    train, test = np.split(order, [int(TRAIN_SHARE * len(y))])
    mean, std = x[train].mean(axis=0), x[train].std(axis=0)
    std[std == 0] = 1
    x = ((x - mean) / std).astype(np.float32)
    scale = scaling(1.0, mean.tolist(), std.tolist())
    return Dataset("esr", x[train], y[train], x[test], y[test], len(STATES), output_names=STATES, preprocessing=scale)
