"""The rules as data: which methods to tune first where what is seen of a federation holds, and why.

The first rule that holds names the methods, best first; those that cannot run there or break a wish are passed over,
and the rules after it fill up. docs/choosing.md is this table for people; benchmarks/federations.json holds what became
of its first choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedconcord.advice.facts import Facts

SELDOM, UNEQUAL, SKEWED, APART = 2.0, 0.3, 0.3, 0.1  # where the words below begin


class Rule(NamedTuple):
    """Where something holds, these methods first."""

    words: str  # the condition
    holds: Callable[[Facts], bool]
    methods: tuple[str, ...]  # with the settings to begin with, best first
    why: str
    source: str


class Caution(NamedTuple):
    """Where something holds, not this method."""

    words: str
    holds: Callable[[Facts], bool]
    methods: tuple[str, ...]  # names
    why: str
    source: str


RULES = (
    Rule(
        "clients that come less than twice",
        lambda facts: facts.visits < SELDOM,
        ("fedcm(alpha=0.3)", "fedadam(server_lr=0.03)", "fedavgm(server_momentum=0.9)"),
        "what a client keeps is never used again, and what the server keeps serves everybody",
        "measured; FedCM, Xu et al. 2021; Reddi et al. 2021",
    ),
    Rule(
        "labels or features that differ by client",
        lambda facts: facts.label_skew > SKEWED or (facts.features or 0) > APART,
        ("afedpd(rho=0.1)", "feddyn(alpha=0.1)", "fedcm(alpha=0.3)"),
        "dual variables pull the clients' models to one point, so that large steps do not drift",
        "measured; A-FedPD, NeurIPS 2024; FedDyn, Acar et al. 2021",
    ),
    Rule(
        "any other federation",
        lambda facts: True,
        ("afedpd(rho=0.01)", "fedcm(alpha=0.3)", "fedadam(server_lr=0.03)", "fedavgm(server_momentum=0.9)", "fedavg"),
        "little to correct, so what is gained is the longer step of a consensus or of momentum",
        "measured",
    ),
)

CAUTIONS = (
    Caution(
        "clients that come less than twice",
        lambda facts: facts.visits < SELDOM,
        ("scaffold", "feddyn"),
        "the state that corrects a client is from its first round or from none",
        "FedCM, Xu et al. 2021",
    ),
)

METHODS = tuple(dict.fromkeys(text for rule in RULES for text in rule.methods))
