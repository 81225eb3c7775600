"""The package's own table: what came of the usual methods in every federation, so that a new one is put beside them.

`python docs/generate/arena_table.py FOLDER` makes values.json of a whole arena, without times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from fedconcord.study.statistics.metric import Metric, metric_of
from fedconcord_papers.arena.federations import REFERENCE, Federation, target_of
from fedconcord_papers.arena.outcome import Entry, Goals, Outcome, Result, Size
from fedconcord_papers.arena.plan import ArenaSpec

VALUES = "values.json"


class Kept(NamedTuple):
    """An arena that was run whole."""

    version: str  # of fedconcord
    machine: str
    budget: int
    seeds: tuple[int, ...]
    results: Mapping[str, Result]  # by federation


@cache
def kept() -> Kept:
    """The package's table."""
    return read(resources.files("fedconcord_papers.arena").joinpath(VALUES).read_text(encoding="utf-8"))


def read(text: str) -> Kept:
    """A table from what arena.json holds, or values.json, which has no times."""
    whole = json.loads(text)
    results = {one["name"]: _result(one) for one in whole["federations"]}
    return Kept(whole["version"], whole["machine"], whole["budget"], tuple(whole["seeds"]), results)


def beside(spec: ArenaSpec, federation: Federation) -> Result | None:
    """What the table has of a federation; None where it was run with other settings, seeds or trials."""
    table = kept()
    result = table.results.get(federation.name)
    theirs = None if result is None else (result.federation.nested, result.federation.target)
    is_same = theirs == (federation.nested, federation.target)
    return result if is_same and (table.budget, table.seeds) == (spec.budget, tuple(spec.seeds)) else None


def joined(result: Result, table: Result) -> Result:
    """A result with the methods of the table that were not run, and a note where FedAvg is not what it was there."""
    here = {one.entry.label for one in result.outcomes} | result.refused.keys()
    more = [
        one._replace(entry=one.entry._replace(is_kept=True)) for one in table.outcomes if one.entry.label not in here
    ]
    refused = {label: why for label, why in table.refused.items() if label not in here}
    mine, theirs = (
        next(one for one in each.outcomes if one.entry.label == REFERENCE).rounds for each in (result, table)
    )
    moved = tuple(sorted(seed for seed in theirs if mine[seed] != theirs[seed]))
    return result._replace(outcomes=(*result.outcomes, *more), refused={**result.refused, **refused}, moved=moved)


def _result(one: Mapping[str, Any]) -> Result:
    metric = metric_of(one["metric"])
    federation = Federation(one["name"], one["role"], target_of(one["target"], one["name"]), one["settings"])
    return Result(
        federation,
        Size(*(one[key] for key in Size._fields)),
        one["trial_target"],
        Goals(metric, {int(seed): value for seed, value in one["targets"].items()}),
        one["reference"],
        tuple(_outcome(method, metric) for method in one["methods"]),
        one["refused"],
    )


def _outcome(one: Mapping[str, Any], metric: Metric) -> Outcome:
    final = {seed: metric.scale(np.array(v, np.float64)) for seed, v in _by_seed(one["final"]).items()}
    return Outcome(
        Entry(one["label"], one["text"], one["tuned"]),
        _by_seed(one["rounds"]),
        _by_seed(one["bytes"]),
        {seed: float(v) for seed, v in final.items()},
        {seed: math.nan if v is None else v for seed, v in _by_seed(one["lead"]).items()},
        {},
        tuple(one["diverged"]),
        tuple(one["errors"]),
    )


def _by_seed(values: Mapping[str, Any]) -> dict[int, Any]:
    return {int(seed): value for seed, value in values.items()}
