"""Costs that must not grow with the number of clients N: planning, the server's state, unused rows."""

import tracemalloc

import numpy as np
import pytest

from fedconcord import rng
from fedconcord.algorithms import METHODS
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.once import once
from fedconcord.heterogeneity.sampling import bernoulli, by_size, uniform
from fedconcord.heterogeneity.schedule import Schedule

SIZES = np.random.default_rng(0).integers(1, 9, 100_000).astype(np.float64)
OFFSETS = np.concatenate([[0], SIZES.cumsum()]).astype(np.int64)


@pytest.mark.parametrize("sampler", [uniform(), by_size(), bernoulli()], ids=["uniform", "by_size", "bernoulli"])
@pytest.mark.parametrize("method", ["fedavg", "losac"])
def test_a_plan_allocates_nothing_of_size_n(sampler, method: str) -> None:
    schedule = Schedule(3, 10, 0.1, batch_size=1, sampler=sampler)
    algorithm = METHODS[method](**({"blocks": 1} if method == "losac" else {"weights": "size"}))
    schedule.plan(0, algorithm, OFFSETS, SIZES)
    tracemalloc.start()
    for round in range(1, 4):
        schedule.plan(round, algorithm, OFFSETS, SIZES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(SIZES)  # bytes: an eighth of one float a client


def test_draws_by_size_are_those_of_choice() -> None:
    p = SIZES / SIZES.sum()
    for round in range(3):
        wanted = rng.generator(7, rng.Purpose.SAMPLE, round).choice(len(SIZES), 40, p=p)
        drawn = by_size()(7, round, 40, SIZES)
        ids, times = np.unique(wanted, return_counts=True)
        assert drawn.ids.tolist() == ids.tolist()
        assert drawn.times.tolist() == times.tolist()
        assert drawn.inclusion.tolist() == (40 * p[ids]).tolist()


def test_bernoulli_has_the_law_of_coins() -> None:
    """Every client as often as every other, pairs at q^2, the count binomial; small enough for empty draws."""
    n, q, rounds = 6, 0.25, 20_000
    seen = np.zeros((rounds, n))
    for round in range(rounds):
        drawn = bernoulli(q)(1, round, 1, np.ones(n))
        seen[round, drawn.ids] = drawn.times
    coins = (np.random.default_rng(0).random((rounds, n)) < q).astype(float)
    empty = ~coins.any(1)
    coins[empty, np.random.default_rng(1).integers(n, size=empty.sum())] = True
    assert np.allclose(seen.mean(0), drawn.inclusion[0], atol=0.015)
    assert np.allclose(seen.T @ seen / rounds, coins.T @ coins / rounds, atol=0.015)
    assert np.allclose(np.bincount(seen.sum(1).astype(int), minlength=7) / rounds,
                       np.bincount(coins.sum(1).astype(int), minlength=7) / rounds, atol=0.015)  # fmt: skip


@pytest.mark.parametrize("kind", ["uniform", "size", "unbiased"])
def test_shares_are_the_objectives_bits(kind) -> None:
    ids = np.array([0, 5, 99_999])
    assert weights.share(kind, SIZES, ids).tolist() == weights.objective(kind, SIZES)[ids].tolist()


def test_once_is_by_object_not_by_address() -> None:
    calls = []
    total = once(lambda array: calls.append(1) or float(array.sum()))
    a, b = np.ones(3), np.ones(4)
    assert [total(a), total(a), total(b), total(a)] == [3.0, 3.0, 4.0, 3.0]
    assert len(calls) == 2
    for size in range(1, 50):  # addresses of dead arrays are taken again
        assert total(np.ones(size)) == size
