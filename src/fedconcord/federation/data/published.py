"""Published data sets: where their files come from and lie, and how a file that is not as published is refused."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedconcord.support import files
from fedconcord.support.errors import UserError


class Download(NamedTuple):
    """One file of a publisher and what becomes of it."""

    urls: tuple[str, ...]  # tried in turn
    checksum: str | None  # "md5:<hex>" or "sha256:<hex>"; None: no sum is known
    files: Mapping[str, str] = {}  # path below the data folder -> member of the archive ("": the download itself)
    inside: str | None = None  # the archive in the archive that the members are in
    note: str = ""  # where the checksum is from, and what else there is to know

    @property
    def name(self) -> str:
        """The download's own file name."""
        return PurePosixPath(self.urls[0]).name


class Published(NamedTuple):
    """The files of a data set, as its publisher wrote them."""

    name: str  # of the data set
    page: str  # of the publisher, for people
    folder: str  # below the data folder
    files: tuple[str, ...]  # below that folder; names that end in .gz may also lie there unpacked
    downloads: tuple[Download, ...]
    contents: Mapping[str, str] = {}  # unpacked file -> SHA-256 of what it holds, where that is checked
    system: Path | None = None  # folder of a package of the operating system with the same files

    def paths(self, data_folder: Path) -> list[Path]:
        """Where each of the files lies: below the data folder, or in the system's folder where nobody named a data
        folder and the user's own has none of them.

        Raises:
            UserError: a file is missing.
        """

        def place(folder: Path, name: str) -> Path | None:
            return next((path for path in (folder / name, folder / name.removesuffix(".gz")) if path.is_file()), None)

        folders = [data_folder / self.folder]
        if self.system is not None and data_folder == usual_folder():
            folders.append(self.system)
        candidates = [{name: place(folder, name) for name in self.files} for folder in folders]
        best = next((k for k, paths in enumerate(candidates) if any(paths.values())), 0)
        paths = [path for path in candidates[best].values() if path is not None]
        if len(paths) == len(self.files):
            return paths
        absent = [name for name, path in candidates[best].items() if path is None]
        lacking = f"missing: {', '.join(absent)}" if paths else "none of them is there"
        raise UserError(
            f"data set {self.name!r} needs the files {', '.join(self.files)} in the folder {folders[best]} "
            f"({lacking}); fetch them with `fedconcord data fetch {self.name}` or put them there from {self.page}, or "
            "name the folder above with --data-dir or FEDCONCORD_DATA"
        )


def archived(name: str, page: str, folder: str, files: tuple[str, ...], archive: Download) -> Published:
    """The record of files that come in one archive, in which they lie at the paths that they get."""
    members = {f"{folder}/{file}": f"{folder}/{file}" for file in files}
    return Published(name, page, folder, files, (archive._replace(files=members),))


def data_folder(named: str | None) -> Path:
    """The folder of data files: the one named, else $FEDCONCORD_DATA, else fedconcord/data in the user's cache.

    The folder need not exist. An empty string names none.
    """
    folder = named or os.environ.get("FEDCONCORD_DATA")
    return Path(folder).expanduser() if folder else usual_folder()


def usual_folder() -> Path:
    """Where data files lie if nobody names a folder."""
    return files.user_cache() / "data"


def damaged(path: Path, why: str) -> UserError:
    """The sentence for a file that is not what its publisher wrote."""
    return UserError(f"cannot read {path}: {why}; delete the file and fetch it again")


def read_numbers(path: Path, columns: int, delimiter: str | None = None, skip: tuple[int, int] = (0, 0)) -> np.ndarray:
    """A text table of finite numbers: [n, columns] float64, n >= 1, without the first `skip` rows and columns.

    Raises:
        UserError: the file cannot be read or is not such a table.
    """
    used = range(skip[1], skip[1] + columns) if skip[1] else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is refused below
            table = np.loadtxt(path, delimiter=delimiter, skiprows=skip[0], usecols=used, ndmin=2, encoding="utf-8")
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
