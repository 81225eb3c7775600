"""What the replayers of reference trajectories share: recorded schedules and the error measure.

A replayer is `replay(arrays, given, engine)`: from the arrays of one .npz file and its section of `cases.json`, it
yields (case, largest relative error) pairs; nan says that the case is not implemented.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconcord.execution.engines import Engine
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.federation.participation.participation import View
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Drawn, Orders, Plan, Roster, in_blocks, weights

Replay = Callable[[Mapping[str, np.ndarray], Mapping[str, Any], Engine], Iterator[tuple[str, float]]]
MISSING = float("nan")


class NotImplementedCaseError(Exception):
    """The case needs a method or an option that the registry does not have."""


@dataclass(frozen=True)
class Recorded:
    """The plan of every round as recorded in arrays [R, ...]."""

    ids: np.ndarray  # [R, S]
    steps: np.ndarray  # [R, N]
    blocks: np.ndarray | None  # [R, N, K] or None for full gradients
    coins: np.ndarray  # [R]
    lr: float
    cuts: int | None = None  # blocks that a client's samples are cut in; one a sample if not given
    seed: int = 0

    @property
    def cohort(self) -> int:
        return int(self.ids.shape[1])

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        return None

    @property
    def draws(self) -> RecordedDraws:
        return RecordedDraws(self.blocks, self.cuts)

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        ids = self.ids[round]
        steps = self.steps[round, ids] if algorithm.step.steps is None else np.full(len(ids), algorithm.step.steps)
        p = weights.objective(algorithm.weights, roster.sizes)[ids]
        once, share = np.ones(len(ids)), np.full(len(ids), len(ids) / roster.n)
        return Plan(
            round=round,
            ids=ids,
            steps=steps,
            w=weights.cohort(algorithm.weights, p, once, share),
            p=p,
            inclusion=share,
            lr=self.lr,
            seed=self.seed,
            coin=float(self.coins[round]),
        )


class RecordedDraws(NamedTuple):
    """The blocks of every client and step as recorded."""

    blocks: np.ndarray | None  # [R, N, K] or None for full gradients
    cuts: int | None  # as in `Recorded`

    def draw(self, algorithm: Algorithm, orders: Orders, n: int) -> Drawn:
        if self.blocks is None:
            return Drawn(None)
        members = self.members(algorithm, orders.id, n)
        blocks = self.blocks[orders.round, orders.id, : orders.steps]
        return Drawn(members[blocks], blocks)

    def members(self, algorithm: Algorithm, client: int, n: int) -> np.ndarray:
        return in_blocks(np.arange(n), self.cuts or n)

    def width(self, algorithm: Algorithm, n: int) -> int:
        return n

    def full_cost(self, algorithm: Algorithm, n: np.ndarray) -> np.ndarray:
        return np.ones(len(n), np.int64)


def named(case: str) -> Callable[..., Algorithm]:
    """The registered method with the longest name that the case's name starts with.

    Raises:
        NotImplementedCaseError: there is none.
    """
    names = [name for name in METHODS if case == name or case.startswith(name + "_")]
    if not names:
        raise NotImplementedCaseError
    return METHODS[max(names, key=len)]


def built(factory: Callable[..., Algorithm], options: Mapping[str, Any]) -> Algorithm:
    """The method with these options.

    Raises:
        NotImplementedCaseError: it does not have one of them.
    """
    if not set(options) <= set(inspect.signature(factory).parameters):
        raise NotImplementedCaseError
    return factory(**options)


def states(job: Job, rounds: int) -> list[State]:
    """The states before round 0 and after each round."""
    path = [start(job)]
    for _ in range(rounds):
        path.append(advance(job, path[-1]))
    return path


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of two arrays, relative to the largest entry of the row; infinite for NaN."""
    scale = np.abs(want).max(-1, keepdims=True)
    worst = float((np.abs(got - want) / np.where(scale > 0, scale, 1.0)).max())
    return worst if np.isfinite(worst) else float("inf")
