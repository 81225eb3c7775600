"""The rules: which methods to tune first where what is seen of a federation holds, and why.

The conditions are stated here; each method says itself (`Algorithm.facts`) where it is worth tuning, and where it is
not. The first rule that holds names the methods, best first; those that cannot run there or break a wish are passed
over, and the rules after it fill up. docs/choosing.md is this table for people; benchmarks/federations.json holds what
became of its first choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedconcord import core
from fedconcord.advice.facts import FederationFacts
from fedconcord.analysis import catalogue

SELDOM, FEW, UNEQUAL, SKEWED, APART = 2, 20, 0.1, 0.3, 0.1  # where the conditions below begin


class Condition(NamedTuple):
    """What can hold in a federation."""

    words: str
    holds: Callable[[FederationFacts], bool]
    source: str = "measured"  # of what is recommended where it holds


CONDITIONS: dict[core.Condition, Condition] = {
    "seldom": Condition(
        "clients that come less than twice", lambda facts: facts.visits < SELDOM, "measured; Reddi et al. 2021"
    ),
    "rare": Condition("clients that come less than 20 times", lambda facts: facts.visits < FEW),
    "skewed": Condition(
        "labels or features that differ by client",
        lambda facts: facts.label_skew > SKEWED or (facts.features or 0) > APART,
        "measured; A-FedPD, NeurIPS 2024; FedDyn, Acar et al. 2021",
    ),
    "equal work": Condition("clients whose local steps hardly differ", lambda facts: facts.step_spread < UNEQUAL),
    "any": Condition("any federation", lambda facts: True),
}


class Pick(NamedTuple):
    """A method to tune."""

    method: str  # with the settings to begin with
    why: str


class Rule(NamedTuple):
    """Where a condition holds, these methods first."""

    condition: Condition
    picks: tuple[Pick, ...]  # best first


class Caution(NamedTuple):
    """Where a condition holds, not this method."""

    condition: Condition
    method: str  # its name
    why: str
    source: str


def rules() -> list[Rule]:
    """The rules of all methods of this installation; the last one holds everywhere."""
    listed: dict[core.Condition, list[tuple[int, Pick]]] = {condition: [] for condition in CONDITIONS}
    for name, facts in catalogue.stated().items():
        for one in facts.recommendations:
            for condition, place in one.places.items():
                listed[condition].append((place, Pick(f"{name}({one.settings})", one.why)))
    ordered = {condition: sorted(picks, key=lambda pick: pick[0]) for condition, picks in listed.items()}
    return [Rule(CONDITIONS[key], tuple(pick for _, pick in picks)) for key, picks in ordered.items() if picks]


def cautions() -> list[Caution]:
    """What all methods of this installation warn of, by condition."""
    stated = catalogue.stated()
    return [
        Caution(condition, name, one.why, one.source)
        for key, condition in CONDITIONS.items()
        for name, facts in stated.items()
        for one in facts.cautions
        if one.condition == key
    ]


def methods_of(rules: list[Rule]) -> tuple[str, ...]:
    """Every method that some rule names, with the settings to begin with."""
    return tuple(dict.fromkeys(pick.method for rule in rules for pick in rule.picks))
