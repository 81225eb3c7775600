"""The grid of a method: its points, in which order they are tried, how they are told apart.

A point has one seed. A run that ends at its target gets no more rounds than the best point of its method took before:
with more it could not be better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

from fedconcord.study.statistics.load import Run
from fedconcord.support import grammar, imports
from fedconcord.support.grammar import Spec
from fedconcord_papers.recipes.recipe import Comparison, Entry, Measure
from fedconcord_papers.recipes.values import DIVERGED


def points_of(entry: Entry) -> list[dict[str, Any]]:
    """All values of an entry's grid."""
    return [dict(zip(entry.grid, values, strict=True)) for values in product(*entry.grid.values())]


def first_of(entry: Entry) -> dict[str, Any]:
    """What is taken of a grid where none is sought."""
    return {key: values[0] for key, values in entry.grid.items()}


def text_of(entry: Entry, values: Mapping[str, Any], label: str) -> str:
    """A method with the values of a grid and a name, as `compare` takes it."""
    imports.trust(entry.call)
    call = grammar.parse(entry.call, "method")
    return str(Spec(call.name, call.args, {**call.kwargs, **values, "label": label}))


def in_turn(points: Iterable[Sequence[str]]) -> list[str]:
    """The points of several methods as they are tried: the first of every method, then the second."""
    return [label for turn in zip_longest(*points) for label in turn if label is not None]


def value_of(measure: Measure, run: Run) -> float:
    """A measure of a run; NaN if it has no round."""
    return math.nan if not len(run.round) else measure.of(run)


def measured(experiment: Comparison, run: Run) -> dict[str, float]:
    """All that a search compares of a point's run."""
    by_name = {one.name: value_of(one, run) for one in experiment.measures}
    return {DIVERGED: float(run.head.status == DIVERGED), **by_name}


def scores(experiment: Comparison, point: Mapping[str, float]) -> tuple[float, ...]:
    """What a search compares, more is better: a run that diverged is last, however fast it was before; then the measure
    that is sought, and where it is a tie, as of a target that none reached, how the runs ended before other targets."""
    sought = experiment.measures[experiment.seek]
    order = sorted(experiment.measures, key=lambda measure: (measure is not sought, measure.goal is not None))
    values = [(measure, point[measure.name]) for measure in order]
    better = [-math.inf if math.isnan(value) else value if measure.higher else -value for measure, value in values]
    return (1.0 - point[DIVERGED], *better)


def rounds_left(others: Iterable[tuple[float, ...]]) -> float:
    """The most rounds that a point is worth, by the scores of its method's points before; inf: none had its target."""
    return min((-score[1] for score in others if score[0]), default=math.inf)
