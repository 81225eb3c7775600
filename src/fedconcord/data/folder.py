"""Where data files lie, and the sentences for files that are missing or damaged."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedconcord.basis import folders
from fedconcord.basis.errors import UserError


def data_folder(given: str | None) -> Path:
    """The folder of data files: the one given, else $FEDCONCORD_DATA, else fedconcord/data in the user's cache.

    The folder need not exist. An empty string counts as not given.
    """
    chosen = given or os.environ.get("FEDCONCORD_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return usual_folder()


def usual_folder() -> Path:
    """Where data files lie if nobody names a folder."""
    return folders.user_cache() / "data"


def missing(dataset: str, folder: Path, files: Sequence[str], absent: Sequence[str], page: str) -> UserError:
    """The sentence for files of a data set that are not in its folder."""
    lacking = "none of them is there" if len(absent) == len(files) else f"missing: {', '.join(absent)}"
    return UserError(
        f"data set {dataset!r} needs the files {', '.join(files)} in the folder {folder} ({lacking}); fetch them with "
        f"`fedconcord data fetch {dataset}` or put them there from {page}, or name the folder above with --data-dir or "
        "FEDCONCORD_DATA"
    )


def damaged(path: Path, why: str) -> UserError:
    """The sentence for a file that is not what its publisher wrote."""
    return UserError(f"cannot read {path}: {why}; delete the file and fetch it again")


def read_numbers(path: Path, columns: int, delimiter: str | None = None, skip: tuple[int, int] = (0, 0)) -> np.ndarray:
    """A text table of finite numbers: [n, columns] float64, n >= 1, without the first `skip` rows and columns.

    Raises:
        UserError: the file cannot be read or is not such a table.
    """
    wanted = range(skip[1], skip[1] + columns) if skip[1] else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is refused below
            table = np.loadtxt(path, delimiter=delimiter, skiprows=skip[0], usecols=wanted, ndmin=2, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise damaged(path, str(error).splitlines()[0].rstrip(".")) from error
    if table.size == 0 or table.shape[1] != columns:
        raise damaged(path, f"it has {table.shape[1] if table.size else 0} columns, the published file {columns}")
    if not np.isfinite(table).all():
        raise damaged(path, "it holds values that are not finite")
    return table


def read_labels(path: Path, values: np.ndarray, classes: int) -> np.ndarray:
    """Labels [n] int64 from 0 on, of numbers [n] that are published as 1 .. classes.

    Raises:
        UserError: there are others.
    """
    if not np.isin(values, np.arange(1, classes + 1)).all():
        raise damaged(
            path, f"it holds labels from {values.min():g} to {values.max():g}, the published are 1 to {classes}"
        )
    return values.astype(np.int64) - 1
