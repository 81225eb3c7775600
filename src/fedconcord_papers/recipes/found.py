"""What desk runs took and showed, by recipe, and what of each paper holds: the words of found.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """Of the desk size of a recipe."""

    minutes: float | None = None  # on two cores; an upper bound where the machine did other work; None: not measured
    sentences: tuple[str, ...] = ()


class Paper(NamedTuple):
    """A paper in the index."""

    cited: str
    summary: str  # what of it holds, in a paragraph


WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SUMMARIES: Mapping[str, Paper] = {name: Paper(**words) for name, words in WORDS["papers"].items()}
QUICK: float = WORDS["quick"]  # minutes
FOUND: Mapping[str, Found] = {
    name: Found(words.get("minutes"), tuple(words.get("sentences", ()))) for name, words in WORDS["desk"].items()
}
