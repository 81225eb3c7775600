"""What a person says of papers and recipes: the sentences of found.toml, with the predicates that carry each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Sentence(NamedTuple):
    """A sentence, and what carries it."""

    text: str
    by: tuple[str, ...]  # "F1.2 held": the second claim of experiment F1 has this verdict; "F1 untested": all have

    @property
    def carriers(self) -> list[tuple[str, str]]:
        """(number of the claim or of an experiment, its verdict) of each."""
        parts = [re.fullmatch(r"((?:eq\. )?[\w.]+) (.+)", one) for one in self.by]
        return [(part[1], part[2]) for part in parts if part is not None]


class Found(NamedTuple):
    """Of a recipe."""

    minutes: float | None = None  # of its desk size on two cores, at most; None: not measured
    sentences: tuple[Sentence, ...] = ()


class Paper(NamedTuple):
    """A paper in the index."""

    cited: str
    sentences: tuple[Sentence, ...]  # what of it holds


def _sentences(words: Mapping[str, Any]) -> tuple[Sentence, ...]:
    return tuple(Sentence(one["text"], tuple(one["by"])) for one in words.get("sentences", ()))


WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PAPERS: Mapping[str, Paper] = {
    name: Paper(words["cited"], _sentences(words)) for name, words in WORDS["papers"].items()
}
QUICK: float = WORDS["quick"]  # minutes
FOUND: Mapping[str, Found] = {
    name: Found(words.get("minutes"), _sentences(words)) for name, words in WORDS["recipes"].items()
}
