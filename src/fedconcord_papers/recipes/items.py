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
    """What the items of a recipe are expected to take with one seed, in words; empty where nobody has counted it."""
    own = [item for item in ITEMS if item.recipe == recipe]
    hours = sum(item.hours or 0.0 for item in own)
    if any(item.needs_gpu for item in own):
        return "a GPU"
    some = ", some federations" if any(item.cells for item in own) else ""
    return f"{hours:.2g} h a seed{some}" if hours else ""


def commands(recipe: str) -> list[str]:
    """What runs a recipe at the paper's size, item by item, with the hours of two cores that one seed may take."""
    lines = []
    for item in ITEMS:
        if item.recipe == recipe:
            some = f" --cells {','.join(item.cells)}" if item.cells else ""
            hours = (
                "needs a GPU" if item.needs_gpu else "" if item.hours is None else f"about {item.hours:.2g} h a seed"
            )
            lines.append(f"fedconcord reproduce {recipe} --paper{some}{f'    # {hours}' if hours else ''}")
    return lines
