"""Claims as predicates over values, and how certain a verdict is.

A difference between two entries in one cell is decided over paired seeds: by the 95 % t interval of the differences
where there are five seeds or more, below that only if two or more were run and all agree, which `chance` says how
often happens to methods that are alike. A target that one of them never reached, or a run that diverged, is worse
than any number; if neither reached it, nothing is decided. A bound is judged alike, on the distances to it by seed. A
claim about several differences is held if all are so, failed if none is so and at least one is the other way,
undecided if none is either, and else in part; one that was not run makes both of the former in part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from fedconcord.study.statistics.stats import interval
from fedconcord_papers.recipes.recipe import Claim
from fedconcord_papers.recipes.values import Finding, Value, Values, pairs

Sign = Literal["ahead", "behind", "even"]
So: TypeAlias = bool | Sign | None  # whether it is so, or how it came out; None: it was not run


def compared(values: Values, measure: str, cell: str, a: str, b: str, higher: bool) -> Sign | None:
    """Whether a is better than b; None where one of them was not run."""
    worst = -math.inf if higher else math.inf
    both = [tuple(worst if math.isnan(v) else v for v in pair) for pair in pairs(values, measure, cell, a, b)]
    if not both:
        return None
    return decided([0.0 if x == y else (x - y) * (1 if higher else -1) for x, y in both])


def decided(gains: Sequence[float]) -> Sign:
    """Whether gains by seed are above 0, below, or neither; one that is NaN is below."""
    low, high = reach([-math.inf if math.isnan(gain) else gain for gain in gains])
    if len(gains) == 1:
        return "even"  # one seed agrees with itself
    return "ahead" if low > 0 else "behind" if high < 0 else "even"


def reach(numbers: Sequence[float]) -> tuple[float, float]:
    """Where a mean may lie: the ends of the t interval of five numbers or more, of fewer the least and the greatest, as
    where one is infinite."""
    return interval(numbers).ends if all(map(math.isfinite, numbers)) else (min(numbers), max(numbers))


def judged(signs: Sequence[tuple[str, Sign | None]]) -> Finding:
    """The finding on (what was compared, how it came out)."""
    there = [(what, sign) for what, sign in signs if sign is not None]
    if not there:
        return Finding("untested")
    groups = {sign: [what for what, one in there if one == sign] for sign in ("ahead", "behind", "even")}
    parts = [
        f"{words}: {', '.join(groups[sign])}"
        for sign, words in (("ahead", "so"), ("behind", "the other way"), ("even", "undecided"))
        if groups[sign]
    ]
    missing = len(signs) - len(there)
    why = "; ".join([*parts, *([f"{missing} not run"] if missing else [])])
    if len(groups["ahead"]) == len(signs):
        return Finding("held", why)
    if groups["ahead"] or (groups["behind"] and missing):
        return Finding("in part", why)
    return Finding("failed" if groups["behind"] else "undecided", why)


def chance(seeds: int) -> float:
    """How often so many seeds agree on the order of two methods that are alike."""
    return 0.5 ** (seeds - 1)


def ahead(
    says: str, measure: str, winner: str, losers: Sequence[str], cells: Sequence[str], higher: bool = False
) -> Claim:
    """One entry is better than each of others in each of these cells."""
    return _pairwise(says, measure, [(winner, loser) for loser in losers], cells, higher)


def order(says: str, measure: str, names: Sequence[str], cells: Sequence[str], higher: bool = False) -> Claim:
    """Entries stand in this order, best first, in each of these cells."""
    return _pairwise(says, measure, list(pairwise(names)), cells, higher)


def between_cells(
    says: str, measure: str, entries: Sequence[str], better: str, worse: str, higher: bool = False
) -> Claim:
    """Each of these entries is better in one cell than in another, paired by seed."""

    def judge(values: Values) -> Finding:
        signs: list[tuple[str, Sign | None]] = []
        for entry in entries:
            both = Values(
                tuple(
                    row._replace(cell="", entry=row.cell)
                    for row in values.rows
                    if row.entry == entry and row.cell in (better, worse)
                )
            )
            means = " against ".join(_mean(values, measure, cell, entry) for cell in (better, worse))
            signs.append((f"{entry} {means}", compared(both, measure, "", better, worse, higher)))
        return judged(signs)

    return Claim(says, judge)


def across(
    says: str, measure: str, pairs: Sequence[tuple[tuple[str, str], tuple[str, str]]], higher: bool = False
) -> Claim:
    """The first of each pair is better than the second, each an entry in a cell, (cell, entry), paired by seed."""

    def by_place(values: Values) -> Values:
        return Values(tuple(row._replace(cell="", entry=f"{row.entry} ({row.cell})") for row in values.rows))

    who = [(f"{better[1]} ({better[0]})", f"{worse[1]} ({worse[0]})") for better, worse in pairs]
    return _pairwise(says, measure, who, [""], higher, by_place)


def loses_more(
    says: str, measure: str, more: Sequence[str], less: Sequence[str], easy: str, hard: str, higher: bool = False
) -> Claim:
    """From one cell to another each of some entries loses more of a measure than each of others, paired by seed; what
    diverged has lost everything."""

    def losses(values: Values) -> Values:
        rows = []
        for entry in (*more, *less):
            before, after = values.seeds(measure, easy, entry), values.seeds(measure, hard, entry)
            for seed in sorted(before.keys() & after.keys()):
                loss = (before[seed] - after[seed]) * (1 if higher else -1)
                rows.append(Value(measure, "", entry, seed, math.inf if math.isnan(loss) else loss))
        return Values(tuple(rows))

    return _pairwise(says, measure, [(a, b) for a in more for b in less], [""], True, losses)


def faster(says: str, measure: str, winner: str, losers: Sequence[str], cells: Sequence[str], factor: float) -> Claim:
    """One entry needs at most 1 / factor of what each of others needs, in each of these cells; paired by seed."""

    def slowed(values: Values) -> Values:
        is_winner = [(row.measure, row.entry) == (measure, winner) for row in values.rows]
        rows = zip(values.rows, is_winner, strict=True)
        return Values(tuple(row._replace(value=factor * row.value) if scaled else row for row, scaled in rows))

    who = [(winner, loser) for loser in losers]
    return _pairwise(says, measure, who, cells, False, as_compared=slowed)


def within(says: str, measure: str, expected: Sequence[tuple[str, str, float | str]], tolerance: float) -> Claim:
    """Wherever means may lie is within this relative tolerance of (cell, entry, printed value), or outside of it; a
    printed text, as "100+", is a target that no seed reached. One seed decides nothing."""

    def sign(numbers: Sequence[float], printed: float | str) -> Sign:
        low, high = reach([math.inf if math.isnan(v) else v for v in numbers])
        least, most = (math.inf, math.inf)
        if not isinstance(printed, str):
            least, most = printed - tolerance * abs(printed), printed + tolerance * abs(printed)
        is_in, is_out = least <= low and high <= most, high < least or low > most
        return "even" if len(numbers) == 1 else "ahead" if is_in else "behind" if is_out else "even"

    def judge(values: Values) -> Finding:
        signs: list[tuple[str, Sign | None]] = []
        for cell, entry, printed in expected:
            numbers = list(values.seeds(measure, cell, entry).values())
            target = printed if isinstance(printed, str) else f"{printed:.4g}"
            what = f"{entry} ({cell}) {_mean(values, measure, cell, entry)} for {target}"
            signs.append((what, sign(numbers, printed) if numbers else None))
        return judged(signs)

    return Claim(says, judge, printed=True)


def holds_where(says: str, test: Callable[[Values], Sequence[tuple[str, So]]]) -> Claim:
    """Any other predicate: (what is said, whether it is so), None where it was not run."""

    def judge(values: Values) -> Finding:
        words: dict[bool, Sign] = {True: "ahead", False: "behind"}
        return judged([(what, words[so] if isinstance(so, bool) else so) for what, so in test(values)])

    return Claim(says, judge)


def told(
    values: Values,
    measure: str,
    runs: Sequence[tuple[str, str]],
    says: Callable[..., str],
    margin: Callable[..., float],
) -> tuple[str, So]:
    """What is said of the means of these runs, (cell, entry), and whether a margin, of their values of one seed, is
    above 0; None where one was not run."""
    by_seed = [values.seeds(measure, *run) for run in runs]
    if not (seeds := sorted(set[int].intersection(*({*each} for each in by_seed)))):
        return "", None
    means = (sum(each[seed] for seed in seeds) / len(seeds) for each in by_seed)
    return says(*means), decided([margin(*(each[seed] for each in by_seed)) for seed in seeds])


def as_ours(claim: Claim) -> Claim:
    """A claim that the paper does not make."""
    return claim._replace(ours=True)


def number(mean: float, form: str = ".4g") -> str:
    """A mean of `told` as a claim's evidence shows it."""
    return "diverged" if math.isnan(mean) else "never" if math.isinf(mean) else f"{mean:{form}}"


def _pairwise(
    says: str,
    measure: str,
    who: Sequence[tuple[str, str]],
    cells: Sequence[str],
    higher: bool,
    view: Callable[[Values], Values] = lambda values: values,
    as_compared: Callable[[Values], Values] = lambda values: values,
) -> Claim:
    """The claim that the first of each pair of entries is better than the second in each of these cells.

    Args:
        view: makes of a recipe's values those that are compared and shown.
        as_compared: makes of these the ones that are compared, where others are shown.
    """

    def judge(values: Values) -> Finding:
        text = view(values)
        compared_values = as_compared(text)
        signs = [
            (_pair(text, measure, cell, a, b, len(cells) > 1), compared(compared_values, measure, cell, a, b, higher))
            for cell in cells
            for a, b in who
        ]
        return judged(signs)

    return Claim(says, judge)


def _pair(values: Values, measure: str, cell: str, a: str, b: str, with_cell: bool) -> str:
    return f"{a} {_mean(values, measure, cell, a)} against {b} {_mean(values, measure, cell, b)}" + (
        f" ({cell})" if with_cell else ""
    )


def _mean(values: Values, measure: str, cell: str, entry: str) -> str:
    """The mean as a claim's evidence shows it; a target that some seeds missed is so said."""
    seeds = list(values.seeds(measure, cell, entry).values())
    finite = [v for v in seeds if math.isfinite(v)]
    if not seeds:
        return "?"
    if not finite:
        return "never" if any(math.isinf(v) for v in seeds) else "diverged"
    mean = f"{sum(finite) / len(finite):.4g}"
    return mean if len(finite) == len(seeds) else f"{mean} in {len(finite)} of {len(seeds)} seeds"
