"""How each method stands over the federations of a role: beside the best tuned method and FedAvg, and its ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from fedconcord.study.statistics.ranks import Ranks, ranks_of
from fedconcord.study.statistics.stats import ALPHA
from fedconcord_papers.arena.federations import REFERENCE
from fedconcord_papers.arena.outcome import Outcome, Result
from fedconcord_papers.arena.plan import CONTROLS

NEAR, FAR = 1.25, 2.0  # times the rounds of the best tuned method


class Worst(NamedTuple):
    """The worst of some values, and where."""

    value: float
    federation: str


class Standing(NamedTuple):
    """A method over the federations of a role that it can run in."""

    label: str
    tuned: bool  # in any of them
    is_kept: bool  # of the package's table in all of them
    federations: int
    judged: int  # of them, those where a tuned method came to the target
    reached: int  # of these, on every seed
    near: int  # within `NEAR` times the best tuned method's rounds
    far: int  # within `FAR` times
    ratios: tuple[float, ...]  # of each judged, infinite: never
    worst: Worst  # ratio of rounds
    bytes: float  # median ratio to the bytes of the best tuned method, where both came there
    broken: int  # runs that diverged or failed
    runs: int
    lead: float  # points over tuned FedAvg, the mean over federations ranked by a share; NaN: there is none
    behind: Worst  # the least of these
    slower: float  # median over federations of the time a round over FedAvg's
    slowest: Worst


class Contest(NamedTuple):
    """A method against one of FedAvg's controls, by rounds to the target, over the federations that both can run in."""

    label: str
    control: str
    wins: int  # federations where it needs fewer rounds
    losses: int
    p: float  # of a sign test without ties, two-sided

    @property
    def is_won(self) -> bool:
        """Whether it beats the control."""
        return self.wins > self.losses and self.p <= ALPHA


class Table(NamedTuple):
    """The federations of a role."""

    role: str
    results: tuple[Result, ...]
    standings: tuple[Standing, ...]  # those that are near most often first
    by_rounds: Ranks
    by_final: Ranks


def table_of(results: Sequence[Result]) -> Table:
    """The standings over federations, all of one role."""
    ran = [one.entry.label for result in results for one in result.outcomes]
    labels = list(dict.fromkeys([*ran, *(label for result in results for label in result.refused)]))
    standings = [standing(label, results) for label in dict.fromkeys(ran)]
    order = sorted(standings, key=lambda s: (-s.near, -s.far, s.worst.value if s.ratios else math.inf))
    return Table(
        results[0].federation.role,
        tuple(results),
        tuple(order),
        _ranks(results, labels, lambda one: -one.mean_rounds),
        _ranks(results, labels, _final),
    )


def standing(label: str, results: Sequence[Result]) -> Standing:
    """A method over federations; where it cannot run, they are left out."""
    there = [(result, one) for result in results if (one := outcome_of(result, label)) is not None]
    judged = [(result, one) for result, one in there if result.best is not None]
    ratios = [(result.ratio(one), result.federation.name) for result, one in judged]
    leads = [
        (fmean(one.lead.values()) * 100, result.federation.name)
        for result, one in there
        if result.goals.metric.percent and all(map(math.isfinite, one.lead.values()))
    ]
    slower = [(median(one.slower.values()), result.federation.name) for result, one in there if one.slower]
    sizes = [one.mean_bytes / result.best.mean_bytes for result, one in judged if result.best is not None]
    sizes = [ratio for ratio in sizes if math.isfinite(ratio)]
    return Standing(
        label=label,
        tuned=any(one.entry.tuned for _, one in there),
        is_kept=all(one.entry.is_kept for _, one in there),
        federations=len(there),
        judged=len(judged),
        reached=sum(math.isfinite(ratio) for ratio, _ in ratios),
        near=sum(ratio <= NEAR for ratio, _ in ratios),
        far=sum(ratio <= FAR for ratio, _ in ratios),
        ratios=tuple(ratio for ratio, _ in ratios),
        worst=_worst(ratios, max),
        bytes=median(sizes) if sizes else math.nan,
        broken=sum(one.broken for _, one in there),
        runs=sum(len(one.rounds) for _, one in there),
        lead=fmean(lead for lead, _ in leads) if leads else math.nan,
        behind=_worst(leads, min),
        slower=median(value for value, _ in slower) if slower else math.nan,
        slowest=_worst(slower, max),
    )


def contests(table: Table) -> list[Contest]:
    """Every method that was run here, but for FedAvg and its controls, against each control that is there."""
    labels = [s.label for s in table.standings]
    new = [s.label for s in table.standings if not s.is_kept and s.label not in (REFERENCE, *CONTROLS)]
    return [_contest(table.results, label, rival) for label in new for rival in CONTROLS if rival in labels]


def _contest(results: Sequence[Result], label: str, control: str) -> Contest:
    pairs = [(outcome_of(result, label), outcome_of(result, control)) for result in results]
    rounds = [(a.mean_rounds, b.mean_rounds) for a, b in pairs if a is not None and b is not None]
    wins, losses = sum(a < b for a, b in rounds), sum(a > b for a, b in rounds)
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    return Contest(label, control, wins, losses, min(1.0, 2 * tail))


def outcome_of(result: Result, label: str) -> Outcome | None:
    """A method in a federation; None where it cannot run."""
    return next((one for one in result.outcomes if one.entry.label == label), None)


def _worst(values: Sequence[tuple[float, str]], which: Callable[..., tuple[float, str]]) -> Worst:
    return Worst(*which(values, key=lambda one: one[0])) if values else Worst(math.nan, "")


def _final(one: Outcome) -> float:
    """The final value beside tuned FedAvg's, more is better; -inf where a seed diverged or failed."""
    mean = fmean(one.lead.values())
    return mean if math.isfinite(mean) and not one.broken else -math.inf


def _ranks(results: Sequence[Result], labels: Sequence[str], score: Callable[[Outcome], float]) -> Ranks:
    """Of the methods that can run in all federations."""
    by_label = {label: [outcome_of(result, label) for result in results] for label in labels}
    shared = {label: [one for one in line if one is not None] for label, line in by_label.items() if None not in line}
    scores = np.array([[score(one) for one in line] for line in shared.values()]).reshape(len(shared), len(results))
    data = [result.federation.name for result in results]
    names = [(label,) * len(data) for label in shared]
    return ranks_of(data, list(shared), names, scores, [label for label in labels if label not in shared])
