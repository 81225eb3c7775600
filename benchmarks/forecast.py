"""Can a method, and the rounds to a target, be said before round 0? From the table of the arena, one by the others.

    python benchmarks/forecast.py     # writes the tables of docs/choosing.md

Facts of a federation are those of `fedconcord advise`, none of which trains a model. What is said of a federation is
made of all others that do not share its data set and model, so that no near copy answers for it. Methods are judged by
the ratio of their rounds to those of the best tuned method of the arena, `never` as `NEVER`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from federations import PAGE, filled

from fedconcord.insight.advice.choice import NO_WISHES, choose, federation_of, name_of, refused, rules
from fedconcord.insight.advice.facts import FederationFacts, facts_of
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files
from fedconcord_papers.arena.federations import ROLES, chosen
from fedconcord_papers.arena.kept import kept
from fedconcord_papers.arena.outcome import Result
from fedconcord_papers.arena.plan import CONTROLS

NEVER = 9.0  # a ratio that stands for a target that is not reached
NEAR = 1.25
NEIGHBOURS = 3
COVERED = 0.8  # of the intervals of rounds


class Case(NamedTuple):
    """A federation of the arena's table."""

    result: Result
    facts: FederationFacts
    x: np.ndarray  # [F] what is known of it before round 0, on scales where distances mean something
    ratios: dict[str, float]  # by method: its rounds over those of the best tuned method
    best: float  # rounds of the best tuned method
    advised: tuple[str, ...]  # what `advise` names, best first

    @property
    def source(self) -> tuple[str, str]:
        """Its data set and model, which near copies of it share."""
        return self.result.size.data.partition("(")[0], self.result.size.model


def cases() -> list[Case]:
    """Every federation of the table whose target a tuned method reached."""
    made = []
    chosen(ROLES)  # which trusts what they name
    for result in kept().results.values():
        if result.best is None:
            continue
        config = federation_of(from_nested(result.federation.nested, result.federation.name))
        facts = facts_of(config)
        known = rules()
        able = {pick.method for rule in known for pick in rule.picks if refused(config, pick.method, NO_WISHES) is None}
        named = tuple(name_of(pick.method) for pick, _ in choose(known, facts, able))
        forget_problem()
        ratios = {
            one.entry.label: min(NEVER, result.ratio(one)) for one in result.outcomes if one.entry.label not in CONTROLS
        }
        made.append(Case(result, facts, _numbers(facts), ratios, result.best.mean_rounds, named))
    return made


def _numbers(facts: FederationFacts) -> np.ndarray:
    least, mean, most = facts.samples
    return np.array([
        math.log(facts.visits), math.log(facts.share), math.log(facts.clients), math.log(facts.steps[1]),
        facts.step_spread, facts.label_skew, facts.features or 0.0, math.log(mean), math.log(most / max(1, least)),
        math.log(facts.model_bytes), math.log(facts.rounds),
    ])  # fmt: skip


def others(case: Case, every: Sequence[Case]) -> list[Case]:
    """The federations that may speak for one."""
    return [one for one in every if one.source != case.source]


# -- which method ----------------------------------------------------------------------------------------------------

Rule = Callable[[Case, Sequence[Case]], list[str]]
"""(a federation, those that may speak for it) -> methods, best first."""


def by_mean(speakers: Sequence[Case]) -> list[str]:
    """Methods by the geometric mean of their ratios."""
    labels = set.intersection(*(set(one.ratios) for one in speakers))
    return sorted(labels, key=lambda label: (fmean(math.log(one.ratios[label]) for one in speakers), label))


def nearest(case: Case, speakers: Sequence[Case]) -> list[str]:
    """Methods by their ratios in the federations that are most alike, each number in its standard deviations."""
    x = np.array([one.x for one in speakers])
    spread = x.std(axis=0)
    spread[spread == 0] = 1.0
    near = np.argsort((((x - case.x) / spread) ** 2).sum(axis=1), kind="stable")[:NEIGHBOURS]
    return by_mean([speakers[k] for k in near])


RULES: dict[str, Rule] = {
    "`afedpd` everywhere": lambda case, speakers: ["afedpd", "feddyn", "fedadam"],
    "`auto` everywhere, which is not tuned": lambda case, speakers: ["auto"],
    "the rules of `advise`": lambda case, speakers: list(case.advised),
    "the best of the other federations": lambda case, speakers: by_mean(speakers),
    f"the best of the {NEIGHBOURS} federations most alike": nearest,
}


def choices(every: Sequence[Case]) -> list[str]:
    """The table of rules for a method."""
    lines = [
        "| said before round 0 | within 1.25 | mean ratio | worst | one of three within 1.25 |",
        "|---|---|---|---|---|",
    ]
    for name, rule in RULES.items():
        first, three = [], []
        for case in every:
            said = [label for label in rule(case, others(case, every)) if label in case.ratios]
            first.append(case.ratios[said[0]])
            three.append(min(case.ratios[label] for label in said[:3]))
        mean, worst = math.exp(fmean(map(math.log, first))), max(first)
        lines.append(
            f"| {name} | {sum(r <= NEAR for r in first)} of {len(every)} | {mean:.2f} | "
            f"{'never' if worst == NEVER else f'{worst:.2f}'} | {sum(r <= NEAR for r in three)} of {len(every)} |"
        )
    return lines


# -- how many rounds -------------------------------------------------------------------------------------------------


def rounds(every: Sequence[Case]) -> list[str]:
    """The table of forecasts of the best tuned method's rounds: a middle, and an interval from the others' errors."""
    kinds: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], float]] = {
        "the middle of the others": lambda x, y, at: float(np.median(y)),
        "a share of the job's rounds": lambda x, y, at: float(np.median(y - x[:, -1]) + at[-1]),
        "ridge regression on the facts": _ridge,
    }
    lines = [
        f"| forecast | within a factor of 1.5 | of 2 | its {COVERED:.0%} interval, a factor of | held |".replace(
            "%", " %"
        ),
        "|---|---|---|---|---|",
    ]
    for name, predict in kinds.items():
        errors, widths, held = [], [], []
        for case in every:
            speakers = others(case, every)
            x, y = np.array([one.x for one in speakers]), np.log([one.best for one in speakers])
            own = [abs(predict(np.delete(x, k, 0), np.delete(y, k), x[k]) - y[k]) for k in range(len(y))]
            width = float(np.quantile(own, COVERED))  # what errors on those that speak are below
            error = abs(predict(x, y, case.x) - math.log(case.best))
            errors.append(error)
            widths.append(width)
            held.append(error <= width)
        shares = [f"{sum(e <= math.log(f) for e in errors)} of {len(every)}" for f in (1.5, 2.0)]
        lines.append(f"| {name} | {' | '.join(shares)} | {math.exp(fmean(widths)):.1f} | {sum(held)} of {len(every)} |")
    return lines


def _ridge(x: np.ndarray, y: np.ndarray, at: np.ndarray, penalty: float = 3.0) -> float:
    """Of standardised numbers."""
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread[spread == 0] = 1.0
    z, middle = (x - mean) / spread, float(y.mean())
    w = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ (y - middle))
    return middle + float(((at - mean) / spread) @ w)


def main() -> None:
    every = cases()
    tables = {"forecast": "\n".join(choices(every)), "forecast rounds": "\n".join(rounds(every))}
    files.write_text(PAGE, filled(PAGE.read_text(), tables))


if __name__ == "__main__":
    main()
