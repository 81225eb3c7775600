"""How far trials go: synchronous successive halving, in numbers that are known before the first round.

Jamieson and Talwalkar, AISTATS 2016, with a factor of 2 and the last rung at all rounds. Trials are judged after a
quarter of the rounds, those that remain after half of them, and the rest at the end; from rung to rung half of them go
on. Trial 0, a method as it stands, always does, so that what tuning gained is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rung(NamedTuple):
    """So many trials go to so many rounds."""

    rounds: int  # from the start
    trials: int


def rungs_of(trials: int, rounds: int, every: int = 1) -> tuple[Rung, ...]:
    """The rungs of so many trials, the last at `rounds`.

    Rungs but the last stand at multiples of `every`, the rounds between evaluations: a run that went further has a row
    there. Two trials or fewer all go the whole way.
    """
    if trials <= 2:
        return (Rung(rounds, trials),)
    early = [-(-rounds // (part * every)) * every for part in (4, 2)]
    lengths = [*sorted({length for length in early if length < rounds}), rounds]
    return tuple(Rung(length, max(2, trials >> k)) for k, length in enumerate(lengths))


def cost(rungs: Sequence[Rung]) -> int:
    """Rounds of all trials together, for one seed: a trial that goes on is continued, not repeated."""
    lengths = [0, *(rung.rounds for rung in rungs)]
    return sum(rung.trials * (rung.rounds - before) for rung, before in zip(rungs, lengths, strict=False))
