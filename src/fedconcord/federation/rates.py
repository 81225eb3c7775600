"""How the local step size goes on from round to round: a factor on it, a pure function of the round's number.

So a run that is resumed, or made longer, meets the same step sizes, and the server tells each client the one of its
round. Steps within a round are the local solver's (`local.step_decay`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from fedconcord.basis.errors import UserError
from fedconcord.basis.imports import Open, with_options
from fedconcord.basis.parameters import Count, Fraction, about
from fedconcord.core.identity import definition

WHAT = "schedule of step sizes"
Rate = Callable[[int], float]
"""Round, from 0 -> a number > 0: the local step size of the round, or a factor on it."""

Warm = Annotated[
    int, Field(ge=0, description="rounds over which the step size rises to its full value, in equal parts")
]
Rounds = Annotated[Count, about("round from which on the factor stays at the floor")]
Floor = Annotated[Fraction, about("factor at the end of the schedule")]


@definition()
def constant(warmup: Warm = 0) -> Rate:
    """The same in every round, after a warm-up if there is one."""
    return lambda round: _warm(round, warmup)


@definition()
def cosine(rounds: Rounds, floor: Floor = 0.01, warmup: Warm = 0) -> Rate:
    """Half a cosine from 1 to the floor over so many rounds, the warm-up among them (Loshchilov and Hutter, 2017)."""
    _check(rounds, warmup, "cosine")

    def rate(round: int) -> float:
        share = min(max(round - warmup, 0) / (rounds - warmup), 1.0)
        return _warm(round, warmup) * (floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2)

    return rate


@definition()
def linear(rounds: Rounds, floor: Floor = 0.01, warmup: Warm = 0) -> Rate:
    """A straight line from 1 to the floor over so many rounds, the warm-up among them."""
    _check(rounds, warmup, "linear")

    def rate(round: int) -> float:
        share = min(max(round - warmup, 0) / (rounds - warmup), 1.0)
        return _warm(round, warmup) * (1 - (1 - floor) * share)

    return rate


@definition()
def step(
    every: Annotated[Count, about("rounds between two reductions")],
    factor: Annotated[Fraction, about("factor of each reduction")] = 0.1,
    warmup: Warm = 0,
) -> Rate:
    """Falls by a factor every so many rounds, as torch's StepLR by epochs."""
    return lambda round: _warm(round, warmup) * factor ** (round // every)


def _warm(round: int, warmup: int) -> float:
    return min((round + 1) / warmup, 1.0) if warmup else 1.0


def _check(rounds: int, warmup: int, name: str) -> None:
    if warmup >= rounds:
        raise UserError(f"{name} with rounds {rounds} has no round after a warmup of {warmup}; give a shorter warmup")


RATES: dict[str, Callable[..., Rate]] = {"constant": constant, "cosine": cosine, "linear": linear, "step": step}
"""How the local step size goes on from round to round, by name."""


def rates() -> Mapping[str, Callable[..., Rate]]:
    """`RATES`, and functions (round, options...) -> factor of your own by import path, `package.module:function`."""
    return Open(RATES, WHAT, _own)


def _own(function: Callable[..., float], path: str) -> Callable[..., Rate]:
    called = with_options(function, path, WHAT, ("round",))

    def make(**options: Any) -> Rate:
        return partial(called, **options)

    make.__signature__, make.__doc__ = inspect.signature(called), function.__doc__  # type: ignore[attr-defined]
    return make


def rate_at(lr: float | Rate, round: int) -> float:
    """The local step size of a round.

    Raises:
        UserError: a function of one's own gives no number > 0.
    """
    if not callable(lr):
        return lr
    value = lr(round)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"the step size of round {round} is {value!r}; the function of rounds must give a number > 0")
    return float(value)


def scaled(lr: float, rate: Rate) -> Rate:
    """A step size times a schedule's factor."""
    return lambda round: lr * rate_at(rate, round)
