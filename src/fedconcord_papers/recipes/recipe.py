"""What a recipe states: an experiment of a paper as data. How it is run, judged and written stands in other files.

A recipe's experiment is a `Comparison`, settings that `compare` takes, or a `Study`, a function for what is no
comparison: closed forms, attacks, rank by round. Both leave values of measures by cell, entry and seed (`Values`), on
which the claims are judged and from which the page is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from fedconcord_papers.recipes.found import Sentence
from fedconcord_papers.recipes.values import Finding, Values

Settings = Mapping[str, Any]  # dotted key -> value, as a settings file has them
SizeName = Literal["quick", "desk", "paper"]
SIZES: tuple[SizeName, ...] = get_args(SizeName)
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Entry(NamedTuple):
    """One method of a comparison with its parameters."""

    name: str  # as the paper calls it
    call: str  # as `compare` takes it, without label: "fedprox(mu=0.1,local.epochs=uniform(1,5))"
    grid: Mapping[str, Sequence[Any]] = (
        NOTHING  # parameter or local key -> values; the first is taken where none is sought
    )


class Cell(NamedTuple):
    """One federation of a comparison; its runs lie in a folder of their own."""

    name: str
    title: str
    settings: Settings = NOTHING  # over the recipe's
    tuned_in: str | None = None  # the cell whose best values it takes; its own search if none
    entries: Sequence[Entry] | None = None  # in place of the comparison's


class Size(NamedTuple):
    """How much of an experiment is done."""

    settings: Settings = NOTHING  # over every cell's
    by_cell: Mapping[str, Settings] = NOTHING  # over one cell's
    cells: Sequence[str] | None = None  # which are done; all if none
    entries: Sequence[str] | None = None  # which are done; all if none
    seeds: Sequence[int] = (0, 1, 2)
    search: Settings | None = NOTHING  # over the cell's when the grid is tried, as fewer rounds; None: no search
    minutes: float | None = None  # measured on two cores; None: not measured
    options: Mapping[str, Any] = NOTHING  # arguments of a study


class Measure(NamedTuple):
    """A number of one run."""

    name: str  # as tables show it
    of: Callable[[Any], float]  # of a `statistics.load.Run`; inf: a target that was not reached
    higher: bool  # more is better
    unit: str = ""
    digits: int = 1  # after the point
    goal: float | None = None  # of rounds to a target: it is `eval.target` of the runs
    possible: tuple[float, float] = (-math.inf, math.inf)  # the least and the greatest value that there can be


class Comparison(NamedTuple):
    """Methods, each at its best of a grid, over several federations and seeds."""

    settings: Settings
    entries: Sequence[Entry]
    cells: Sequence[Cell]
    measures: Sequence[Measure]  # the first chooses among the grid
    seek: int = 0  # place of the measure that chooses


def names_of(experiment: Comparison) -> list[str]:
    """The names of its entries, those of single cells last."""
    own = [entry.name for cell in experiment.cells for entry in cell.entries or ()]
    return list(dict.fromkeys([*(entry.name for entry in experiment.entries), *own]))


class Study(NamedTuple):
    """An experiment that is no comparison."""

    run: Callable[[Path, SizeName, Mapping[str, Any], Callable[[str], None]], Values]
    """(folder for figures and tables, size, `Size.options`, print a line) -> its values; it writes figures there."""
    resolve: Callable[[SizeName, Mapping[str, Any]], Sequence[Mapping[str, Any]]]
    """What a dry run shows: a row a job with clients, samples, parameters, rounds, steps."""


class Headline(NamedTuple):
    """The numbers of a recipe that a reader of the index sees first."""

    measure: str
    cell: str
    entries: Sequence[str]


class Claim(NamedTuple):
    """Something that the paper says, and how it is judged."""

    says: str
    judge: Callable[[Values], Finding]
    printed: bool = False  # it is about printed numbers, which no stand-in tests
    ours: bool = False  # the paper does not say it: it is judged, and not counted


class Recipe(NamedTuple):
    """One table or figure of a paper."""

    name: str  # file name of its page, `fedadmm_table3`
    id: str  # in the project's list of experiments: A1
    source: str  # paper and table or figure
    claim: str  # what the paper says it shows, in a sentence
    experiment: Comparison | Study
    claims: Sequence[Claim]
    sizes: Mapping[SizeName, Size]
    published: Mapping[str, Mapping[tuple[str, str], float | str]] = (
        NOTHING  # measure -> (cell, entry) -> printed value
    )
    silent: str = ""  # what the paper does not say, and what is done here; where from
    paper_has: Mapping[str, tuple[str, str]] = NOTHING  # what -> (the paper's, ours), where size `paper` has another
    ours: bool = False  # the paper prints no such experiment: its claims are judged, and not counted
    headline: Headline | None = None  # the numbers that stand in the index
    findings: Sequence[Sentence] = ()  # what was seen in its values, by a person


def sizes_text(recipe: Recipe) -> str:
    """Its sizes and the minutes that they took, as a list shows them."""
    return ", ".join(
        f"{name} {'not timed' if size.minutes is None else f'{size.minutes:g} min'}"
        for name, size in recipe.sizes.items()
    )
