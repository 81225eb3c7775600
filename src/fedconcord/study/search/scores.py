"""How far trials go, how good they are after so many rounds, and which trials are better; the trials of a
method, the text of its winner, and where the best stands at the end of its range.

Synchronous successive halving (Jamieson and Talwalkar, AISTATS 2016) with a factor of 2 and the last rung at all
rounds, in numbers that are known before the first round: trials are judged after a quarter of the rounds, those that
remain after half of them, and the rest at the end. Trial 0, a method as it stands, always goes on, so that what tuning
gained is known.

Trials are judged by where they end, on all seeds, as the report ranks methods. Where a target is given, it decides
among those that end alike: of the trials within a standard error of the best (Breiman et al., Classification and
Regression Trees, 1984, section 3.4.3) or within a point of it, the one that needs the fewest rounds. The rounds to a
target alone are no rule to choose by: an edge of a range is often early there, and falls afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from fedconcord.execution.run.folder import read_description
from fedconcord.execution.run.tables import rows_of
from fedconcord.federation.objectives.metrics import SCORES
from fedconcord.method.contract import Problem
from fedconcord.study.runs.execution import modelled
from fedconcord.study.search.space import Space, Values, parameters, text_of
from fedconcord.study.settings.methods import canonical_text, read_method
from fedconcord.study.settings.settings import Config
from fedconcord.study.statistics.format import value
from fedconcord.study.statistics.metric import Metric, metric_of
from fedconcord.study.statistics.stats import first_at, tail_mean
from fedconcord.study.statistics.summary import WINDOW
from fedconcord.support.errors import UserError
from fedconcord.support.factories import Search


class Rung(NamedTuple):
    """So many trials go to so many rounds."""

    rounds: int  # from the start
    trials: int


def rungs_of(trials: int, rounds: int, every: int = 1) -> tuple[Rung, ...]:
    """The rungs of so many trials, the last at `rounds`.

    Rungs but the last stand at multiples of `every`, the rounds between evaluations: a run that went further has a row
    there. Two trials or fewer all go the whole way.
    """
    if trials <= 2:
        return (Rung(rounds, trials),)
    early = [-(-rounds // (part * every)) * every for part in (4, 2)]
    lengths = [*sorted({length for length in early if length < rounds}), rounds]
    return tuple(Rung(length, max(2, trials >> k)) for k, length in enumerate(lengths))


def cost(rungs: Sequence[Rung]) -> int:
    """Rounds of all trials together, for one seed: a trial that goes on is continued, not repeated."""
    lengths = [0, *(rung.rounds for rung in rungs)]
    return sum(rung.trials * (rung.rounds - before) for rung, before in zip(rungs, lengths, strict=False))


# -- scores --------------------------------------------------------------------------------------------------------

POINT = 0.01  # of a share: closer is no difference
OWN = ("distance", "loss", "train_loss")  # what is minimised where clients can set no samples apart


class Objective(NamedTuple):
    """What trials are judged by: never anything of the test set."""

    metric: Metric
    target: float | None  # rounds to this value of the metric are counted; None: nothing is
    is_held_out: bool  # on samples that clients set apart; else the objective itself
    soonest: bool = False  # rounds to the target come first, for who compares methods by them

    def __str__(self) -> str:
        title = self.metric.title
        where = "" if self.is_held_out else ", the objective itself, as there are no samples to set apart"
        if self.target is None:
            return f"final {title}{where}"
        if self.soonest:
            return f"rounds to {title} {self.target:g}{where}"
        near = f"one standard error over seeds{' or one point' if self.metric.percent else ''}"
        return f"final {title}{where} (of trials within {near} of the best: the fewest rounds to {self.target:g})"


def objective_of(problem: Problem, target: float | None, soonest: bool = False) -> Objective:
    """The validation column of the metric that ranks methods; else that of the clients' score, else what is minimised.

    Columns are those of an evaluation of the model before round 0.
    """
    columns = problem.evaluator.evaluate(problem.init(0))
    inner = modelled(problem)
    if inner is not None:
        ranks = inner.metrics[0]
        for name, higher in ((ranks.name, ranks.higher), (SCORES[inner.target].name, None), ("loss", False)):
            column = f"validation_{name}"
            if column in columns:
                metric = metric_of(column)
                metric = metric if higher is None else replace(metric, higher=higher)
                return Objective(metric, target, is_held_out=True, soonest=soonest)
    metric = metric_of(next(name for name in (*OWN, *columns) if name in columns))
    return Objective(metric, target, is_held_out=False, soonest=soonest)


class Score(NamedTuple):
    """A trial after so many rounds."""

    value: float  # mean over seeds of the final value of the metric; NaN where a run diverged or failed
    reached: float | None  # mean rounds to the target; None where a seed missed it, or there is none
    missed: int  # seeds that missed the target; 0 without one
    broken: int  # seeds that diverged or failed
    standard_error: float = 0.0  # of the value over seeds, on the averaging scale; 0 of one seed


def score_of(folders: Sequence[Path], objective: Objective, rounds: int) -> Score:
    """The score of a trial from its runs, a folder a seed, whatever they did after these rounds.

    A final value is the mean of the last `WINDOW` evaluations, as in the report; a mean of logarithms for distances.
    """
    metric, finals, reached = objective.metric, list[float](), list[float]()
    broken = missed = 0
    for folder in folders:
        curve = series(folder, metric.column, rounds)
        if curve is None:
            broken += 1
            continue
        at, values = curve
        finals.append(tail_mean(at, metric.scale(values), rounds, WINDOW))
        first = None if objective.target is None else first_at(values, objective.target, metric.higher)
        if first is not None:
            reached.append(float(at[first]))
        elif objective.target is not None:
            missed += 1
    if broken:
        return Score(math.nan, None, missed, broken)
    error = stdev(finals) / math.sqrt(len(finals)) if len(finals) > 1 else 0.0
    rounds_to = fmean(reached) if reached and not missed else None
    return Score(float(metric.back(fmean(finals))), rounds_to, missed, 0, error)


def series(folder: Path, column: str, rounds: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Rounds and values [T] float64 of a column up to a round; None where a run diverged before, or never came so far
    for another reason than early stopping."""
    if not (folder / "run.json").exists():
        return None
    rows = rows_of(folder / "metrics.csv", rounds)
    if not rows or not all(math.isfinite(float(cell)) for row in rows for cell in row.values() if cell):
        return None
    at = np.array([float(row["round"]) for row in rows])
    if at[-1] < rounds and "stopped" not in read_description(folder):
        return None
    return at, np.array([float(row[column]) for row in rows])


def ranked(scores: Mapping[int, Score], objective: Objective) -> list[int]:
    """The trials, best first: those whose every seed ends well by their final value, and where the rounds to the target
    come first by these; the earlier one where nothing tells them apart."""
    sign = -1.0 if objective.metric.higher else 1.0

    def key(number: int) -> tuple[float, ...]:
        one = scores[number]
        first = (one.missed, one.reached or 0.0) if objective.soonest else ()
        return one.broken, *first, 0.0 if one.broken else sign * one.value, number

    return sorted(scores, key=key)


def chosen(scores: Mapping[int, Score], objective: Objective) -> int:
    """The trial that is taken: the best, and with a target, of those that end as well as it, the one with the fewest
    rounds to it."""
    first, *others = ranked(scores, objective)
    if scores[first].broken or objective.target is None or objective.soonest:
        return first
    near = [first, *(k for k in others if not below(scores[k], scores[first], objective.metric))]
    return min(near, key=lambda k: (scores[k].missed, scores[k].reached or 0.0))


def below(one: Score, best: Score, metric: Metric) -> bool:
    """Whether a score is worse than a better one by more than its standard error, and more than a point of a share."""
    end, top = metric.scale(np.array([one.value, best.value]))
    behind = top - end if metric.higher else end - top
    return not behind <= max(best.standard_error, POINT if metric.percent else 0.0)


# -- trials of a method --------------------------------------------------------------------------------------------


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
    """Method or baseline as the user wrote it -> its text in the final comparison, where a trial ended well.

    Reports call a method that was tuned by its bare name, where no other has that: its values are long.
    """
    texts: dict[str, str] = {}
    bare = Counter(read_method(search.space.method)[0].name for search in searches)
    for search in searches:
        text = winner(config, search)
        if text is None or text in texts.values():
            continue
        call, overrides = read_method(text)
        if search.space.places and bare[call.name] == 1 and search.space.method not in config.baselines:
            text = canonical_text(config, call, {"label": call.name, **overrides})
        texts[search.space.method] = text
    return texts


def finalists(config: Config, searches: Sequence[MethodSearch]) -> tuple[list[str], list[str]]:
    """The texts of methods, and those of baselines, in the final comparison."""
    texts = winners(config, searches)
    methods, baselines = (
        [texts[one] for one in some if one in texts] for some in (config.methods or [], config.baselines)
    )
    return methods, baselines


# -- the ends of a range -------------------------------------------------------------------------------------------

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
        best = search.best.values[key]
        extension = None if place.low == place.high else _extension(place, best)
        if extension is None:
            continue
        side, low, high = extension
        end = low if side == "low" else high
        extended = f"{key}={place.scale}({low:.3g},{high:.3g})" if _takes(config, search.space.method, key, end) else ""
        at_ends.append(Edge(key, best, side, extended, place))
    return at_ends


def extend_words(edge: Edge) -> str:
    """What to do about a best value at the end of its range."""
    where = f"The best is at the {edge.side} end of {edge.key}, which was searched from {edge.range}"
    return f'{where}: extend it, --search "{edge.search}".' if edge.search else f"{where}; there is little room beyond."


def _extension(place: Search, value: float) -> tuple[str, float, float] | None:
    """The end that a value is at, low or high, and the range with that end moved; None where it is at neither."""
    if place.scale == "log":
        share = math.log(value / place.low) / math.log(place.high / place.low)
        lower, upper = place.low / FACTOR, place.high * FACTOR
    else:
        length = place.high - place.low
        share, lower, upper = (value - place.low) / length, place.low - length / 2, place.high + length / 2
    if share <= NEAR:
        return "low", lower, place.high
    return ("high", place.low, upper) if share >= 1 - NEAR else None


def _takes(config: Config, method: str, key: str, value: float) -> bool:
    """Whether a method's parameter may have a value."""
    try:
        parameters(config, method)[key].check(value, method)
    except UserError:
        return False
    return True
