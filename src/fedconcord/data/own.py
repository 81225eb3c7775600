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


def read_own(path: Path, given: Input) -> Dataset:
    """The federation at a path.

    Raises:
        UserError: there is nothing, or not what its ending says, or it cannot be a federation.
    """
    if path.suffix.lower() == ".npz":
        return read_npz(path, given)
    if not path.is_dir():
        return read_table(path, given)
    if (path / "dataset_dict.json").is_file():
        return read_own(*_parts(path, given))
    if (path / "state.json").is_file():
        source = open_table(path)
        return read_image_table(source, given) if source.images else read_table(path, given)
    return read_folder(path, given) if has_images(path) else read_table(path, given)


def _parts(path: Path, given: Input) -> tuple[Path, Input]:
    """The train and test parts of a saved DatasetDict."""
    try:
        parts = list(json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path / 'dataset_dict.json'} ({type(error).__name__}: {error})") from None
    if "train" not in parts:
        raise UserError(f"the saved data set {path} has the parts {', '.join(parts)} and no train; name one of them")
    test = str(path / "test") if "test" in parts and given.test is None else given.test
    return path / "train", given._replace(test=test)


def made(found: Any, given: Input, where: str) -> Dataset:
    """What a function of the user's returned, checked: a Dataset, or a mapping of arrays.

    Raises:
        UserError: it is neither, or its arrays do not fit together.
    """
    if isinstance(found, Mapping):
        return from_arrays(name_of(where), found, given, where)
    if not isinstance(found, Dataset):
        raise UserError(
            f"data {where} returned {type(found).__name__}; return a fedconcord.Dataset or a dict of arrays"
        )
    for part, x, y in (("train", found.train_x, found.train_y), ("test", found.test_x, found.test_y)):
        shape = (len(x),) if found.target == "class" else (len(x), found.classes)
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or not len(x) or y.shape != shape:
            given_shape = getattr(y, "shape", type(y).__name__)
            raise UserError(
                f"data {where}: {part}_y is {given_shape}; for {len(x)} samples it must be an array {shape}"
            )
    for i, samples in enumerate(found.natural or []):
        if not len(samples) or samples.min() < 0 or samples.max() >= len(found.train_x):
            raise UserError(f"data {where}: client {i} has no sample, or one that is not there")
    return found
