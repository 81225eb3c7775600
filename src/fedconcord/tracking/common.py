"""What the trackers share: their packages, the values of a row, and which run of theirs a folder's is."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

from fedconcord.basis import files
from fedconcord.basis.errors import UserError
from fedconcord.jobs import Row


def package(name: str, extra: str) -> Any:
    """A module of a tracker's package, imported without its warnings, which are for its authors.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"tracking with {extra} needs a package that is missing ({error}); pip install 'fedconcord[{extra}]'"
        ) from None


def values(row: Row) -> dict[str, float]:
    """Metrics, where the round was evaluated, bytes and gradients until now, and the seconds of the round."""
    numbers: dict[str, float] = {name.replace(":", "/"): value for name, value in (row.metrics or {}).items()}
    numbers |= {"bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "gradient_steps": row.gradient_steps}
    numbers["seconds"] = row.seconds
    return {**numbers, "simulated_seconds": row.simulated_seconds} if row.simulated_seconds else numbers


def marked(folder: Path, tracker: str) -> dict[str, Any]:
    """What a tracker has noted in the folder of a run; empty where it has not."""
    try:
        notes: dict[str, Any] = json.loads((folder / f"{tracker}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes


def mark(folder: Path, tracker: str, **noted: object) -> None:
    """Note for when the run is resumed."""
    files.write_json(folder / f"{tracker}.json", noted)
