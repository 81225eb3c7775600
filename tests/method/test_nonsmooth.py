"""Problems with a non-smooth term, and which methods reach their minimiser."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import PROBLEMS, Matrix, Regularised, quadratics
from fedconcord.federation.objectives.regularisers import box, l1, nuclear
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.fedvra import Sums
from fedconcord.method.contract import Algorithm, Population, Problem
from fedconcord.method.wrappers.forms import COHORT
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run

CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "low_rank": {"dim": 5, "rank": 2, "samples": 12},
    "lasso_diabetes": {},
    "ridge_diabetes": {},
    "sparse_digits": {},
}


def build(name: str, clients: int = 6, **options: Any) -> Any:
    return PROBLEMS[name](0, clients, torch.float64, CPU, **OPTIONS[name] | options)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_derivatives(name: str) -> None:
    problem: Problem = build(name)
    objective = problem.objective
    assert objective.hessian is not None
    draw = torch.Generator().manual_seed(0)
    x = 0.3 * torch.randn(objective.dim, dtype=torch.float64, generator=draw)
    samples = torch.tensor([3, 0, 20, 41])
    at = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(objective.loss(at, samples), at)
    assert torch.allclose(objective.gradient(x, samples), wanted, rtol=1e-10, atol=1e-12)
    xs, index = torch.stack([x, 2 * x, -x]), torch.stack([samples, samples + 5, samples + 7])
    plain = objective.gradients(xs, index, None)
    for k in range(3):
        assert torch.allclose(plain[k], objective.gradient(xs[k], index[k]), rtol=1e-10, atol=1e-12)
    weight = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64).expand(3, 4)
    padded = objective.gradients(xs, index, weight)
    for k in range(3):
        assert torch.allclose(padded[k], objective.gradient(xs[k], index[k, :2]), rtol=1e-10, atol=1e-12)
    if objective.dim < 100:
        square = torch.autograd.functional.hessian(lambda at: objective.loss(at, samples), x)
        assert torch.allclose(objective.hessian(x, samples), square, rtol=1e-9, atol=1e-10)
    assert all(np.isfinite(value) for value in problem.evaluator.evaluate(x).values())
    assert sum(t.numel() for t in problem.evaluator.export(x).values()) == objective.dim
    assert problem.roster.n == 6


def test_low_rank_generator() -> None:
    problem: Matrix = build("low_rank", 40, dim=16, rank=4, samples=50, noise=0.2)
    truth = problem.truth.reshape(16, 16)
    assert torch.equal(truth, torch.diag(torch.tensor([1.0] * 4 + [0.0] * 12, dtype=torch.float64)))
    assert float(problem.D.mean()) == pytest.approx(0.1, abs=0.01)
    assert float(problem.D.std()) == pytest.approx(1.0, abs=0.01)
    assert float((problem.y - problem.D @ problem.truth).std()) == pytest.approx(0.2, abs=0.02)
    found = problem.evaluate(problem.truth)
    assert (found["error"], found["rank"]) == (0.0, 4.0)
    assert found["objective"] == pytest.approx(found["loss"] + 0.1 * 4)
    assert problem.evaluate(problem.init(0))["error"] == pytest.approx(2.0)
    more: Matrix = build("low_rank", 41, dim=16, rank=4, samples=50, noise=0.2)
    assert torch.equal(more.D[: len(problem.D)], problem.D)  # clients have their own draws
    assert np.isnan(problem.evaluate(torch.full_like(problem.truth, torch.nan))["rank"])  # no traceback


def test_bad_data_is_one_sentence_that_names_the_client() -> None:
    D, y = torch.ones(3, 4, 2, 2), torch.ones(3, 4)
    y[1, 2] = torch.nan
    with pytest.raises(UserError, match="client 1 has entries of y that are not finite"):
        Matrix(D, y, torch.zeros(2, 2))
    with pytest.raises(UserError, match="has no rank 9"):
        build("low_rank", dim=4, rank=9)
    with pytest.raises(UserError, match="21 parameters are no square matrix"):
        Regularised(quadratics(0, 3, torch.float64, CPU, dim=21), nuclear(0.1))
    with pytest.raises(UserError, match=r"already has l1\(0.05\)"):
        Regularised(build("lasso_diabetes"), box())


def test_regularised_metrics() -> None:
    smooth = quadratics(0, 3, torch.float64, CPU, dim=4)
    problem = Regularised(smooth, l1(0.5))
    x = torch.tensor([0.0, 2.0, -1.0, 0.0], dtype=torch.float64)
    found = problem.evaluate(x)
    assert found["objective"] == pytest.approx(smooth.evaluate(x)["loss"] + 1.5)
    assert found["nonzero"] == 0.5
    assert "distance" not in found  # to the minimiser of another objective


# -- limits ----------------------------------------------------------------------------------------------------------


def lasso_job(algorithm: Algorithm, cohort: int = 5, lr: float = 0.02, lam: float = 0.05) -> tuple[Job, torch.Tensor]:
    """LASSO over 13 clients of 34 samples each, and its minimiser from scikit-learn."""
    problem: Regularised = build("lasso_diabetes", 13, lam=lam, skew=1.0)
    assert set(problem.roster.sizes) == {34.0}
    data: Any = problem.smooth
    exact = Lasso(alpha=lam, fit_intercept=False, tol=1e-13, max_iter=100_000).fit(data.a.numpy(), data.y.numpy())
    assert 0 < (exact.coef_ != 0).sum() < problem.objective.dim
    schedule = Schedule(0, cohort, lr, fixed(4), "steps")
    return Job(problem, algorithm, schedule, engine=Stacked(None)), torch.as_tensor(exact.coef_)


def sparse_job(algorithm: Algorithm, lr: float = 0.1, lam: float = 0.1) -> tuple[Job, torch.Tensor]:
    """Heterogeneous quadratics with an l1 term, clients sampled, and the minimiser by proximal gradient."""
    smooth = quadratics(3, 20, torch.float64, CPU, dim=6, blocks=3, condition=4.0)
    smooth.sizes[:] = 1.0
    problem = Regularised(smooth, l1(lam))
    x, H, b = problem.init(0), smooth.H_mean.mean(0), smooth.b_mean.mean(0)
    for _ in range(2000):
        x = problem.regulariser.prox(x - (H @ x - b), 1.0)
    assert 0 < int((x != 0).sum()) < problem.objective.dim
    return Job(problem, algorithm, Schedule(1, 5, lr, uniform(2, 8), "steps"), engine=Stacked(None)), x


def gap(job: Job, exact: torch.Tensor, rounds: int) -> float:
    return float((run(job, rounds).server.x - exact).norm() / exact.norm())


@pytest.mark.slow
def test_reaches_the_lasso_solution() -> None:
    assert gap(*lasso_job(METHODS["scaffold"]()), 1500) < 1e-8
    assert gap(*lasso_job(METHODS["losac"](blocks=2, block_scale="mean")), 1500) < 1e-8
    assert gap(*lasso_job(METHODS["fedavg"](), cohort=13), 1500) > 1e-3


@pytest.mark.slow
def test_losac_as_printed_solves_for_lambda_over_m() -> None:
    """block_scale 1 counts the gradient M times and the prox once: its limit is the minimiser for lambda / M."""
    printed = METHODS["losac"](blocks=2)
    job, with_lambda = lasso_job(printed, lam=0.1)
    _, with_half = lasso_job(printed, lam=0.05)
    x = run(job, 1500).server.x
    assert float((x - with_half).norm() / with_half.norm()) < 1e-8
    assert float((x - with_lambda).norm() / with_lambda.norm()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "lr"),
    [
        ({"rho": 0.3}, 0.1),
        pytest.param({"rho": 0.3 / 20, "objective": "mean"}, 2.0, marks=pytest.mark.slow),
        pytest.param({"rho": 0.3, "server_steps": 2, "server_lr": 0.1}, 0.1, marks=pytest.mark.slow),
    ],
)
def test_inexact_admm_reaches_the_sparse_minimiser(options: dict[str, Any], lr: float) -> None:
    job, exact = sparse_job(METHODS["fedadmm_inexact"](**options), lr)
    x = run(job, 1500).server.x
    assert float((x - exact).norm() / exact.norm()) < 1e-10
    assert torch.equal(x != 0, exact != 0)  # the server's prox gives zeros; a mean of clients need not


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {}),
        pytest.param("losac", {"blocks": 3, "block_scale": "mean"}, marks=pytest.mark.slow),
    ],
)
def test_local_prox_reaches_the_sparse_minimiser(name: str, options: dict[str, Any]) -> None:
    assert gap(*sparse_job(METHODS[name](**options)), 1500) < 1e-10


def test_the_two_scalings_of_inexact_admm_are_one_method() -> None:
    """f_i + rho, N psi against f_i / N + rho / N, psi: the same iterates when eta is N times larger."""
    problem: Matrix = build("low_rank", 6, dim=4, rank=1)
    for steps in (None, 3):
        paths = []
        for engine in (Serial(), Stacked(None)):
            for objective, factor in (("sum", 1), ("mean", 6)):
                algorithm = METHODS["fedadmm_inexact"](
                    rho=2.0 / factor, objective=objective, server_steps=steps, server_lr=0.02 * factor
                )
                schedule = Schedule(1, 2, 0.01 * factor, fixed(3), "steps", batch_size=4)
                paths.append(run(Job(problem, algorithm, schedule, engine=engine), 20).server.x)
        for other in paths[1:]:
            assert torch.allclose(other, paths[0], rtol=1e-11, atol=1e-13)


def test_a_server_step_that_diverges_is_refused() -> None:
    job, _ = lasso_job(METHODS["fedadmm_inexact"](rho=1.0, server_steps=20, server_lr=0.3))
    with pytest.raises(UserError, match=r"server_lr < 2 / \(N rho\) = 0.154, given 0.3"):
        start(job)


def test_fedvra_projects_at_the_server() -> None:
    """Algorithm 2's P_X: the server's model stays in the box, where FedVRA's plain step would leave it."""
    smooth = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=4)
    problem = Regularised(smooth, box(-0.1, 0.1))
    job = Job(problem, METHODS["fedvra"](gamma=0.3, a=1.0, d=4.0), Schedule(0, 3, 0.1, fixed(5), "steps"))
    state = start(job)
    touched = False
    for _ in range(30):
        state = advance(job, state)
        assert float(state.server.x.abs().max()) <= 0.1
        touched = touched or bool((state.server.x.abs() == 0.1).any())
    assert touched


def test_fedvra_leaves_a_penalty_to_the_clients() -> None:
    """P_X is a projection: a regulariser that is finite everywhere does not move the server's model."""
    method = METHODS["fedvra"](gamma=0.3, a=1.0, d=4.0)
    x = torch.tensor([0.2, -0.7, 1.5])
    server, total = method.init(x, Population(1, torch.ones(1))), Sums(0.1 * x, 0.05 * x)
    free, penalised, boxed = (
        method.update(server, total, COHORT._replace(regulariser=those)).x for those in (None, l1(0.5), box(-1.0, 1.0))
    )
    assert torch.equal(penalised, free)
    assert torch.equal(boxed, free.clamp(-1.0, 1.0))
    assert not torch.equal(boxed, free)
