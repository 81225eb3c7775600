"""The papers' experiments by name: `fedconcord reproduce NAME`. A recipe prints the paper's numbers beside ours.

To add one: a file with `run(out, quick, say)` and its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Recipe(NamedTuple):
    """An experiment of a paper."""

    run: Callable[[Path, bool, Callable[[str], None]], None]
    """(folder for figures and tables, quick form?, print a line of progress or result)."""
    source: str  # paper, figure or table
    claim: str  # what the paper says it shows, in one sentence
    minutes: str  # on two cores, full and quick


RECIPES: dict[str, Recipe] = {}
