"""What a search finds of each method, how its trials stand in words, and where the best is at the end of its range."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedconcord.basis.errors import UserError
from fedconcord.basis.factories import Search
from fedconcord.report.format import value
from fedconcord.settings.methods import canonical_text, read_method
from fedconcord.settings.settings import Config
from fedconcord.tuning.scores import Objective, Score
from fedconcord.tuning.space import Space, Values, parameters, text_of


class Trial(NamedTuple):
    """One point of a method's space, as far as it went."""

    number: int
    values: Values
    scores: dict[int, Score]  # rounds -> score, as far as it has come
    errors: list[str]  # of runs that failed

    @property
    def rounds(self) -> int:
        """How far it went."""
        return max(self.scores)

    @property
    def last(self) -> Score:
        """After all its rounds."""
        return self.scores[self.rounds]


class MethodSearch(NamedTuple):
    """The trials of one method."""

    space: Space
    trials: Sequence[Trial]
    best: Trial | None  # None where nothing is looked for, or no trial ended well


def shown(objective: Objective, score: Score) -> str:
    """A score in words."""
    metric, target = objective.metric, objective.target
    words = f"{metric.title} {value(metric, score.value)}"
    if target is None or score.broken:
        return words
    if score.reached is None:
        return f"{words}, short of {target:g}"
    return f"{words}, {score.reached:.3g} rounds to {target:g}"


def winner(config: Config, search: MethodSearch) -> str | None:
    """The text of a method as it goes into the final comparison; None where no trial ended well."""
    if search.space.places:
        return None if search.best is None else text_of(config, search.space.method, search.best.values)
    return search.space.method


def winners(config: Config, searches: Sequence[MethodSearch]) -> dict[str, str]:
    """Method as the user wrote it -> its text in the final comparison, where a trial ended well.

    Reports call a method that was tuned by its bare name, where no other has that: its values are long.
    """
    texts: dict[str, str] = {}
    bare = Counter(read_method(search.space.method)[0].name for search in searches)
    for search in searches:
        text = winner(config, search)
        if text is None or text in texts.values():
            continue
        call, overrides = read_method(text)
        if search.space.places and bare[call.name] == 1:
            text = canonical_text(config, call, {"label": call.name, **overrides})
        texts[search.space.method] = text
    return texts


NEAR = 0.1  # of a range's length, in its own scale, is its edge
FACTOR = 3.0  # by which an end in logarithms moves; a linear one by half of the range


class Edge(NamedTuple):
    """A parameter whose best value is at an end of what was searched."""

    key: str
    value: float
    side: str  # low or high
    search: str  # what to give to --search; empty where the parameter has no such values
    range: Search


def edges(config: Config, search: MethodSearch) -> list[Edge]:
    """The edges at which the best trial stands. A grid's ends are edges as well."""
    if search.best is None:
        return []
    at_ends = []
    for key, place in search.space.places.items():
        value = search.best.values[key]
        extension = None if place.low == place.high else _extension(place, value)
        if extension is None:
            continue
        side, low, high = extension
        end = low if side == "low" else high
        extended = f"{key}={place.scale}({low:.3g},{high:.3g})" if _takes(config, search.space.method, key, end) else ""
        at_ends.append(Edge(key, value, side, extended, place))
    return at_ends


def extend_words(edge: Edge) -> str:
    """What to do about a best value at the end of its range."""
    where = f"The best is at the {edge.side} end of {edge.key}, which was searched from {edge.range}"
    return f'{where}: extend it, --search "{edge.search}".' if edge.search else f"{where}; there is little room beyond."


def _extension(place: Search, value: float) -> tuple[str, float, float] | None:
    """The end that a value is at, low or high, and the range with that end moved; None where it is at neither."""
    if place.scale == "log":
        share = math.log(value / place.low) / math.log(place.high / place.low)
        below, above = place.low / FACTOR, place.high * FACTOR
    else:
        length = place.high - place.low
        share, below, above = (value - place.low) / length, place.low - length / 2, place.high + length / 2
    if share <= NEAR:
        return "low", below, place.high
    return ("high", place.low, above) if share >= 1 - NEAR else None


def _takes(config: Config, method: str, key: str, value: float) -> bool:
    """Whether a method's parameter may have a value."""
    try:
        parameters(config, method)[key].check(value, method)
    except UserError:
        return False
    return True
