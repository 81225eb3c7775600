"""What is worth its hours at the papers' own size, the most valuable first: items.toml in types."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    """A recipe at the paper's size, or some of its cells."""

    recipe: str
    why: str
    hours: float | None = None  # of two cores with one seed, estimated; None: not counted
    cells: tuple[str, ...] | None = None  # all if none
    needs_gpu: bool = False


ITEMS = tuple(
    Item(**{**item, "cells": None if "cells" not in item else tuple(item["cells"])})
    for item in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["item"]
)


def estimate(recipe: str) -> str:
    """What a recipe is expected to take with one seed, in words; empty where nobody has counted it."""
    own = [item for item in ITEMS if item.recipe == recipe]
    hours = sum(item.hours or 0.0 for item in own)
    if any(item.needs_gpu for item in own):
        return "a GPU"
    return f"about {hours:.2g} hours of two cores with one seed" if hours else ""
