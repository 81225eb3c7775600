"""From a method's runs to its line: the mean and the band over the seeds, whether the axis is logarithmic, its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.metric import Metric, metric_of
from fedconcord.study.statistics.stats import FEW, interval
from fedconcord.study.statistics.summary import Summary

POINTS = 500  # of one line at most: more cannot be seen


class Curve(NamedTuple):
    """A method's line: the middle and the band over its seeds, then single runs where the seeds part."""

    x: Array  # [P] mean over the seeds
    mid: Array  # [P]
    low: Array  # [P]
    high: Array  # [P]
    tails: tuple[tuple[Array, Array], ...]  # a run each that goes on after another has ended
    breaks: tuple[tuple[float, float], ...]  # where a run that diverged was last finite


def curve(runs: Sequence[Run], column: str, axis: str, floor: float | None, cap: float | None = None) -> Curve:
    """The line of a method's runs: their mean over the rounds that all of them evaluated, then run by run.

    A run that diverged is drawn on its own, up to its last finite value, unless all of them did. With a floor (see
    `log_floor`) means are taken in logarithms; with a cap the run breaks off where it first passes it.
    """
    runs = [r for r in runs if column in r.metrics]
    length = {}  # evaluations of a run before its first value that is not finite
    for r in runs:
        bad = np.flatnonzero(~np.isfinite(r.metrics[column]))
        length[r.folder] = int(bad[0]) if bad.size else r.round.size

    def y(r: Run) -> Array:
        return r.metrics[column] if floor is None else np.log10(np.maximum(r.metrics[column], floor))

    def back(v: Array) -> Array:
        return v if floor is None else 10.0**v

    averaged = [r for r in runs if not r.diverged] or runs
    shared = set.intersection(*(set(r.round[: length[r.folder]]) for r in averaged)) if averaged else set()
    at = np.array(sorted(shared))
    if at.size > POINTS:
        at = at[np.unique(np.linspace(0, at.size - 1, POINTS).round().astype(int))]
    x = mid = low = high = np.empty(0)
    if at.size:
        rows = [np.searchsorted(r.round, at) for r in averaged]
        ys = np.stack([y(r)[i] for r, i in zip(averaged, rows, strict=True)])
        x = np.mean([r.axis(axis)[i] for r, i in zip(averaged, rows, strict=True)], axis=0)
        if len(averaged) >= FEW:
            bounds = np.array([interval(v)[:3] for v in ys.T])
            mid, low, high = back(bounds[:, 0]), back(bounds[:, 1]), back(bounds[:, 2])
        else:
            mid, low, high = back(ys.mean(0)), back(ys.min(0)), back(ys.max(0))
    tails, breaks = [], []
    for r in runs:
        end = length[r.folder]
        start = int(np.searchsorted(r.round, at[-1])) if at.size and r in averaged else 0
        if start < end - 1:
            keep = np.unique(np.r_[np.arange(start, end, max(1, (end - start) // POINTS)), end - 1])
            tails.append((r.axis(axis)[keep], back(y(r)[keep])))
        if end and (end < r.round.size or r.diverged):
            values = back(y(r)[:end])
            over = np.flatnonzero(values > cap) if cap is not None else np.empty(0)
            at_end = int(over[0]) if over.size else end - 1
            breaks.append((float(r.axis(axis)[at_end]), float(values[at_end])))
    return Curve(x, mid, low, high, tuple(tails), tuple(breaks))


def log_floor(runs: Sequence[Run], columns: Sequence[str]) -> float | None:
    """Whether these columns get a log axis, and if so the smallest positive value, which stands for 0 on it.

    Log where values are positive (a distance may touch 0) and span more than 1.5 decades; never an accuracy.
    """
    metrics = [metric_of(c.rsplit(":", 1)[-1]) for c in columns]
    values = np.concatenate([r.metrics[c] for r in runs for c in columns if c in r.metrics] or [np.empty(0)])
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if any(m.percent for m in metrics) or not positive.size or finite.min() < 0:
        return None
    least = float(positive.min())
    wide = all(m.log for m in metrics) or (finite.min() > 0 and finite.max() > 30 * least)
    return least if wide else None


def ceiling(runs: Sequence[Run], columns: Sequence[str], log: bool) -> float | None:
    """Where a loss axis ends if a run leaves the others far behind: some times the worst start."""
    values = [r.metrics[c] for r in runs for c in columns if c in r.metrics]
    starts = [float(v[0]) for v in values if v.size and math.isfinite(v[0])]
    if not starts or max(starts) <= 0:
        return None
    cap = max(starts) * (10 if log else 2)
    top = max((float(v[np.isfinite(v)].max()) for v in values if np.isfinite(v).any()), default=0.0)
    return cap if top > cap else None


def bottom(s: Summary, metric: Metric) -> float | None:
    """Where the axis of a metric begins; None if it need not be cut, as only one in percent ever is."""
    if not metric.percent:
        return None
    mids, every = [], list[float]()
    for m in s.methods:
        runs = [r for r in m.runs if metric.column in r.metrics and not r.diverged]
        k = curve(runs, metric.column, "round", None)
        if k.mid.size > 1:
            mids.append(k.mid)
            every += [float(k.low.min()), float(k.high.max())]
    return foot(mids, every, s.target if metric == s.primary else math.nan)


def foot(curves: Sequence[Array], every: Sequence[float], target: float = math.nan) -> float | None:
    """Where an axis of accuracies in [0, 1] begins so that it shows where curves differ; None if it need not be cut.

    At or below the end of every curve ([P], the start first) and three quarters of it, and below the target; in steps
    that leave the axis some room. Cut only if that gives the curves a third more room; `every` has the ends of all
    that is drawn. What lies below is the rise from the start, which all methods share.
    """
    lows = [low for values in curves for low in (float(np.quantile(values[1:], 0.25)), float(values[-1]))]
    if not lows:
        return None
    if math.isfinite(target):
        lows.append(target)
    low, top = min(lows), max([*every, *lows])
    room = top - low
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.25) if step >= room / 8 or step == 0.25)
    begin = math.floor((low - 0.05 * room) / step + 1e-9) * step
    begin = max(0.0, begin if begin < top else begin - step)  # curves that are flat and end on a step keep some height
    whole = top - min(every)
    return begin if whole > 4 / 3 * (top - begin) else None


def band_words(s: Summary) -> str:
    """What the bands of the curves are."""
    counts = {len(m.runs) for m in s.methods}
    if counts == {1}:
        return "One seed a method, so there are no bands."
    t, r = max(counts) >= FEW, min(counts) < FEW
    bands = {
        (True, False): "the band its 95 % t interval",
        (False, True): f"the band the range from the lowest to the highest seed (fewer than {FEW} seeds)",
        (True, True): f"the band its 95 % t interval, with fewer than {FEW} seeds the range",
    }
    text = f"Line: the mean over seeds; {bands[t, r]}."
    ends = [{float(x.round[-1]) for x in m.runs} for m in s.methods]
    if any(len(e) > 1 for e in ends) or any(x.diverged for m in s.methods for x in m.runs):
        text += " Thin lines: single seeds that diverged or go on after others have ended."
    return text
