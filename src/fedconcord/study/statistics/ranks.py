"""Methods over several data sets: average ranks, the Friedman test and Nemenyi's critical difference.

Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), section 3.2.2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.study.statistics.load import Array, is_chosen
from fedconcord.study.statistics.stats import ALPHA
from fedconcord.study.statistics.summary import Method, MethodResult, Summary

ENOUGH = 5  # data sets, below which the tests say nothing; Demsar (section 3.2.2) wants more than 10


class Ranks(NamedTuple):
    """K methods on N data sets, the best average rank first."""

    data: tuple[str, ...]  # N
    methods: tuple[str, ...]  # K
    names: tuple[tuple[str, ...], ...]  # [K][N] what each is called there
    ranks: Array  # [K, N] 1 is the best; ties share the mean of their ranks
    average: Array  # [K]
    chi2: float  # Friedman's; NaN for fewer than three methods, or if all ranks are tied
    p: float
    critical: float  # average ranks that differ by less are not told apart, at 5 % for all pairs together
    left_out: tuple[str, ...]  # methods that are not in all data sets

    @property
    def enough(self) -> bool:
        """Whether the tests say anything."""
        return len(self.data) >= ENOUGH and math.isfinite(self.p)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(first, last) of the largest runs of methods that are not told apart, several methods each."""
        joined: list[tuple[int, int]] = []
        for i in range(len(self.methods)):
            j = int(np.flatnonzero(self.average - self.average[i] < self.critical)[-1])
            if j > i and not (joined and joined[-1][1] >= j):
                joined.append((i, j))
        return joined


def ranks(summaries: Mapping[str, Summary]) -> Ranks:
    """The ranks of the methods that are in all data sets, by the mean final value; one that diverged comes last."""
    methods_of = [keys(s) for s in summaries.values()]
    every = dict.fromkeys(key for there in methods_of for key in there)
    shared = [key for key in every if all(key in there for there in methods_of)]
    scores = np.array(
        [[score(s, there[key]) for s, there in zip(summaries.values(), methods_of, strict=True)] for key in shared]
    ).reshape(len(shared), len(methods_of))
    names = [tuple(there[key].name for there in methods_of) for key in shared]
    return ranks_of(tuple(summaries), shared, names, scores, [key for key in every if key not in shared])


def ranks_of(
    data: Sequence[str],
    methods: Sequence[str],
    names: Sequence[tuple[str, ...]],
    scores: Array,
    left_out: Sequence[str] = (),
) -> Ranks:
    """The ranks of K methods by their scores on N data sets.

    Args:
        names: [K][N] what each is called there.
        scores: [K, N] more is better; -inf comes last.
    """
    from scipy.stats import friedmanchisquare, rankdata  # type: ignore[import-untyped]  # half a second

    ranked = rankdata(-scores, axis=0) if methods else scores
    average = ranked.mean(axis=1)
    order = np.argsort(average, kind="stable")
    k, n = ranked.shape
    chi2 = p = math.nan
    if k > 2 and np.any(np.ptp(ranked, axis=0) > 0):
        chi2, p = map(float, friedmanchisquare(*ranked))
    return Ranks(
        tuple(data),
        tuple(methods[i] for i in order),
        tuple(names[i] for i in order),
        ranked[order],
        average[order],
        chi2,
        p,
        critical_difference(k, n) if k > 1 else math.nan,
        tuple(left_out),
    )


def critical_difference(methods: int, data: int) -> float:
    """Nemenyi's: q sqrt(k (k + 1) / (6 N)), q the quantile of the studentised range (k, infinitely many) / sqrt(2)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - ALPHA, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * data))


def keys(s: Summary) -> dict[str, Method]:
    """What a method is called over data sets -> the method: its label where it was chosen, else its name without
    parameters; its whole name where that is not one method's alone."""
    methods = [s.method(row.name) for row in s.rows]
    heads = [m.runs[0].head for m in methods]
    short = [head.label if is_chosen(head) else head.method for head in heads]
    count = Counter(short)
    return {name if count[name] == 1 else m.name: m for name, m in zip(short, methods, strict=True)}


def row_of(s: Summary, name: str) -> MethodResult:
    return next(row for row in s.rows if row.name == name)


def score(s: Summary, m: Method) -> float:
    """The final value, more is better; -inf if there is none, or a seed of it diverged."""
    final = row_of(s, m.name).final.mean
    if not math.isfinite(final) or any(r.diverged for r in m.runs):
        return -math.inf
    return final if s.primary.higher else -final
