"""The conformance checks of rounds that wait for nobody, on methods here and on broken ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.scaffold import Message, scaffold
from fedconcord.method.contract import Algorithm, Cohort, Sender
from fedconcord.testing import CheckFailedError, check_asynchronous
from tiers import tiers


def control(server: Any, rows: Any, p: Tensor) -> tuple[Tensor, Tensor]:
    return server.c, p @ rows.c


def remembered(server: Any, rows: Any, p: Tensor) -> tuple[Tensor, Tensor]:
    return server.h, p @ rows.h


PAPER = {"form": "paper_from_theta", "server_lr": "participation", "rho": 1.0}
CASES: dict[str, tuple[dict[str, Any], bool, Any]] = {
    "scaffold": ({}, True, control),
    "fednova_vr": ({}, True, None),
    "fedvra": ({"gamma": 1.0, "a": 1.0, "d": 4.0}, True, None),
    "feddyn": ({"alpha": 1.0}, True, remembered),
    "losac": ({"blocks": 3}, True, None),
    "fedadmm": (PAPER, True, lambda server, rows, p: (server.x, p @ (rows.w + rows.y))),
    "afedpd_share": ({"rho": 2.0}, True, lambda server, rows, p: (server.s, p @ rows.s)),
    "ca2fl": ({}, False, remembered),
    "fedavg": ({}, False, None),
    "fedasync": ({}, False, None),
    "fednova": ({}, False, None),
    "fedcm": ({}, False, None),
    "mofedsam": ({}, False, None),
    "mfl": ({}, False, None),
    "fedadam": ({}, False, None),
    "fedexp": ({}, False, None),
}


@pytest.mark.parametrize("name", tiers(CASES, quick=["scaffold"]))
def test_methods_are_what_they_claim(name: str) -> None:
    """And those that claim nothing say by how much they miss the optimum."""
    options, exact, sums = CASES[name]
    off = check_asynchronous(partial(METHODS[name], **options), exact=exact, sums=sums)
    assert off < 1e-8 if exact else off > 1e-2


def damped(up: Message, sender: Sender, cohort: Cohort) -> Message:
    return Message(sender.w * up.x, sender.w * up.c)


def beside(up: Message, sender: Sender, cohort: Cohort) -> Message:
    """What depends on who else is in the chunk."""
    return Message(sender.w * up.x.mean(0, keepdim=True).expand_as(up.x), sender.p * up.c)


class Counting:
    """What differs from call to call of one process."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, up: Message, sender: Sender, cohort: Cohort) -> Message:
        self.calls += 1
        return Message(sender.w * up.x * self.calls, sender.p * up.c)


COUNTING = Counting()


@pytest.mark.parametrize(
    ("check", "factory", "claims"),
    [
        ("accepted", METHODS["fedpd"], {}),
        ("rounds", lambda: replace(scaffold(), contribute=COUNTING), {}),
        ("engines", lambda: replace(scaffold(), contribute=beside), {}),
        ("sums", lambda: replace(scaffold(), contribute=damped), {"sums": control}),
        ("exact", METHODS["fedavg"], {"exact": True, "updates": 40}),
    ],
)
def test_what_is_broken_fails_the_check_that_is_about_it(
    check: str, factory: Callable[[], Algorithm], claims: dict[str, Any]
) -> None:
    with pytest.raises(CheckFailedError, match=f"check '{check}'"):
        check_asynchronous(factory, **claims)
