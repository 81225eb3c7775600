"""q-FFL and AFL: identities, and where they stop, on problems whose losses are known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_engines import NETWORKS, SCHEDULE, assert_same, run, small
from torch import Tensor, nn

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.parts import with_private
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Conditions, workers
from fedconcord.method.contract.weights import to_simplex
from fedconcord.method.step import samples
from table import make
from tiers import tiers


def problem(clients: int = 4) -> Supervised:
    """Squared errors of lines through clouds that no line fits, clients of unlike slopes."""
    draw = np.random.default_rng(1)
    x = draw.standard_normal((clients * 12, 3)).astype(np.float32)
    slopes = draw.standard_normal((clients, 3)).repeat(12, 0)
    y = ((x * slopes).sum(1) + 0.3 * draw.standard_normal(len(x))).astype(np.float32)[:, None]
    data = Dataset("lines", x, y, x[:2], y[:2], classes=1, target="number")
    return Supervised(lambda: nn.Linear(3, 1), data, np.split(np.arange(len(x)), clients), dtype=torch.float64)


def end(algorithm: Algorithm, rounds: int, lr: float = 0.1, steps: int = 1, cohort: int = 4) -> Tensor:
    schedule = Schedule(seed=0, cohort=cohort, lr=lr, work=fixed(steps), unit="steps", batch_size=None)
    return run(Job(problem(), algorithm, schedule, engine=Stacked(None)), rounds).server.x


def losses(x: Tensor) -> Tensor:
    of = problem().objective
    return torch.stack([of.loss(x, of.samples(i)) for i in range(4)])


def gradients(x: Tensor) -> Tensor:
    of = problem().objective
    return torch.stack([of.gradient(x, of.samples(i)).clone() for i in range(4)])


def test_q_of_0_is_fedavg() -> None:
    got = end(METHODS["qffl"](q=0), 7, steps=5, cohort=3)
    torch.testing.assert_close(got, end(METHODS["fedavg"](), 7, steps=5, cohort=3), rtol=1e-12, atol=1e-12)


def test_a_round_is_the_papers() -> None:
    q, lr = 2.0, 0.05
    x = problem().init(0)
    move, scale = torch.zeros_like(x), torch.zeros(()).double()
    for loss, g in zip(losses(x), gradients(x), strict=True):
        w = lr * g  # w^t - w_k after one step
        delta = w / lr
        move += loss**q * delta
        scale += q * loss ** (q - 1) * delta.square().sum() + loss**q / lr
    torch.testing.assert_close(end(METHODS["qffl"](q=q), 1, lr=lr), x - move / scale, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("q", tiers([0.5, 2.0], quick=[0.5]))
def test_qffl_stops_where_its_own_objective_is_stationary(q: float) -> None:
    """With one step a round, at the minimiser of sum F^(q+1)."""
    x = end(METHODS["qffl"](q=q), 600)
    g = (losses(x)[:, None] ** q * gradients(x)).sum(0)
    assert float(g.norm()) < 1e-6 * float((losses(x)[:, None] ** q * gradients(x)).norm())
    plain = end(METHODS["fedavg"](), 300)
    assert float(losses(x).max()) < float(losses(plain).max())
    assert float(losses(x).std()) < float(losses(plain).std())


@pytest.mark.slow
def test_afl_stops_at_the_minimax() -> None:
    """Where the weighted gradients cancel and all clients that weigh have the largest loss."""
    schedule = Schedule(seed=0, cohort=4, lr=0.1, work=fixed(1), unit="steps", batch_size=None)
    server = run(Job(problem(), METHODS["afl"](lambda_lr=0.05), schedule, engine=Stacked(None)), 800).server
    each, weights = losses(server.x), server.weights
    assert float(weights.sum()) == pytest.approx(1)
    assert float((weights[:, None] * gradients(server.x)).sum(0).norm()) < 1e-6
    assert float((each.max() - each)[weights > 1e-3].max()) < 1e-6
    assert float(each.max()) < float(losses(end(METHODS["qffl"](q=2), 300)).max()) + 1e-6


def test_the_simplex() -> None:
    """Against the conditions of optimality: v - z is constant where z > 0, and smaller elsewhere."""
    for seed in range(20):
        v = torch.as_tensor(np.random.default_rng(seed).standard_normal(7))
        z = to_simplex(v)
        assert float(z.sum()) == pytest.approx(1)
        assert float(z.min()) >= 0
        level = (v - z)[z > 0]
        assert float(level.max() - level.min()) < 1e-12
        assert bool((v[z == 0] <= level.min() + 1e-12).all())
    inside = torch.tensor([0.2, 0.5, 0.3]).double()
    torch.testing.assert_close(to_simplex(inside), inside)


# -- the losses that they ask --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_of_clients_together_are_those_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one model, in slices that cut clients, where the network has a kernel; else client after client. Private parts
    differ by client, and a term of the loss is of a client's own."""
    problem = small(name)
    objective, places = problem.objective, np.array([6, 0, 7, 3])
    x = problem.init(1)
    expected = torch.stack([objective.loss(x, objective.samples(place)) for place in places.tolist()])
    monkeypatch.setattr(samples, "SLICE", 9)
    assert (objective.each is None) == (name == "generic")
    for at in (x, x.expand(4, -1)):
        torch.testing.assert_close(samples.losses(objective, at, places), expected, rtol=1e-13, atol=1e-14)
    assert samples.losses(objective, x, places[:0]).shape == (0,)
    assert with_private(problem, "*.bias", 0).objective.each is None
    assert objective.under is not None
    assert objective.under(Conditions(masks=torch.zeros(1, 1, dtype=torch.int64))).each is None


@pytest.mark.parametrize("name", ["qffl", "afl"])
def test_their_rounds_run_on_threads_where_the_loss_has_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads may not share a module of torch's, through which any other loss goes."""
    numbers, ordered = [], workers.ordered

    def note(work: Callable[..., Any], items: Sequence[Any], number: int, share: int | None) -> Iterator[Any]:
        numbers.append(number)
        return ordered(work, items, number, share)

    monkeypatch.setattr(workers, "ordered", note)
    known, unknown = small("dense"), small("dense")
    vars(unknown)["objective"] = replace(unknown.objective, each=None)
    jobs = [Job(one, make(name), replace(SCHEDULE, cohort=8), engine=Stacked(2, 2)) for one in (known, unknown)]
    assert_same(*(run(job, 2) for job in jobs))
    assert numbers == [2, 2, 1, 1]
