"""The folder of a run: what lies in it, all usable at any moment, and what run.json says.

README.txt         the commands that go on from it
run.json           what was run, with which versions, and how far it came
metrics.csv        a row an evaluated round; no times in it, so that the same run writes the same bytes
clients.csv        a row a client: the final model on its samples (`fairness`); fairness.csv the spread over clients
checksums.json     of the small files, which are verified when they are read (`support.sums`)
timing.csv         seconds of each round, training alone; seconds.json those of all else too
partition.csv      samples of each class at each client; trace.csv what became of each order, without rounds
checkpoint.safetensors
model.safetensors  the run's answer: the last model, with early stopping the best; model.json says what it is of
rows.bin           the clients' state, where it lives on disk; the checkpoint says what is in it; of several processes
                   each has its own: rows-0-of-2.bin
tensorboard/       what trackers write (`interface.tracking`); mlflow.json and wandb.json say which of their runs it is
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedconcord
from fedconcord.execution.rows import path_of
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from fedconcord.support.readers import read_json

CHECKPOINT = "checkpoint.safetensors"


def shrink(folder: Path, *more: str) -> None:
    """Leave a run that nobody goes on from without its state, of 1,000 clients gigabytes, and more of its files."""
    for path in (folder / CHECKPOINT, path_of(folder), *(folder / name for name in more)):
        path.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Versions that a reader of the results needs."""
    return {
        "fedconcord": fedconcord.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def read_description(folder: Path) -> dict[str, Any]:
    """run.json of a folder.

    Raises:
        UserError: the folder holds no run, or its run.json is damaged.
    """
    try:
        description = read_json(folder / "run.json")
    except FileNotFoundError:
        raise UserError(f"{folder} holds no run (no run.json); give a folder that a run or comparison wrote") from None
    for key, kind in (("rounds_done", int), ("config", dict)):
        if not isinstance(description.get(key, kind()), kind):
            raise UserError(
                f"{folder / 'run.json'} is damaged: {key} is {description[key]!r}; restore it or start anew"
            )
    return description


def trust(folder: str | Path | None) -> None:
    """Follow the import paths that a folder's own files name: the user vouches for who made it.

    Raises:
        UserError: there is no folder to vouch for.
    """
    if folder is None:
        raise UserError("--trust (trust in Python) is for a folder of results; give --resume too, or leave it out")
    for path in Path(folder).glob("*.json"):
        imports.trust(path.read_text(encoding="utf-8", errors="replace"))


def refuse_taken(folder: Path) -> str:
    """While this process prepared its runs another one may have begun and ended in the folder."""
    if any((folder / name).exists() for name in ("run.json", "compare.json")):
        raise UserError(
            f"the folder {folder} is not empty; continue what it holds with --resume {folder}, or give another --out"
        )
    return ""
