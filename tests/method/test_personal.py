"""Gradients with steps of their own: FedAvg on them ends in the closed form on heterogeneous quadratics."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_engines import run
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Local, Oracle
from fedconcord.method.contract.nested import Look, Moreau
from fedconcord.method.contract.pieces import Piece
from fedconcord.method.step.solver import Solver

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
