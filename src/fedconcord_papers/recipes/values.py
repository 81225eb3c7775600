"""Values of measures by cell, entry and seed, and what is found of a claim on them: files in, files out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

from fedconcord.study.statistics.stats import Interval, interval
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError

Outcome = Literal["held", "in part", "failed", "undecided", "untested"]
ON_STAND_IN: Mapping[Outcome, str] = {"held": "seen", "failed": "not seen"}  # which neither holds nor refutes a claim


DIVERGED = "diverged"  # among the values of a point: 1 if its run did
T = TypeVar("T")
U = TypeVar("U")
Points = Mapping[str, Mapping[str, Mapping[str, T]]]  # cell -> method -> measure -> value of the search's one seed


class Finding(NamedTuple):
    """What became of a claim, and the numbers that it rests on."""

    outcome: Outcome
    why: str = ""
    stand_in: bool = False  # the model, data or length are not the paper's

    @property
    def verdict(self) -> str:
        """In words: a stand-in may show what the paper says, or not show it, and no more."""
        return f"{ON_STAND_IN.get(self.outcome, self.outcome)} on a stand-in" if self.stand_in else self.outcome


class Value(NamedTuple):
    """One measure of one run; inf: a target that was not reached, NaN: the run diverged before it had a value."""

    measure: str
    cell: str
    entry: str
    seed: int
    value: float


class Values(NamedTuple):
    """All values of a recipe at one size."""

    rows: tuple[Value, ...]

    def seeds(self, measure: str, cell: str, entry: str) -> dict[int, float]:
        """Seed -> value; empty where this was not run."""
        return {r.seed: r.value for r in self.rows if (r.measure, r.cell, r.entry) == (measure, cell, entry)}

    def interval(self, measure: str, cell: str, entry: str) -> Interval:
        """Mean and interval over the seeds that have a finite value."""
        return interval([v for v in self.seeds(measure, cell, entry).values() if math.isfinite(v)])

    def cells(self, measure: str | None = None) -> list[str]:
        """Names of the cells that were run, in order."""
        return list(dict.fromkeys(r.cell for r in self.rows if measure in (None, r.measure)))

    def entries(self, cell: str | None = None) -> list[str]:
        """Names of the entries that were run, in order."""
        return list(dict.fromkeys(r.entry for r in self.rows if cell in (None, r.cell)))

    def measures(self) -> list[str]:
        """Names of the measures, in order."""
        return list(dict.fromkeys(r.measure for r in self.rows))


def values(rows: Iterable[tuple[str, str, str, int, float]]) -> Values:
    """Values from (measure, cell, entry, seed, value)."""
    return Values(tuple(Value(*row) for row in rows))


class Request(TypedDict):
    """What the runs of a cell were asked to do."""

    settings: Mapping[str, Any]  # by dotted key; of a study its options
    methods: Mapping[str, str]  # entry -> method as `compare` takes it, with the best of the grid; a study has none
    search: NotRequired[Mapping[str, Any]]  # over the settings where the grid was tried; absent where it was not


class Spell(TypedDict):
    """One stretch of work on a recipe, from a start of the command to its end."""

    began: str  # to the minute, in UTC, "2026-01-31T13:45"; empty where it is not known
    seconds: float  # of its runs, added over processes
    runs: int  # with those of the search
    machine: str
    version: str  # of fedconcord


class Done(NamedTuple):
    """What is known of a recipe at one size: enough for its page, and to go on elsewhere."""

    recipe: str
    size: str
    values: Values
    chosen: Mapping[str, Mapping[str, Mapping[str, Any]]]  # cell -> entry -> parameter -> best of the grid
    tried: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]  # cell -> entry -> parameter -> all that was tried
    asked: Mapping[str, Request]  # by cell; empty where it is not known
    searched: int  # runs of the search behind what was chosen
    log: Sequence[Spell]
    command: str
    points: Points[float] = MappingProxyType({})  # that were tried of grids; files from before 2026-11-29 have none

    @property
    def seconds(self) -> float:
        """The runs' own times, added over processes."""
        return sum(spell["seconds"] for spell in self.log)

    def write(self, path: Path) -> None:
        """As JSON, in one step; its values by cell, measure, entry and seed."""
        nested: dict[str, dict[str, dict[str, dict[str, float | str]]]] = {}
        for row in self.values.rows:
            entries = nested.setdefault(row.cell, {}).setdefault(row.measure, {})
            entries.setdefault(row.entry, {})[str(row.seed)] = _text(row.value)
        raw = {**self._asdict(), "values": nested, "points": _points(self.points, _text)}
        parts = {key: value for key, value in raw.items() if value or key != "points"}
        sums.write(path.parent, {path.name: files.as_json(parts)})


def read(path: Path) -> Done:
    """The inverse of `Done.write`.

    Raises:
        UserError: it cannot be read.
    """
    try:
        raw = json.loads(sums.text(path))
        if odd := (raw.keys() ^ set(Done._fields)) - Done._field_defaults.keys():
            raise ValueError(f"it is of another version of fedconcord, which differs in {', '.join(sorted(odd))}")
        _check(raw["log"], {*Spell.__annotations__})
        _check(raw["asked"].values(), {"settings", "methods"})
        if raw["size"] not in ("quick", "desk", "paper"):
            raise ValueError(f"there is no size {raw['size']!r}")
        rows = (
            (measure, cell, entry, int(seed), float(value))
            for cell, measures in raw.pop("values").items()
            for measure, entries in measures.items()
            for entry, seeds in entries.items()
            for seed, value in seeds.items()
        )
        raw["points"] = _points(raw.get("points", {}), float)
        _check((point for points in raw["points"].values() for point in points.values()), {DIVERGED})
        return Done(**raw, values=values(rows))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as broken:
        way = "remove it and run the recipe again: runs that its folder holds are not repeated"
        raise UserError(f"cannot read {path} ({broken}); {way}") from None


def file_of(folder: Path, recipe: str, size: str) -> Path:
    """Where a folder of values has those of a recipe at a size."""
    return folder / f"{recipe}-{size}.json"


def _check(parts: Iterable[Mapping[str, Any]], needed: set[str]) -> None:
    """Raises ValueError where a part lacks a key."""
    for part in parts:
        if missing := needed - {*part}:
            raise ValueError(f"{', '.join(sorted(missing))} is missing in a part of it")


def _text(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def _points(of: Points[T], change: Callable[[T], U]) -> Points[U]:
    """Every value changed."""
    return {
        cell: {method: {key: change(value) for key, value in point.items()} for method, point in points.items()}
        for cell, points in of.items()
    }


def pairs(values: Values, measure: str, cell: str, a: str, b: str) -> Iterator[tuple[float, float]]:
    """The values of two entries by seed, where both were run."""
    first, second = values.seeds(measure, cell, a), values.seeds(measure, cell, b)
    for seed in sorted(first.keys() & second.keys()):
        yield first[seed], second[seed]
