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
    for each, mine, theta in zip(h, b, model(rows), strict=True):
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


@pytest.mark.parametrize(
    "check", [pytest.param(call, id=name) for name, call in algorithm_checks(lambda: with_ditto(scaffold(), 0.5, 0.1))]
)
def test_ditto_passes_the_checks(check: Callable[[], None]) -> None:
    check()
