"""From runs to what the report says: methods, final values, costs to the target, the ranking and what to be wary of."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedconcord.study.statistics.format import listing
from fedconcord.study.statistics.load import JOB_FIELDS, Array, Run, is_chosen
from fedconcord.study.statistics.metric import FLOOR, KNOWN, LOSSES, Metric, ranking
from fedconcord.study.statistics.stats import Interval, Verdict, first_at, interval, tail_mean, verdict
from fedconcord.support.errors import UserError

WINDOW = 5  # evaluated rounds whose mean is the final value


class Reach(NamedTuple):
    """When one run first met the target; None where it never did."""

    round: float | None
    bytes: float | None
    gradient_steps: float | None
    ended: float  # the last round that the run evaluated


class MethodResult(NamedTuple):
    """One line of the table: a method and one of its models, over its seeds."""

    name: str
    style: int  # the index of the method: its colour and line style
    model: str
    runs: int
    finished: int
    notes: str  # what became of the others
    final: Interval  # mean of the last WINDOW evaluated rounds, over finished runs (over all if none finished)
    last: Interval  # the last evaluated value
    loss: Interval | None  # final value of the loss
    reach: tuple[Reach, ...]  # a run each
    seconds: Interval  # median training time of a round


@dataclass(frozen=True)
class Method:
    name: str
    short: str  # the name without its parameters where that is still unique: for sentences
    index: int
    runs: tuple[Run, ...]  # with at least one evaluated round
    finished: tuple[Run, ...]  # of them, those that the tables average

    @property
    def answer(self) -> str:
        """The model that it answers with: the first that it offers, which files of models hold and which ranks it."""
        return self.runs[0].head.models[0]


@dataclass(frozen=True)
class Summary:
    runs: tuple[Run, ...]  # of methods
    baselines: tuple[Run, ...]  # what methods are judged against
    methods: tuple[Method, ...]
    primary: Metric
    loss: Metric | None
    horizon: int  # final values are taken up to this round
    target: float
    target_asked: bool
    rows: tuple[MethodResult, ...]  # the models that the methods answer with, best first
    second: tuple[MethodResult, ...]  # the other models
    verdict: Verdict
    warnings: tuple[str, ...]  # sentences
    every: int  # rounds between evaluations, the largest of any run

    def method(self, name: str) -> Method:
        return next(m for m in self.methods if m.name == name)


def finals(runs: Sequence[Run], metric: Metric, horizon: float, column: str | None = None) -> dict[int, float]:
    """Seed -> final value on the averaging scale (NaN where it is not finite)."""
    column = column or metric.column
    return {
        r.head.seed: tail_mean(r.round, metric.scale(r.metrics[column]), horizon, WINDOW)
        for r in runs
        if column in r.metrics
    }


def _complete(run: Run) -> bool:
    return run.head.status == "complete" and not run.diverged and run.round.size > 0


def _finite(values: Mapping[int, float]) -> list[float]:
    return [v for v in values.values() if math.isfinite(v)]


def _reach(run: Run, column: str, target: float, higher: bool) -> Reach:
    ended = float(run.round[-1])
    i = first_at(run.metrics[column], target, higher) if column in run.metrics else None
    if i is None:
        return Reach(None, None, None, ended)
    return Reach(float(run.round[i]), float(run.bytes[i]), float(run.gradient_steps[i]), ended)


def _row(m: Method, model: str, metric: Metric, loss: Metric | None, horizon: int, target: float) -> MethodResult:
    runs = m.finished or tuple(r for r in m.runs if not r.diverged)
    prefix = "" if model == m.answer else f"{model}:"
    states = [("diverged", sum(r.diverged for r in m.runs))]
    there = Counter(r.head.status for r in m.runs if not r.diverged)
    states += [(status, there[status]) for status in ("running", "interrupted", "failed")]
    column = prefix + metric.column
    last = [float(metric.scale(r.metrics[column][r.round <= horizon])[-1]) for r in runs if column in r.metrics]
    has_loss = loss is not None and any(prefix + loss.column in r.metrics for r in runs)
    return MethodResult(
        name=m.name,
        style=m.index,
        model=model,
        runs=len(m.runs),
        finished=len(m.finished),
        notes=", ".join(f"{n} {s}" for s, n in states if n),
        final=metric.interval(_finite(finals(runs, metric, horizon, column))),
        last=metric.interval([v for v in last if math.isfinite(v)]),
        loss=loss.interval(_finite(finals(runs, loss, horizon, prefix + loss.column))) if loss and has_loss else None,
        reach=tuple(_reach(r, column, target, metric.higher) for r in m.runs),
        seconds=interval([float(np.nanmedian(r.seconds)) for r in m.runs if np.any(np.isfinite(r.seconds))]),
    )


def _ranked(methods: Sequence[Method], metric: Metric, horizon: int, is_paired: bool) -> Verdict:
    left_out: list[tuple[str, str]] = []
    values: dict[str, dict[int, float]] = {}
    for m in methods:
        diverged = sum(r.diverged for r in m.runs)
        finite = {s: v for s, v in finals(m.finished, metric, horizon).items() if math.isfinite(v)}
        if diverged:
            left_out.append((m.name, f"{diverged} of {len(m.runs)} seeds diverged"))
        elif not finite:
            left_out.append((m.name, "no run of it is complete"))
        else:
            values[m.name] = finite
    return verdict(values, left_out, metric.higher, is_paired)


def _target(runs: Sequence[Run], metric: Metric, rows: Callable[[float], list[MethodResult]]) -> tuple[float, bool]:
    """The hardest target that a run asks for; else one chosen from the results (see `target_words`)."""
    targets = [r.head.target for r in runs if r.head.target is not None]
    if targets:
        return (max(targets) if metric.higher else min(targets)), True
    ends = [r.final.mean for r in rows(math.nan) if math.isfinite(r.final.mean)]
    if not ends:
        return math.nan, False
    if metric.higher:
        return math.floor(100 * 0.95 * max(ends) + 1e-9) / 100, False
    starts = [float(r.metrics[metric.column][0]) for r in runs]
    start, end = float(np.median([s for s in starts if math.isfinite(s)] or [math.nan])), min(ends)
    if metric.log or (start > 0 and 0 < end < start / 100):  # half the way in decades, rounded up to a power of ten
        return 10.0 ** math.ceil((math.log10(max(start, FLOOR)) + math.log10(max(end, FLOOR))) / 2 - 1e-9), False
    return float(f"{end + 0.05 * (start - end):.2g}"), False


def _warnings(
    runs: Sequence[Run], methods: Sequence[Method], horizon: int, mixed: Sequence[str], primary: Metric
) -> list[str]:
    sentences = []
    for r in runs:
        who = f"{r.name}, seed {r.head.seed}"
        at = f"after {r.head.rounds_done} of {r.head.rounds} rounds"
        if not r.round.size:
            sentences.append(f"{who}: nothing is evaluated yet ({r.head.status}); it is left out.")
        elif r.diverged:
            sentences.append(f"{who} diverged {at}.")
        elif r.head.stopped is not None:
            sentences.append(f"{who} {r.head.stopped}; its final values are those of its own last rounds.")
        elif r.head.status == "interrupted":
            sentences.append(
                f"{who} was interrupted {at}; `fedconcord run --resume {shlex.quote(str(r.folder))}` continues it."
            )
        elif r.head.status == "failed":
            sentences.append(f"{who} failed {at}; its values are those of the rounds before.")
        elif r.head.status == "running":
            sentences.append(f"{who} was still running {at} when this page was written.")
    ends = sorted({int(r.round[-1]) for m in methods for r in m.finished if r.head.stopped is None})
    if ends and not any(_complete(r) for r in runs):
        sentences.append(f"No run is complete: all that is said here is provisional and taken at round {horizon}.")
    elif len(ends) > 1:
        sentences.append(
            f"The runs differ in length ({ends[0]} to {ends[-1]} rounds); final values are taken at round {horizon}, "
            "the last that all of them reached."
        )
    personal = list(dict.fromkeys(m.short for m in methods for r in m.runs if r.head.own))
    if personal and not primary.column.startswith("validation_"):
        sentences.append(
            f"{listing(personal)}: the answer is a model a client, and no client set samples apart to judge it by "
            f"(setting validation); {primary.title} is the mean over the clients' models on samples of all clients."
        )
    if mixed:
        sentences.append(f"The runs differ in {' and '.join(mixed)}, so they are not paired and no best is named.")
    everyone = {r.head.seed for m in methods for r in m.runs}
    for m in methods:
        lacking = sorted(everyone - {r.head.seed for r in m.runs})
        if lacking:
            sentences.append(f"{m.name} has no run with seed {', '.join(map(str, lacking))}.")
    return sentences


def _mixed(runs: Sequence[Run]) -> list[str]:
    """In what the runs differ that a paired comparison needs to be equal."""
    mixed: list[str] = [f for f in JOB_FIELDS if len({getattr(r.head, f) for r in runs}) > 1]
    first: dict[int, Array] = {}
    for r in runs:
        if r.counts is not None and not np.array_equal(first.setdefault(r.head.seed, r.counts), r.counts):
            return list(dict.fromkeys([*mixed, "the clients' data under one seed"]))
    return mixed


def summarise(runs: Sequence[Run]) -> Summary:
    """The whole content of the report. Raises UserError if the runs share no metric that can rank them.

    Baselines stand aside, unless there is nothing else.
    """
    beside = [r for r in runs if r.head.baseline is not None]
    runs = [r for r in runs if r.head.baseline is None] or list(runs)
    beside = [] if beside == runs else beside
    usable = [r for r in runs if r.round.size]
    if not usable:
        raise UserError(f"none of the {len(runs)} runs has an evaluated round yet; wait for the first or give others")
    shared = [m for m in ranking(usable) if all(m.column in r.metrics for r in usable)]
    if not shared:
        columns = sorted({c for r in usable for c in r.metrics})
        listed = ", ".join(m.column for m in KNOWN)
        raise UserError(
            f"no metric that ranks methods ({listed}) is in every metrics.csv; columns found: {', '.join(columns)}"
        )
    primary = shared[0]
    losses = [m for c in LOSSES for m in shared if m.column == c and m is not primary]
    loss = losses[0] if losses else None

    complete = [r for r in usable if _complete(r)]
    counted = complete or [r for r in usable if not r.diverged]  # in the middle of a job: all that is there
    # a run that stopped by itself has its final values; the others are compared at the last round that all reached
    cut = [r for r in counted if r.head.stopped is None]
    horizon = int(min((r.round[-1] for r in cut), default=max(r.round[-1] for r in usable)))
    names = dict.fromkeys(r.name for r in usable)
    heads = {r.name: r.head for r in usable}
    bare = {name: name if is_chosen(heads[name]) else name.split("(")[0].strip() for name in names}
    unique = Counter(bare.values())
    methods = tuple(
        Method(
            name=name,
            short=bare[name] if bare[name] and unique[bare[name]] == 1 else name,
            index=i,
            runs=tuple(r for r in usable if r.name == name),
            finished=tuple(r for r in counted if r.name == name),
        )
        for i, name in enumerate(names)
    )

    def rows(target: float) -> list[MethodResult]:
        lines = [_row(m, m.answer, primary, loss, horizon, target) for m in methods]
        sign = -1.0 if primary.higher else 1.0

        def worst(r: MethodResult) -> tuple[bool, float]:
            return not r.finished, sign * r.final.mean if math.isfinite(r.final.mean) else math.inf

        return sorted(lines, key=worst)

    target, is_given = _target(usable, primary, rows)
    table = rows(target)
    by_name = {m.name: m for m in methods}
    second = [
        _row(by_name[row.name], model, primary, loss, horizon, target)
        for row in table
        for model in by_name[row.name].runs[0].head.models[1:]
        if any(f"{model}:{primary.column}" in r.metrics for r in by_name[row.name].runs)
    ]
    mixed = _mixed(usable)
    return Summary(
        runs=tuple(runs),
        baselines=tuple(beside),
        methods=methods,
        primary=primary,
        loss=loss,
        horizon=horizon,
        target=target,
        target_asked=is_given,
        rows=tuple(table),
        second=tuple(second),
        verdict=_ranked(methods, primary, horizon, not mixed),
        warnings=tuple(_warnings([*runs, *beside], methods, horizon, mixed, primary)),
        every=int(max((np.diff(r.round).max() for r in usable if r.round.size > 1), default=1)),
    )
