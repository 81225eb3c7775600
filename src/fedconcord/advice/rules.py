"""The rules as data: which methods to tune first where what is seen of a federation holds, and why.

The first rule that holds names the methods, best first; those that cannot run there or break a wish are passed over,
and the rules after it fill up. docs/choosing.md is this table for people; benchmarks/federations.json holds what became
of its first choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedconcord.advice.facts import Facts

SELDOM, FEW, UNEQUAL, SKEWED, APART = 2, 20, 0.1, 0.3, 0.1  # where the words below begin


class Pick(NamedTuple):
    """A method to tune."""

    method: str  # with the settings to begin with
    why: str


class Rule(NamedTuple):
    """Where something holds, these methods first."""

    words: str  # the condition
    holds: Callable[[Facts], bool]
    picks: tuple[Pick, ...]  # best first
    source: str


class Caution(NamedTuple):
    """Where something holds, not these methods."""

    words: str
    holds: Callable[[Facts], bool]
    methods: tuple[str, ...]  # names
    why: str
    source: str


def seldom(facts: Facts) -> bool:
    return facts.visits < SELDOM


def differ(facts: Facts) -> bool:
    return facts.label_skew > SKEWED or (facts.features or 0) > APART


ADAM = Pick(
    "fedadam(server_lr=0.03,local.lr=0.3)",
    "the server's Adam makes large steps of small common moves, and clients need no memory",
)
MOMENTUM = Pick(
    "fedavgm(server_momentum=0.5,local.lr=0.3)",
    "the server's momentum outlives each cohort, and clients need no memory",
)
FOLLOW = Pick("fedcm(alpha=0.3,local.lr=1)", "clients follow the last round's common direction, and need no memory")

RULES = (
    Rule("clients that come less than twice", seldom, (ADAM, MOMENTUM, FOLLOW), "measured; Reddi et al. 2021"),
    Rule(
        "labels or features that differ by client",
        differ,
        (
            Pick(
                "afedpd(rho=0.1,local.lr=0.3)",
                "dual variables, absent clients' too, keep large local steps from drifting",
            ),
            Pick(
                "feddyn(alpha=0.01,local.lr=0.3)",
                "a dual variable a client keeps large local steps from drifting, at FedAvg's messages",
            ),
            FOLLOW,
        ),
        "measured; A-FedPD, NeurIPS 2024; FedDyn, Acar et al. 2021",
    ),
    Rule(
        "any federation",
        lambda facts: True,
        (
            Pick(
                "afedpd(rho=0.01,local.lr=0.3)",
                "its server steps beyond the cohort's mean, which is early where little drifts",
            ),
            *(FOLLOW, ADAM, MOMENTUM),
            Pick("fedavg(local.lr=0.3)", "the simplest"),
        ),
        "measured",
    ),
)

CAUTIONS = (
    Caution(
        "clients that come less than twice",
        seldom,
        ("scaffold", "fedspeed"),
        "what corrects a client is of its first round or of none",
        "measured",
    ),
    Caution(
        "clients that come less than 20 times",
        lambda facts: facts.visits < FEW,
        ("scaffold",),
        "its control variates allow small steps only, so that it ends near FedAvg at twice the messages",
        "measured",
    ),
    Caution(
        "clients whose local steps hardly differ",
        lambda facts: facts.step_spread < UNEQUAL,
        ("fednova",),
        "there is nothing to normalise, so that it is FedAvg",
        "Wang et al. 2021, eq. (15); measured",
    ),
    Caution(
        "any federation",
        lambda facts: True,
        ("fedprox",),
        "tuned, it ends where FedAvg does",
        "measured",
    ),
)

METHODS = tuple(dict.fromkeys(pick.method for rule in RULES for pick in rule.picks))
