"""Costs that must not grow with the number of clients N: planning, the server's state, unused rows."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Stacked, base
from fedconcord.execution.job import Job, advance, blank, checkpoint, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.objectives.quadratic import Quadratic
from fedconcord.federation.participation.sampling import bernoulli, by_size, uniform
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import rng, roster_of, tree_bytes, tree_leaves, weights
from fedconcord.method.contract.weights import once
from table import make

SIZES = np.random.default_rng(0).integers(1, 9, 100_000).astype(np.float64)
ROSTER = roster_of(np.concatenate([[0], SIZES.cumsum()]).astype(np.int64))


@pytest.mark.parametrize("sampler", [uniform(), by_size(), bernoulli()], ids=["uniform", "by_size", "bernoulli"])
@pytest.mark.parametrize("method", ["fedavg", "losac"])
def test_a_plan_allocates_nothing_of_size_n(sampler, method: str) -> None:
    schedule = Schedule(3, 10, 0.1, batch_size=1, sampler=sampler)
    algorithm = METHODS[method](**({"blocks": 1} if method == "losac" else {"weights": "size"}))
    schedule.plan(0, algorithm, ROSTER)
    tracemalloc.start()
    for round in range(1, 4):
        schedule.plan(round, algorithm, ROSTER)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(SIZES)  # bytes: an eighth of one float a client


def test_draws_by_size_are_those_of_choice() -> None:
    p = SIZES / SIZES.sum()
    for round in range(3):
        wanted = rng.generator(7, rng.Purpose.SAMPLE, round).choice(len(SIZES), 40, p=p)
        drawn = by_size().draw(7, round, 40, SIZES, np.zeros_like)
        ids, times = np.unique(wanted, return_counts=True)
        assert drawn.ids.tolist() == ids.tolist()
        assert drawn.times.tolist() == times.tolist()
        assert drawn.expected.tolist() == (40 * p[ids]).tolist()


def test_bernoulli_has_the_law_of_coins() -> None:
    """Every client as often as every other, pairs at q^2, the count binomial; small enough for empty draws."""
    n, q, rounds = 6, 0.25, 20_000
    seen = np.zeros((rounds, n))
    for round in range(rounds):
        drawn = bernoulli(q).draw(1, round, 1, np.ones(n), np.zeros_like)
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


# -- the server's state and the rows of clients that never took part -----------------------------------------------

METHODS_WITH_ROWS = [
    ("scaffold", {}), ("fedadmm", {}), ("fedvra", {}), ("feddyn", {}), ("afedpd", {}), ("losac", {"init": "gradient"}),
]  # fmt: skip


def shared(n: int, x0: torch.Tensor | None = None) -> Quadratic:
    """N clients that are all alike, in the memory of one."""
    H = torch.eye(4, dtype=torch.float64).expand(n, 3, 4, 4)
    b = torch.arange(12, dtype=torch.float64).reshape(1, 3, 4).expand(n, 3, 4)
    return Quadratic(H, b, x0=x0)


@pytest.mark.parametrize(("name", "options"), METHODS_WITH_ROWS)
def test_the_server_keeps_o_of_d_whatever_n_is(name: str, options: dict[str, str]) -> None:
    found = []
    for n in (20, 500):
        job = Job(shared(n), make(name, **options), Schedule(1, 5, 0.1, batch_size=1), engine=Stacked(None))
        state = start(job)
        assert len(state.store) == 0  # before round 0 nobody has a row, whoever was asked
        for _ in range(2):
            state = advance(job, state)
        assert 5 <= len(state.store) <= 10
        found.append({name: (leaf.shape, leaf.dtype) for name, leaf in tree_leaves(state.server).items()})
        assert tree_bytes(state.server) <= 3 * 4 * 8  # three vectors at most
    assert found[0] == found[1]


def test_rows_after_a_prologue_are_made_when_they_are_needed() -> None:
    """LoSAC's tables at x^0 for any client at any time, also after a resume, and the server's sum of all of them."""
    x0 = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=4, blocks=6)
    problem = Quadratic(problem.H.reshape(8, 6, 4, 4), problem.b.reshape(8, 6, 4), problem.sizes, x0)
    schedule = Schedule(1, 3, 0.05, batch_size=1)
    algorithm = METHODS["losac"](blocks=4, init="gradient")  # 6 samples in 4 blocks: unequal ones
    job = Job(problem, algorithm, schedule, engine=Stacked(None))
    state = start(job)

    def wanted(client: int) -> torch.Tensor:
        members = schedule.draws.members(algorithm, client, int(problem.roster.samples[client]))
        return torch.stack(
            [problem.gradient(x0, problem.offsets[client] + torch.as_tensor(block[block >= 0])) for block in members]
        )

    tables = torch.stack([wanted(i) for i in range(8)])
    everyone = np.arange(8)
    assert torch.allclose(state.store.gather(everyone).table, tables, rtol=1e-13)
    assert torch.allclose(state.server.phi, tables.sum(1).mean(0), rtol=1e-12)
    first = job.schedule.plan(0, algorithm, problem.roster).ids
    state = advance(job, state)
    absent = np.setdiff1d(everyone, first)
    assert state.store.ids().tolist() == first.tolist()
    again = blank(job)
    again.store.restore(state.store.export())
    for store in (state.store, again.store):
        assert torch.allclose(store.gather(absent).table, tables[absent], rtol=1e-13)
        assert not torch.allclose(store.gather(first).table, tables[first], rtol=1e-3)


def test_a_prologue_asks_nobody_twice_when_a_run_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = Job(shared(50), make("losac", init="gradient"), Schedule(1, 5, 0.1, batch_size=1), engine=Stacked(None))
    checkpoint.save(job, advance(job, start(job)), tmp_path / "c")
    monkeypatch.setattr(base, "block_gradients", lambda *args: pytest.fail("asked again"))
    checkpoint.load(job, tmp_path / "c")
