"""Folders: of results, names that no shell or browser stumbles over and numbers that are free; and the user's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path


def folder_name(label: str) -> str:
    """A label as a file name that no shell or browser stumbles over: fedprox(mu=0.1) -> fedprox-mu=0.1."""
    return re.sub(r"-+", "-", re.sub(r"[^\w.=+-]", "-", label)).strip("-.") or "run"


def free_folder(parent: Path, stem: str) -> Path:
    """The first of parent/stem-1, parent/stem-2, ... that does not exist."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def user_cache() -> Path:
    """Where the program keeps what it can make or fetch again; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "fedconcord"
