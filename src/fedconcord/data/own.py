"""Data of the user's own, by path: a table, arrays, a folder of images, or a data set that `datasets` saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.objects import name_of
from fedconcord.data.arrays import from_arrays, read_npz
from fedconcord.data.dataset import Dataset
from fedconcord.data.images import has_images, read_folder, read_image_table
from fedconcord.data.inputs import Input
from fedconcord.data.sources import open_table
from fedconcord.data.tables import read_table


def read_own(path: Path, settings: Input) -> Dataset:
    """The federation at a path.

    Raises:
        UserError: there is nothing, or not what its ending says, or it cannot be a federation.
    """
    if path.suffix.lower() == ".npz":
        return read_npz(path, settings)
    if not path.is_dir():
        return read_table(path, settings)
    if (path / "dataset_dict.json").is_file():
        return read_own(*_parts(path, settings))
    if (path / "state.json").is_file():
        source = open_table(path)
        return read_image_table(source, settings) if source.images else read_table(path, settings)
    return read_folder(path, settings) if has_images(path) else read_table(path, settings)


def _parts(path: Path, settings: Input) -> tuple[Path, Input]:
    """The train and test parts of a saved DatasetDict."""
    try:
        parts = list(json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path / 'dataset_dict.json'} ({type(error).__name__}: {error})") from None
    if "train" not in parts:
        raise UserError(f"the saved data set {path} has the parts {', '.join(parts)} and no train; name one of them")
    test = str(path / "test") if "test" in parts and settings.test is None else settings.test
    return path / "train", settings._replace(test=test)


def checked(value: Any, settings: Input, where: str) -> Dataset:
    """What a function of the user's returned, checked: a Dataset, or a mapping of arrays.

    Raises:
        UserError: it is neither, or its arrays do not fit together.
    """
    if isinstance(value, Mapping):
        return from_arrays(name_of(where), value, settings, where)
    if not isinstance(value, Dataset):
        raise UserError(
            f"data {where} returned {type(value).__name__}; return a fedconcord.Dataset or a dict of arrays"
        )
    for part, x, y in (("train", value.train_x, value.train_y), ("test", value.test_x, value.test_y)):
        shape = (len(x),) if value.target == "class" else (len(x), value.classes)
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or not len(x) or y.shape != shape:
            given_shape = getattr(y, "shape", type(y).__name__)
            raise UserError(
                f"data {where}: {part}_y is {given_shape}; for {len(x)} samples it must be an array {shape}"
            )
    for i, samples in enumerate(value.natural or []):
        if not len(samples) or samples.min() < 0 or samples.max() >= len(value.train_x):
            raise UserError(f"data {where}: client {i} has no sample, or one that is not there")
    return value
