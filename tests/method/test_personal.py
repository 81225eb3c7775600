"""Gradients with steps of their own, and models beside: closed forms on heterogeneous quadratics."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from fedconcord.method.contract import Algorithm, Local, Oracle
from fedconcord.method.contract.nested import Look, Moreau
from fedconcord.method.contract.pieces import Piece
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.ditto import with_ditto
from fedconcord.support.errors import UserError
from fedconcord.testing import algorithm_checks

ETA, STEPS = 0.1, 3
CASES: dict[str, tuple[Callable[[Tensor], Piece], Callable[[Tensor, Tensor], Tensor]]] = {
    "look": (lambda x: Look(0.2), lambda h, one: h @ (one - 0.2 * h)),
    "moreau": (
        lambda x: Moreau(2.0, 4, 0.1, torch.zeros_like(x)),
        lambda h, one: (
            2.0
            * (one - torch.linalg.matrix_power(one - 0.1 * (h + 2.0 * one), 4))
            @ torch.linalg.solve(h + 2.0 * one, h)
        ),
    ),
}


@pytest.mark.parametrize("engine", [Serial(), Stacked(3, 2)], ids=["serial", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_fedavg_ends_in_the_closed_form(name: str, engine: Serial | Stacked) -> None:
    """w = (sum Q_i)^{-1} sum Q_i b_i with Q_i = I - (I - eta M_i)^K, M_i the linear map of the piece."""
    piece, curvature = CASES[name]
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"))
    method = replace(fedavg(), start=lambda x, row, client: Local(x, piece(x)))
    schedule = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(STEPS, STEPS), batch_size=None)
    state = run(Job(problem, method, schedule, Solver(oracle=Oracle("full")), engine), 1500)
    d = problem.dim
    h, b = problem.H.view(8, -1, d, d).mean(1), problem.b.view(8, -1, d).mean(1)
    one = torch.eye(d, dtype=h.dtype)
    q = [one - torch.linalg.matrix_power(one - ETA * curvature(each, one), STEPS) for each in h]
    pulled = [each @ torch.linalg.solve(hessian, mine) for each, hessian, mine in zip(q, h, b, strict=True)]
    expected = torch.linalg.solve(torch.stack(q).sum(0), torch.stack(pulled).sum(0))
    torch.testing.assert_close(state.server.x, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(expected, problem.optimum(torch.ones(8, dtype=h.dtype).numpy() / 8), atol=1e-3)


@pytest.mark.parametrize("engine", [Serial(), Stacked(3, 2)], ids=["serial", "stacked"])
def test_the_methods_by_name(engine: Serial | Stacked) -> None:
    """Per-FedAvg and pFedMe end where the pieces do, pFedMe's own models at the last theta of a round that moves
    nothing; Ditto is `with_ditto` around FedAvg with the round's step size."""
    problem, one = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6), torch.eye(6, dtype=torch.float64)
    h, b = problem.H_mean, problem.b_mean
    forms = {
        METHODS["perfedavg"](a=0.2): lambda each: each @ (one - 0.2 * each),
        METHODS["pfedme"](lam=2.0, steps=4, a=0.1): lambda each: (
            (2.0 * (one - torch.linalg.matrix_power(one - 0.1 * (each + 2.0 * one), 4)))
            @ torch.linalg.solve(each + 2.0 * one, each)
        ),
    }
    for method, curvature in forms.items():
        x, rows = bowls_of(replace(method, client_model=None), engine, 1500)
        q = [one - torch.linalg.matrix_power(one - ETA * curvature(each), STEPS) for each in h]
        pulled = [each @ torch.linalg.solve(hessian, mine) for each, hessian, mine in zip(q, h, b, strict=True)]
        torch.testing.assert_close(
            x, torch.linalg.solve(torch.stack(q).sum(0), torch.stack(pulled).sum(0)), rtol=1e-9, atol=1e-9
        )
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
    x, rows = bowls_of(replace(METHODS["ditto"](lam=0.7), client_model=None), engine, 20)
    there, beside = bowls_of(ditto(0.7, ETA), engine, 20)
    assert torch.equal(x, there)
    assert torch.equal(rows.v, beside.v)


def test_a_pull_that_would_leave_every_bound_is_refused() -> None:
    with pytest.raises(UserError, match="pfedme: a times lam must be below 2"):
        METHODS["pfedme"](lam=50.0)


def bowls_of(method: Algorithm, engine: Serial | Stacked, rounds: int) -> tuple[Tensor, Any]:
    """x, and all clients' rows."""
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)
    schedule = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(STEPS, STEPS), batch_size=None)
    state = run(Job(problem, method, schedule, Solver(oracle=Oracle("full")), engine), rounds)
    return state.server.x, state.store.gather(np.arange(8))


def ditto(lam: float, lr: float, method: Algorithm | None = None) -> Algorithm:
    """These clients have no samples to be judged on, which no round notices."""
    return replace(with_ditto(fedavg() if method is None else method, lam, lr), client_model=None)


def bowls(
    method: Algorithm, engine: Serial | Stacked, rounds: int, steps: int = STEPS
) -> tuple[Tensor, Tensor, Tensor]:
    """x, every client's own model [8, d], and x of the round before."""
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)
    schedule = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(steps, steps), batch_size=None)
    this = Job(problem, method, schedule, Solver(oracle=Oracle("full")), engine)
    state = run(this, rounds - 1)
    before = state.server.x
    state = advance(this, state)
    return state.server.x, state.store.gather(np.arange(8)).v, before


@pytest.mark.parametrize("engine", [Serial(), Stacked(3, 2)], ids=["serial", "stacked"])
def test_a_model_beside_ends_in_dittos_form(engine: Serial | Stacked) -> None:
    """v_i = (H_i + lam)^{-1} (H_i b_i + lam w), w where FedAvg ends, which does not notice."""
    lam, problem = 0.7, quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)
    x, v, _ = bowls(ditto(lam, 0.3), engine, 500)
    plain = run(
        Job(
            problem,
            fedavg(),
            Schedule(seed=1, cohort=8, lr=ETA, work=uniform(STEPS, STEPS), batch_size=None),
            Solver(oracle=Oracle("full")),
            Stacked(),
        ),
        500,
    )
    torch.testing.assert_close(x, plain.server.x, rtol=1e-12, atol=1e-12)
    one = torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.solve(problem.H_mean + lam * one, problem.b_mean + lam * x)
    torch.testing.assert_close(v, expected, rtol=1e-10, atol=1e-10)


def test_dittos_ends_of_lam() -> None:
    """lam = 0 is every client alone, bit for bit; lam -> inf is the server's model that the round began with."""
    _, v, _ = bowls(ditto(0.0, ETA), Stacked(), 20)
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)
    schedule = Schedule(seed=1, cohort=8, lr=ETA, work=uniform(STEPS, STEPS), batch_size=None)
    alone = replace(local(), client_model=None)  # these clients have no samples to be judged on
    state = run(Job(problem, alone, schedule, Solver(oracle=Oracle("full")), Stacked()), 20)
    torch.testing.assert_close(v, state.store.gather(np.arange(8)).x, rtol=1e-14, atol=1e-14)
    gaps = []
    for lam in (1e3, 1e6):
        _, v, began = bowls(ditto(lam, 0.5 / lam), Stacked(), 20, steps=50)
        gaps.append(float((v - began).abs().max()))
    assert gaps[1] < 2e-3 * gaps[0] < 1e-5


def test_ditto_on_a_method_that_is_exact() -> None:
    """SCAFFOLD under it ends in the optimum, and the own models where that pulls them."""
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6)
    x, v, _ = bowls(ditto(0.7, 0.3, scaffold()), Stacked(), 1500)
    best = problem.optimum(np.full(8, 1 / 8))
    torch.testing.assert_close(x, best, rtol=1e-10, atol=1e-10)
    one = torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.solve(problem.H_mean + 0.7 * one, problem.b_mean + 0.7 * best)
    torch.testing.assert_close(v, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "check", [pytest.param(call, id=name) for name, call in algorithm_checks(lambda: with_ditto(scaffold(), 0.5, 0.1))]
)
def test_ditto_passes_the_checks(check: Callable[[], None]) -> None:
    check()
