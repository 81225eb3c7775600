"""Where the best trial stands at the end of its range, and how far to extend that."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedconcord.basis.errors import UserError
from fedconcord.basis.factories import Search
from fedconcord.settings.settings import Config
from fedconcord.tuning.results import MethodSearch
from fedconcord.tuning.space import parameters

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
        side = None if place.low == place.high else _side(place, value)
        if side is None:
            continue
        low, high = _further(place, side)
        end = low if side == "low" else high
        extended = f"{key}={place.scale}({low:.3g},{high:.3g})" if _takes(config, search.space.method, key, end) else ""
        at_ends.append(Edge(key, value, side, extended, place))
    return at_ends


def extend_words(edge: Edge) -> str:
    """What to do about a best value at the end of its range."""
    where = f"The best is at the {edge.side} end of {edge.key}, which was searched from {edge.range}"
    return f'{where}: extend it, --search "{edge.search}".' if edge.search else f"{where}; there is little room beyond."


def _side(place: Search, value: float) -> str | None:
    share = _position(place, value)
    return "low" if share <= NEAR else "high" if share >= 1 - NEAR else None


def _position(place: Search, value: float) -> float:
    """Where a value stands in its range, from 0 to 1 in the range's own scale."""
    if place.scale == "log":
        return math.log(value / place.low) / math.log(place.high / place.low)
    return (value - place.low) / (place.high - place.low)


def _further(place: Search, side: str) -> tuple[float, float]:
    """The range, longer on one side."""
    if place.scale == "log":
        return (place.low / FACTOR, place.high) if side == "low" else (place.low, place.high * FACTOR)
    length = place.high - place.low
    return (place.low - length / 2, place.high) if side == "low" else (place.low, place.high + length / 2)


def _takes(config: Config, method: str, key: str, value: float) -> bool:
    """Whether a method's parameter may have a value."""
    try:
        parameters(config, method)[key].check(value, method)
    except UserError:
        return False
    return True
