"""The numbers a report rests on: t intervals over seeds, first crossings, paired comparisons with Holm's correction.

From these comes what may be said of the order of the methods: the best, or those that the data do not tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]  # Student's t without scipy.stats' second

Array = NDArray[np.float64]
LEVEL = 0.95  # of every interval
ALPHA = 0.05  # chance that the method which is best is not among those that are named
ROUNDING = 1e-12  # of values, by which engines and kernels may differ: a difference within it is none
FEW = 5  # values; a t interval of fewer is wider than their range: 12.7 times for 2, on average 2.6 for 3, 1.4 for 4


class Interval(NamedTuple):
    """A mean over n values and the t interval around it; low and high are NaN for n < 2."""

    mean: float
    low: float
    high: float
    values: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.values)

    def mapped(self, f: Callable[[float], float]) -> Interval:
        """The same in another unit."""
        return Interval(f(self.mean), f(self.low), f(self.high), tuple(map(f, self.values)))

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def ends(self) -> tuple[float, float]:
        """What is shown around the mean: of few values their range, which the interval would only exaggerate."""
        return (self.low, self.high) if self.n >= FEW or not self.values else (min(self.values), max(self.values))


class Paired(NamedTuple):
    """The mean of paired differences, its t interval, and the two-sided p value of 'no difference'."""

    diff: Interval
    p: float


def interval(values: Sequence[float] | Array) -> Interval:
    """Mean and 95 % t interval; NaN throughout for no values, NaN bounds for one."""
    x = np.asarray(values, dtype=np.float64)
    n = x.size
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, ())
    mean = float(x.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, (mean,))
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, tuple(x.tolist()))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired:
    """a - b over the seeds that both have (at least two); what differs by `ROUNDING` is the same."""
    same = [math.isclose(a[s], b[s], rel_tol=ROUNDING) for s in sorted(a.keys() & b.keys())]
    d = np.where(same, 0.0, [a[s] - b[s] for s in sorted(a.keys() & b.keys())])
    diff = interval(d)
    spread = float(d.std(ddof=1)) / math.sqrt(d.size)
    if spread <= ROUNDING * abs(diff.mean):  # no difference, or one: few seeds have that by chance, as shares of a test
        return Paired(diff, 1.0 if diff.mean == 0 else 0.0 if d.size >= FEW else 2.0 ** (1 - d.size))
    return Paired(diff, 2 * float(stdtr(d.size - 1, -abs(diff.mean) / spread)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    adjusted = [0.0] * len(ps)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = running
    return adjusted


def tail_mean(rounds: Array, values: Array, horizon: float, window: int) -> float:
    """The mean of the last `window` values evaluated up to round `horizon`, the start (round 0) left out if it can be;
    NaN if one of them is not finite or there is none."""
    usable = rounds <= horizon
    if np.any(usable & (rounds > 0)):
        usable &= rounds > 0
    last = values[usable][-window:]
    return float(last.mean()) if last.size and np.all(np.isfinite(last)) else math.nan


def first_at(values: Array, target: float, higher: bool) -> int | None:
    """The index of the first value at or past the target, None if there is none."""
    with np.errstate(invalid="ignore"):
        hit = np.flatnonzero((values >= target) if higher else (values <= target))
    return int(hit[0]) if hit.size else None


class Comparison(NamedTuple):
    """The best method's lead over another, on the averaging scale, positive where the best is better."""

    name: str
    lead: Interval
    p: float
    p_holm: float

    @property
    def separated(self) -> bool:
        return self.p_holm < ALPHA


class Verdict(NamedTuple):
    """What may be said of the order of the methods."""

    kind: Literal["best", "tied", "one seed", "one method", "unpaired", "nothing"]
    top: str | None  # the highest mean over `seeds`
    seeds: tuple[int, ...]  # that every ranked method finished
    comparisons: tuple[Comparison, ...]
    left_out: tuple[tuple[str, str], ...]  # method, why

    @property
    def front(self) -> tuple[str, ...]:
        """The best method and those that the data do not separate from it; empty where no interval is given."""
        if self.kind not in ("best", "tied") or self.top is None:
            return ()
        return (self.top, *(c.name for c in self.comparisons if not c.separated))


def verdict(
    finals: Mapping[str, Mapping[int, float]], left_out: Sequence[tuple[str, str]], higher: bool, is_paired: bool
) -> Verdict:
    """The verdict on methods by their final values on the averaging scale, seed -> value, all of them finite.

    `left_out` are methods that cannot be ranked, and why; a method with one seed joins them where others have several.
    Paired t tests of the best mean against each other method, with Holm's correction.
    """
    unranked, values = list(left_out), dict(finals)
    several = [n for n, v in values.items() if len(v) > 1]
    if several:  # a method with one seed would leave the others without an interval
        unranked += [(n, "only one seed of it is complete") for n in values if n not in several]
        values = {n: values[n] for n in several}
    if not values:
        return Verdict("nothing", None, (), (), tuple(unranked))
    seeds = tuple(sorted(set.intersection(*(set(v) for v in values.values()))))
    if len(values) == 1:
        return Verdict("one method", next(iter(values)), seeds, (), tuple(unranked))
    if not is_paired or not seeds:
        return Verdict("unpaired", None, seeds, (), tuple(unranked))
    sign = 1.0 if higher else -1.0
    score = {n: {s: sign * v[s] for s in seeds} for n, v in values.items()}
    order = sorted(score, key=lambda n: -math.fsum(score[n].values()))
    top = order[0]
    if len(seeds) == 1:
        return Verdict("one seed", top, seeds, (), tuple(unranked))
    leads = [paired(score[top], score[n]) for n in order[1:]]
    adjusted = holm([lead.p for lead in leads])
    comparisons = tuple(
        Comparison(n, lead.diff, lead.p, p_holm) for n, lead, p_holm in zip(order[1:], leads, adjusted, strict=True)
    )
    kind: Literal["best", "tied"] = "best" if all(c.separated for c in comparisons) else "tied"
    return Verdict(kind, top, seeds, comparisons, tuple(unranked))
