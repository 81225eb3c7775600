"""Where data files lie, and the sentences for files that are missing or damaged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedconcord.errors import UserError


def data_folder(given: str | None) -> Path:
    """The folder of data files: the one given, else $FEDCONCORD_DATA, else fedconcord/data in the user's cache.

    The folder need not exist. An empty string counts as not given.
    """
    chosen = given or os.environ.get("FEDCONCORD_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "fedconcord" / "data"


def missing(dataset: str, folder: Path, files: Sequence[str], absent: Sequence[str], page: str) -> UserError:
    """The sentence for files of a data set that are not in its folder."""
    lacking = "none of them is there" if len(absent) == len(files) else f"missing: {', '.join(absent)}"
    return UserError(
        f"data set {dataset!r} needs the files {', '.join(files)} in the folder {folder} ({lacking}); fetch them from "
        f"{page} and put them there, or name the folder above with --data-dir or FEDCONCORD_DATA"
    )


def damaged(path: Path, why: str) -> UserError:
    """The sentence for a file that is not what its publisher wrote."""
    return UserError(f"cannot read {path}: {why}; delete the file and fetch it again")
