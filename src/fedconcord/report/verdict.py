"""What may be said of the order of the methods: the best, or those that the data do not tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from fedconcord.report.stats import ALPHA, Interval, holm, paired


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
    left, values = list(left_out), dict(finals)
    several = [n for n, v in values.items() if len(v) > 1]
    if several:  # a method with one seed would leave the others without an interval
        left += [(n, "only one seed of it is complete") for n in values if n not in several]
        values = {n: values[n] for n in several}
    if not values:
        return Verdict("nothing", None, (), (), tuple(left))
    seeds = tuple(sorted(set.intersection(*(set(v) for v in values.values()))))
    if len(values) == 1:
        return Verdict("one method", next(iter(values)), seeds, (), tuple(left))
    if not is_paired or not seeds:
        return Verdict("unpaired", None, seeds, (), tuple(left))
    sign = 1.0 if higher else -1.0
    score = {n: {s: sign * v[s] for s in seeds} for n, v in values.items()}
    order = sorted(score, key=lambda n: -math.fsum(score[n].values()))
    top = order[0]
    if len(seeds) == 1:
        return Verdict("one seed", top, seeds, (), tuple(left))
    pairs = {n: paired(score[top], score[n]) for n in order[1:]}
    adjusted = holm([pairs[n].p for n in order[1:]])
    comparisons = tuple(Comparison(n, pairs[n].diff, pairs[n].p, p) for n, p in zip(order[1:], adjusted, strict=True))
    kind: Literal["best", "tied"] = "best" if all(c.separated for c in comparisons) else "tied"
    return Verdict(kind, top, seeds, comparisons, tuple(left))
