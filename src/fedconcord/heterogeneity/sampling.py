"""Which clients take part in a round. A sampler is a pure function of its key and says its probabilities.

A draw costs O(S) time and memory, O(S log N) by size: nothing here may run over all clients every round. (numpy's
`choice` without replacement is Floyd's algorithm where S is far below N.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedconcord import rng
from fedconcord.errors import UserError
from fedconcord.heterogeneity.once import once
from fedconcord.heterogeneity.weights import share as weight


class Drawn(NamedTuple):
    """A cohort."""

    ids: np.ndarray  # [S] int64, sorted, distinct
    times: np.ndarray  # [S] float64, how often each was drawn
    inclusion: np.ndarray  # [S] float64, E[count]


Sampler = Callable[[int, int, int, np.ndarray], Drawn]
"""(seed, round, cohort S, sizes [N]) -> cohort."""


def uniform() -> Sampler:
    """S distinct clients, all equally likely."""

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray) -> Drawn:
        chosen = rng.generator(seed, rng.Purpose.SAMPLE, round).choice(len(sizes), cohort, replace=False)
        return Drawn(np.sort(chosen).astype(np.int64), np.ones(cohort), np.full(cohort, cohort / len(sizes)))

    return draw


def by_size() -> Sampler:
    """S draws with replacement, client i with probability p_i by size; a client drawn twice counts twice.

    FedNova (IEEE TSP 2021), Theorem 3; FedProx. With weights `unbiased` the server's step is the plain mean of draws.
    """

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray) -> Drawn:
        points = rng.generator(seed, rng.Purpose.SAMPLE, round).random(cohort)
        ids, count = np.unique(cumulative(sizes).searchsorted(points, side="right"), return_counts=True)
        return Drawn(ids.astype(np.int64), count.astype(np.float64), cohort * weight("size", sizes, ids))

    return draw


@once
def cumulative(sizes: np.ndarray) -> np.ndarray:
    """Cumulative probabilities [N] by size, as numpy's `choice` makes them of p at every call."""
    steps = (sizes / sizes.sum()).cumsum()
    return np.asarray(steps / steps[-1])


def bernoulli(
    share: Annotated[float | None, Field(gt=0, le=1, description="probability of a client; S/N if none")] = None,
) -> Sampler:
    """Every client on its own coin, at least one client (A-FedPD's simulator); S is then the expected cohort."""

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray) -> Drawn:
        n, q = len(sizes), cohort / len(sizes) if share is None else share
        generator = rng.generator(seed, rng.Purpose.SAMPLE, round)
        # the number of heads, then who: the same law as N coins
        ids = np.sort(generator.choice(n, max(generator.binomial(n, q), 1), replace=False))
        # an empty draw is replaced by one client: E[count] = q + (1 - q)^n / n
        return Drawn(ids.astype(np.int64), np.ones(len(ids)), np.full(len(ids), q + (1 - q) ** n / n))

    return draw


SAMPLERS: dict[str, Callable[..., Sampler]] = {"uniform": uniform, "by_size": by_size, "bernoulli": bernoulli}


def check(cohort: int, n: int) -> None:
    """Refuse a cohort that cannot be drawn."""
    if not 1 <= cohort <= n:
        raise UserError(f"a cohort of {cohort} cannot be drawn from {n} clients; give a cohort from 1 to {n}")
