"""Gradients with steps of their own, and models beside: closed forms on heterogeneous quadratics."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_engines import run
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.alone import local
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.algorithms.scaffold import scaffold
from fedconcord.method.contract import Algorithm, Oracle
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.ditto import with_ditto
from fedconcord.support.errors import UserError
from fedconcord.testing import algorithm_checks

ETA, STEPS = 0.1, 3
BOWLS = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)


class Ends(NamedTuple):
    x: Tensor  # [d]
    rows: Any  # all clients'
    before: Tensor  # [d] x of the round before


def ends(method: Algorithm, rounds: int, engine: Serial | Stacked | None = None, steps: int = STEPS) -> Ends:
    """Where quadratic clients come to, which have no samples to judge own models on."""
    schedule = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(steps, steps), batch_size=None)
    method = replace(method, client_model=None)
    this = Job(BOWLS, method, schedule, Solver(oracle=Oracle("full")), engine or Stacked())
    state = run(this, rounds - 1)
    before, state = state.server.x, advance(this, state)
    return Ends(state.server.x, state.store.gather(np.arange(8)), before)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Serial(), Stacked(3, 2)], ids=["serial", "stacked"])
def test_the_methods_by_name(engine: Serial | Stacked) -> None:
    """Per-FedAvg and pFedMe end in (sum Q_i)^{-1} sum Q_i b_i with Q_i = I - (I - eta M_i)^K, M_i the linear map of a
    step, pFedMe's own models at the last theta of a round that moves nothing; Ditto is `with_ditto` around FedAvg with
    the round's step size."""
    one, h, b = torch.eye(6, dtype=torch.float64), BOWLS.H_mean, BOWLS.b_mean
    forms = {
        METHODS["perfedavg"](a=0.2): lambda each: each @ (one - 0.2 * each),
        METHODS["pfedme"](lam=2.0, steps=4, a=0.1): lambda each: (
            (2.0 * (one - torch.linalg.matrix_power(one - 0.1 * (each + 2.0 * one), 4)))
            @ torch.linalg.solve(each + 2.0 * one, each)
        ),
    }
    for method, curvature in forms.items():
        x, rows, _ = ends(method, 1500, engine)
        q = [one - torch.linalg.matrix_power(one - ETA * curvature(each), STEPS) for each in h]
        pulled = [each @ torch.linalg.solve(hessian, mine) for each, hessian, mine in zip(q, h, b, strict=True)]
        expected = torch.linalg.solve(torch.stack(q).sum(0), torch.stack(pulled).sum(0))
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(expected, BOWLS.optimum(np.full(8, 1 / 8)), atol=1e-3)
    model = METHODS["pfedme"]().client_model
    assert model is not None
    for each, mine, theta in zip(h, b, model(rows, x), strict=True):
        y = x  # after the steps before the last, from which theta goes off
        lean = torch.linalg.matrix_power(one - 0.1 * (each + 2.0 * one), 4)
        goal = torch.linalg.solve(each + 2.0 * one, each)
        for _ in range(STEPS):
            centre = goal @ torch.linalg.solve(each, mine) + (one - goal) @ y
            own = centre + lean @ (y - centre)
            y = y - ETA * 2.0 * (y - own)
        torch.testing.assert_close(theta, own, rtol=1e-9, atol=1e-9)
    named, wrapped = (ends(one, 20, engine) for one in (METHODS["ditto"](lam=0.7), with_ditto(fedavg(), 0.7, ETA)))
    assert torch.equal(named.x, wrapped.x)
    assert torch.equal(named.rows.v, wrapped.rows.v)


def test_a_pull_that_would_leave_every_bound_is_refused() -> None:
    with pytest.raises(UserError, match="pfedme: a times lam must be below 2"):
        METHODS["pfedme"](lam=50.0)


@pytest.mark.parametrize(
    "engine", [pytest.param(Serial(), marks=pytest.mark.slow), Stacked(3, 2)], ids=["serial", "stacked"]
)
def test_a_model_beside_ends_in_dittos_form(engine: Serial | Stacked) -> None:
    """v_i = (H_i + lam)^{-1} (H_i b_i + lam w), w where FedAvg ends, which does not notice."""
    lam = 0.7
    x, rows, _ = ends(with_ditto(fedavg(), lam, 0.3), 500, engine)
    torch.testing.assert_close(x, ends(fedavg(), 500).x, rtol=1e-12, atol=1e-12)
    one = torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.solve(BOWLS.H_mean + lam * one, BOWLS.b_mean + lam * x)
    torch.testing.assert_close(rows.v, expected, rtol=1e-10, atol=1e-10)


def test_dittos_ends_of_lam() -> None:
    """lam = 0 is every client alone, bit for bit; lam -> inf is the server's model that the round began with."""
    alone = ends(local(), 20)
    torch.testing.assert_close(ends(with_ditto(fedavg(), 0.0, ETA), 20).rows.v, alone.rows.x, rtol=1e-14, atol=1e-14)
    gaps = []
    for lam in (1e3, 1e6):
        end = ends(with_ditto(fedavg(), lam, 0.5 / lam), 20, steps=50)
        gaps.append(float((end.rows.v - end.before).abs().max()))
    assert gaps[1] < 2e-3 * gaps[0] < 1e-5


def test_ditto_on_a_method_that_is_exact() -> None:
    """SCAFFOLD under it ends in the optimum, and the own models where that pulls them."""
    x, rows, _ = ends(with_ditto(scaffold(), 0.7, 0.3), 1500)
    best = BOWLS.optimum(np.full(8, 1 / 8))
    torch.testing.assert_close(x, best, rtol=1e-10, atol=1e-10)
    one = torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.solve(BOWLS.H_mean + 0.7 * one, BOWLS.b_mean + 0.7 * best)
    torch.testing.assert_close(rows.v, expected, rtol=1e-10, atol=1e-10)


class Box(NamedTuple):
    """APFL on quadratics, written plainly: H_i (. - b_i) at every step."""

    x: Tensor  # [d]
    v: Tensor  # [8, d]
    a: Tensor  # [8]

    def after(self, t: int, alpha_lr: float, lr: float) -> "Box":
        ends, v, a = [], self.v.clone(), self.a.clone()
        for i, steps in enumerate(work_of(t)):
            w = self.x.clone()
            for k in range(steps):
                u = a[i] * v[i] + (1 - a[i]) * w
                slope = BOWLS.H_mean[i] @ u - BOWLS.b_mean[i]
                moved = v[i] - lr * a[i] * slope
                if k == 0:
                    a[i] = min(max(float(a[i] - alpha_lr * (v[i] - w) @ slope), 0.0), 1.0)
                v[i] = moved
                w = w - ETA * (BOWLS.H_mean[i] @ w - BOWLS.b_mean[i])
            ends.append(w)
        return Box(torch.stack(ends).mean(0), v, a)


UNEQUAL = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(1, 5), batch_size=None)


def work_of(t: int) -> list[int]:
    return [int(k) for k in UNEQUAL.plan(t, METHODS["apfl"](), BOWLS.roster).steps]


@pytest.mark.parametrize(
    "engine", [Serial(), pytest.param(Stacked(3, 2), marks=pytest.mark.slow)], ids=["serial", "stacked"]
)
@pytest.mark.parametrize(("alpha_lr", "lr"), [(None, None), (0.02, 0.2), (0.0, None), (5.0, None)])
def test_apfl_is_its_equations(engine: Serial | Stacked, alpha_lr: float | None, lr: float | None) -> None:
    """Unequal work, several rounds; the last rate has shares at both ends of [0, 1]."""
    method = replace(METHODS["apfl"](alpha=0.4, alpha_lr=alpha_lr, lr=lr), client_model=None)
    this = Job(BOWLS, method, UNEQUAL, Solver(oracle=Oracle("full")), engine)
    first = BOWLS.init(1)
    box = Box(first, first.expand(8, -1), torch.full((8,), 0.4, dtype=torch.float64))
    for t in range(6):
        box = box.after(t, ETA if alpha_lr is None else alpha_lr, ETA if lr is None else lr)
    state = run(this, 6)
    rows = state.store.gather(np.arange(8))
    torch.testing.assert_close(state.server.x, box.x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows.v, box.v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows.share[:, 0], box.a, rtol=1e-12, atol=1e-12)
    if alpha_lr == 5.0:
        assert {float(box.a.min()), float(box.a.max())} == {0.0, 1.0}


def test_apfl_ends_in_each_clients_own_optimum_whatever_its_share() -> None:
    """With one exact step a round; its server is FedAvg's to the bit, and with the share 0 so is every own model."""
    best = torch.linalg.solve(BOWLS.H_mean, BOWLS.b_mean)
    for alpha in (0.3, 0.9):
        method = METHODS["apfl"](alpha=alpha, alpha_lr=0.0, lr=0.3 / alpha**2)
        x, rows, _ = ends(method, 1500, steps=1)
        assert method.client_model is not None
        torch.testing.assert_close(method.client_model(rows, x), best, rtol=1e-9, atol=1e-9)
        assert float((x - best).abs().min()) > 1e-4
    none = METHODS["apfl"](alpha=0.0, alpha_lr=0.0)
    x, rows, _ = ends(none, 20)
    assert torch.equal(x, ends(fedavg(), 20).x)
    assert none.client_model is not None
    assert torch.equal(none.client_model(rows, x), x.expand(8, -1))


@pytest.mark.parametrize(
    "check", [pytest.param(call, id=name) for name, call in algorithm_checks(lambda: with_ditto(scaffold(), 0.5, 0.1))]
)
def test_ditto_passes_the_checks(check: Callable[[], None]) -> None:
    check()
