"""What came of one federation: the target, and of each method its rounds and bytes to it, final value and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from fedconcord.study.statistics.format import metric_cell
from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.metric import Metric, ranking
from fedconcord.study.statistics.stats import first_at, tail_mean
from fedconcord.study.statistics.summary import WINDOW
from fedconcord_papers.arena.federations import REFERENCE, Federation, Target


class Goals(NamedTuple):
    """The metric that ranks methods, and its target for each seed, which is a federation drawn anew."""

    metric: Metric
    by_seed: Mapping[int, float]

    def __str__(self) -> str:
        over = self.metric.interval(self.metric.scale(np.array([*self.by_seed.values()])).tolist())
        return f"{self.metric.title} {metric_cell(self.metric, over)}{' %' * self.metric.percent}"


class Size(NamedTuple):
    """What a federation is, as its runs say."""

    data: str
    model: str
    clients: int
    cohort: int
    rounds: int


class Entry(NamedTuple):
    """A method after its search."""

    label: str
    text: str | None  # with its best values; None: no trial ended well
    tuned: bool  # whether anything was looked for
    is_kept: bool = False  # of the package's table, and not run here


class Outcome(NamedTuple):
    """A method in a federation, by seed."""

    entry: Entry
    rounds: Mapping[int, float | None]  # to the target; None: never
    bytes: Mapping[int, float | None]  # up and down, to the target
    final: Mapping[int, float]  # on the metric's averaging scale; NaN: it diverged or failed
    lead: Mapping[int, float]  # of the final value over tuned FedAvg's, more is better
    slower: Mapping[int, float]  # median time of a round over FedAvg's in the same comparison
    diverged: tuple[int, ...]  # seeds
    errors: tuple[str, ...]  # why runs failed

    @property
    def mean_rounds(self) -> float:
        """Over all seeds; infinite where one never came there."""
        return _mean(self.rounds)

    @property
    def mean_bytes(self) -> float:
        """As `mean_rounds`."""
        return _mean(self.bytes)

    @property
    def broken(self) -> int:
        """Seeds that diverged or failed."""
        return len(self.diverged) + len(self.errors)


class Result(NamedTuple):
    """What came of a federation."""

    federation: Federation
    size: Size
    trial_target: float  # what trials were tuned for, in the metric that judged them
    goals: Goals
    reference: str  # FedAvg tuned for its final value
    outcomes: tuple[Outcome, ...]
    refused: Mapping[str, str]  # methods that cannot run, and why
    moved: tuple[int, ...] = ()  # seeds on which FedAvg needs other rounds here than in the package's table

    @property
    def best(self) -> Outcome | None:
        """The tuned method with the fewest rounds to the target; None where none came there on every seed."""
        tuned = [one for one in self.outcomes if one.entry.tuned and math.isfinite(one.mean_rounds)]
        return min(tuned, key=lambda one: one.mean_rounds, default=None)

    def ratio(self, one: Outcome) -> float:
        """Rounds to the target over the best tuned method's; infinite: never, NaN: no tuned method came there."""
        return round(one.mean_rounds / self.best.mean_rounds, 9) if self.best is not None else math.nan  # 5/4 is 1.25

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for machines."""
        metric = self.goals.metric
        return {
            "name": self.federation.name,
            "role": self.federation.role,
            "target": str(self.federation.target),
            "settings": self.federation.nested,
            **self.size._asdict(),
            "metric": metric.column,
            "targets": dict(self.goals.by_seed),
            "trial_target": self.trial_target,
            "reference": self.reference,
            "refused": dict(self.refused),
            "methods": [
                {
                    **one.entry._asdict(),
                    "rounds": dict(one.rounds),
                    "bytes": dict(one.bytes),
                    "ratio": _number(self.ratio(one)),
                    "final": {seed: _number(metric.back(v)) for seed, v in one.final.items()},
                    "lead": {seed: _number(v) for seed, v in one.lead.items()},
                    "slower": {seed: round(v, 4) for seed, v in one.slower.items()},
                    "diverged": list(one.diverged),
                    "errors": list(one.errors),
                }
                for one in self.outcomes
            ],
        }


def aim(values: Array, metric: Metric, share: float) -> float:
    """A share of the way of a run from its start to its final value, the mean of its last `WINDOW` evaluations; of
    distances the way of their logarithms.

    Args:
        values: [T] of the metric, the start first.
    """
    scaled = metric.scale(values)
    end = tail_mean(np.arange(len(scaled), dtype=np.float64), scaled, math.inf, WINDOW)
    return metric.back(float(scaled[0]) + share * (end - float(scaled[0])))


def targets(rule: Target, base: Sequence[Run]) -> Goals:
    """The target of every seed by a rule, from FedAvg's runs tuned for their final value."""
    metric = next(m for m in ranking(base) if all(m.column in run.metrics for run in base))
    by_seed = {}
    for run in base:
        values = run.metrics[metric.column]
        by_seed[run.head.seed] = aim(values, metric, rule.value) if rule.by_reference else rule.value
    return Goals(metric, by_seed)


def outcome(
    entry: Entry,
    seeds: Sequence[int],
    runs: Sequence[Run],
    failed: Mapping[tuple[str, int], str],
    base: Sequence[Run],
    goals: Goals,
) -> Outcome:
    """What came of a method.

    Each method is judged by the model that it answers with.

    Args:
        runs: of all methods, with the targets' seeds.
        failed: why others failed, by label and seed.
        base: FedAvg's runs, tuned for their final value.
    """
    metric, sign = goals.metric, 1.0 if goals.metric.higher else -1.0
    by_seed = {run.head.seed: run for run in runs if run.head.label == entry.label}
    times = {run.head.seed: _median(run) for run in runs if run.head.label == REFERENCE}
    reference = {run.head.seed: _final(run, metric) for run in base}
    errors = [failed[entry.label, seed] for seed in seeds if (entry.label, seed) in failed]
    all_lost = () if entry.text is not None else tuple(seeds)
    at = {seed: _first(by_seed.get(seed), metric, goals.by_seed.get(seed, math.nan)) for seed in seeds}
    final = {seed: _final(by_seed[seed], metric) if seed in by_seed else math.nan for seed in seeds}
    return Outcome(
        entry,
        {seed: None if (k := at[seed]) is None else float(by_seed[seed].round[k]) for seed in seeds},
        {seed: None if (k := at[seed]) is None else float(by_seed[seed].bytes[k]) for seed in seeds},
        final,
        {seed: sign * (final[seed] - reference.get(seed, math.nan)) for seed in seeds},
        {seed: _median(run) / times[seed] for seed, run in by_seed.items() if times.get(seed)},
        all_lost or tuple(seed for seed, run in by_seed.items() if run.diverged),
        tuple(errors),
    )


def _first(run: Run | None, metric: Metric, target: float) -> int | None:
    """The first evaluation after the start that is there."""
    first = None if run is None else first_at(run.metrics[metric.column][1:], target, metric.higher)
    return None if first is None else first + 1


def _final(run: Run, metric: Metric) -> float:
    """On the averaging scale; NaN where it diverged."""
    if run.diverged:
        return math.nan
    return tail_mean(run.round, metric.scale(run.metrics[metric.column]), math.inf, WINDOW)


def _median(run: Run) -> float:
    """Seconds of a round."""
    return median(run.seconds.tolist()) if run.seconds.size else math.nan


def _mean(by_seed: Mapping[int, float | None]) -> float:
    values = list(by_seed.values())
    return math.inf if not values or None in values else fmean(v for v in values if v is not None)


def _number(v: float) -> float | str | None:
    """JSON has no infinity; NaN is nothing."""
    return None if math.isnan(v) else v if math.isfinite(v) else "never"
