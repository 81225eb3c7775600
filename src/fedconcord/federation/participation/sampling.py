"""Which clients take part in a round. A sampler is a pure function of its key and says its probabilities.

A draw costs O(S) time and memory, O(S log N) by size: nothing here may run over all clients every round. (numpy's
`choice` without replacement is Floyd's algorithm where S is far below N.) `everyone` has S = N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.contract.weights import once
from fedconcord.method.contract.weights import share as weight
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.imports import Open, maker
from fedconcord.support.parameters import Count, Fraction, about


class Drawn(NamedTuple):
    """A cohort, as a `Sampler` draws it."""

    ids: np.ndarray  # [S] int64, sorted, distinct
    times: np.ndarray  # [S] float64, how often each was drawn
    expected: np.ndarray  # [S] float64, E[times]; NaN where nobody knows it
    inclusion: np.ndarray  # [S] float64, P(drawn at least once); NaN where nobody knows it
    asked: int = 0  # clients that got the model to choose by


Losses = Callable[[np.ndarray], np.ndarray]
"""ids [S] -> each one's loss [S] at the server's model."""


class Sampler(NamedTuple):
    """How a cohort is drawn, and what must be known of that before the first round.

    The draw is a pure function of what it is given: the same seed and round give the same cohort, in whatever process.
    """

    draw: Callable[[int, int, int, np.ndarray, Losses], Drawn]  # (seed, round, cohort S, sizes [N], losses) -> cohort
    from_all: bool = False  # drawn from all clients, then limited to those available; else from those available
    known: bool = True  # its probabilities are known
    by_loss: bool = False  # asks for losses
    repeats: bool = False  # may draw a client more than once
    poisson: bool = False  # every client on its own coin of probability S/N, and no other rule
    by_size: bool = False  # draws large clients more often, so that equal weights count samples
    takes_all: Literal["full cohort", "always", "never"] = "full cohort"  # when nobody is left out: with a cohort of N
    identity: Identity = UNNAMED  # which sampling with which parameters; see `contract.identity`


def _keyed(
    choose: Callable[[np.random.Generator, int, np.ndarray], Drawn],
) -> Callable[[int, int, int, np.ndarray, Losses], Drawn]:
    """A sampler's draw that asks for no losses, from one of (generator of the seed and round, cohort S, sizes [N])."""
    return lambda seed, round, cohort, sizes, losses: choose(
        rng.generator(seed, rng.Purpose.SAMPLE, round), cohort, sizes
    )


def _distinct(ids: np.ndarray, chance: float | np.ndarray, asked: int = 0) -> Drawn:
    """Distinct clients, each drawn with this probability."""
    ids = np.sort(ids).astype(np.int64)
    inclusion = np.broadcast_to(np.asarray(chance, np.float64), len(ids)).copy()
    return Drawn(ids, np.ones(len(ids)), inclusion, inclusion, asked)


def _counted(drawn: np.ndarray, cohort: int, p: Callable[[np.ndarray], np.ndarray]) -> Drawn:
    """S draws with replacement; p gives the probability of these clients [S] in one draw."""
    ids, count = np.unique(drawn, return_counts=True)
    chance = p(ids)
    return Drawn(ids.astype(np.int64), count.astype(np.float64), cohort * chance, 1 - (1 - chance) ** cohort)


@definition()
def uniform() -> Sampler:
    """S distinct clients, all equally likely."""

    def choose(draw: np.random.Generator, cohort: int, sizes: np.ndarray) -> Drawn:
        n = len(sizes)
        return _distinct(draw.choice(n, cohort, replace=False), cohort / n)

    return Sampler(_keyed(choose))


@definition()
def with_replacement() -> Sampler:
    """S draws with replacement, all clients equally likely; a client drawn twice counts twice."""

    def choose(draw: np.random.Generator, cohort: int, sizes: np.ndarray) -> Drawn:
        n = len(sizes)
        return _counted(draw.integers(n, size=cohort), cohort, lambda ids: np.full(len(ids), 1 / n))

    return Sampler(_keyed(choose), takes_all="never", repeats=True)


@definition()
def by_size() -> Sampler:
    """S draws with replacement, client i with probability p_i by size; a client drawn twice counts twice.

    FedNova (IEEE TSP 2021), Theorem 3; FedProx. With weights `unbiased` the server's step is the plain mean of draws.
    """

    def choose(draw: np.random.Generator, cohort: int, sizes: np.ndarray) -> Drawn:
        places = cumulative(sizes).searchsorted(draw.random(cohort), side="right")
        return _counted(places, cohort, lambda ids: weight("size", sizes, ids))

    return Sampler(_keyed(choose), takes_all="never", repeats=True, by_size=True)


@once
def cumulative(sizes: np.ndarray) -> np.ndarray:
    """Cumulative probabilities [N] by size, as numpy's `choice` makes them of p at every call."""
    steps = (sizes / sizes.sum()).cumsum()
    return np.asarray(steps / steps[-1])


@definition()
def bernoulli(
    share: Annotated[Fraction | None, about("probability that a client takes part; if none, S/N")] = None,
) -> Sampler:
    """Every client on its own coin, at least one client (A-FedPD's simulator); S is then the expected cohort."""

    def choose(draw: np.random.Generator, cohort: int, sizes: np.ndarray) -> Drawn:
        n, q = len(sizes), cohort / len(sizes) if share is None else share
        # the number of heads, then who: the same law as N coins
        ids = draw.choice(n, max(draw.binomial(n, q), 1), replace=False)
        # an empty draw is replaced by one client: E[count] = q + (1 - q)^n / n
        return _distinct(ids, q + (1 - q) ** n / n)

    return Sampler(_keyed(choose), from_all=True, takes_all="never")


@definition()
def poisson() -> Sampler:
    """Every client on its own coin of probability S/N, possibly nobody: what differential privacy's accountant assumes.

    S is the expected cohort.
    """

    def keyed(seed: int, round: int, cohort: int, n: int) -> np.ndarray:
        generator = rng.generator(seed, rng.Purpose.SAMPLE, round)
        # the number of heads, then who: the same law as N coins
        return generator.choice(n, generator.binomial(n, cohort / n), replace=False)

    return poisson_of(keyed)


def poisson_of(coins: Callable[[int, int, int, int], np.ndarray]) -> Sampler:
    """`poisson` by coins of one's own: (seed, round, cohort S, clients N) -> ids, the same whenever asked."""

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses) -> Drawn:
        return _distinct(coins(seed, round, cohort, len(sizes)), cohort / len(sizes))

    return Sampler(draw, from_all=True, poisson=True)


@definition()
def everyone() -> Sampler:
    """Everyone who is available; the cohort is not limited."""

    everybody = _keyed(lambda draw, cohort, sizes: _distinct(np.arange(len(sizes)), 1.0))
    return Sampler(everybody, from_all=True, takes_all="always")


@definition()
def cyclic() -> Sampler:
    """S clients at a time in turn, in the order of their ids, from a keyed start; the last turn may be short."""

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses) -> Drawn:
        turns = -(-len(sizes) // cohort)
        first = int(rng.generator(seed, rng.Purpose.SAMPLE).integers(turns))
        begin = (first + round) % turns * cohort
        return _distinct(np.arange(begin, min(begin + cohort, len(sizes))), 1 / turns)

    return Sampler(draw, from_all=True)


@definition()
def power_of_choice(
    candidates: Annotated[Count, about("number of clients that are asked for their loss; at least the cohort")],
) -> Sampler:
    """Candidates drawn by size without replacement; those with the highest loss at the server's model take part.

    Cho, Wang, Joshi, AISTATS 2022, section 3.1 (pow-d). Nobody knows its probabilities. A candidate gets the model and
    answers with one number; the passes over its samples are not counted as gradient steps.
    """

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses) -> Drawn:
        generator, some = rng.generator(seed, rng.Purpose.SAMPLE, round), min(max(candidates, cohort), len(sizes))
        some_ids = np.sort(generator.choice(len(sizes), some, replace=False, p=sizes / sizes.sum()))
        highest = some_ids[np.argsort(-losses(some_ids), kind="stable")[:cohort]]
        return _distinct(highest, np.nan, len(some_ids))

    return Sampler(draw, known=False, by_loss=True, by_size=True)


SAMPLERS: dict[str, Callable[..., Sampler]] = by_name(
    uniform, with_replacement, by_size, bernoulli, poisson, everyone, cyclic, power_of_choice
)
"""Who is drawn for a round, by name."""


def samplers() -> Mapping[str, Callable[..., Sampler]]:
    """`SAMPLERS`, and factories of your own by import path, `package.module:factory`."""
    return Open(SAMPLERS, "sampling", partial(maker, what="sampling", kind=Sampler))


def drawn_by(sampler: Sampler, seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses) -> Drawn:
    """The cohort that a sampler draws.

    Raises:
        UserError: it is no cohort of these clients, as one of the user's own may be.
    """
    cohort_drawn, n = sampler.draw(seed, round, cohort, sizes, losses), len(sizes)
    ids = cohort_drawn.ids
    whole = ids.dtype == np.int64 and len({len(column) for column in cohort_drawn[:4]}) == 1
    if not whole or (len(ids) and not (ids[0] >= 0 and ids[-1] < n and (np.diff(ids) > 0).all())):
        raise UserError(
            f"the sampling drew {ids.tolist()} ({ids.dtype}) of {n} clients in round {round}; give distinct ids from 0 "
            f"to {n - 1} in order, int64, and as many times, expected and inclusion"
        )
    return cohort_drawn


@lru_cache(maxsize=64)
def most_rounds(sampling: Identity, seed: int, cohort: int, n: int, rounds: int) -> tuple[int, ...] | None:
    """[rounds + 1] how many of the first t rounds the client is in that is in most of them; None for samplings that go
    by more than the number of clients, or by coins that nobody knows beforehand."""
    sampler = next((one for one in (uniform(), cyclic()) if one.identity == sampling), None)
    if sampler is None:
        return None
    counts, most = np.zeros(n, np.int64), [0]
    for t in range(rounds):
        ids = sampler.draw(seed, t, cohort, np.broadcast_to(1.0, n), np.zeros_like).ids
        counts[ids] += 1
        most.append(max(most[-1], int(counts[ids].max())))
    return tuple(most)


def likely_rounds(sampling: Identity, cohort: int, n: int, rounds: int) -> int:
    """As the last of `most_rounds` where that is known, whatever the seed: more with a chance of 1 % at most."""
    if sampling == cyclic().identity:
        return math.ceil(rounds / math.ceil(n / cohort))
    from scipy.special import betainc  # type: ignore[import-untyped]  # which runs without privacy need not pay

    # each client is in so many rounds as so many coins fall; the chance of more than k is a beta integral
    return next(k for k in range(rounds + 1) if k == rounds or n * betainc(k + 1, rounds - k, cohort / n) <= 0.01)


def check(cohort: int, n: int) -> None:
    """Refuse a cohort that cannot be drawn."""
    if not 1 <= cohort <= n:
        raise UserError(f"a cohort of {cohort} cannot be drawn from {n} clients; give a cohort from 1 to {n}")
