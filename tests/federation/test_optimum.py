"""Reference optima against closed forms and other solvers; convex problems against autograd; refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.data.offline import digits
from fedconcord.federation.models import logreg
from fedconcord.federation.objectives import Supervised, fednova_quadratics, quadratics
from fedconcord.federation.objectives import optimum as optimum_module
from fedconcord.federation.objectives.linear import Convex, Kind, logistic_cancer, softmax_digits
from fedconcord.federation.objectives.optimum import optimum
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, gaussian
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import roster_of
from fedconcord.support.errors import UserError

CPU = torch.device("cpu")
KINDS: tuple[Kind, ...] = ("softmax", "logistic", "squared")


def small(kind: Kind, l2: float = 0.1, **options: Any) -> Convex:
    draw = np.random.default_rng(0)
    features = [draw.standard_normal((n, 3)) for n in (4, 9, 6)]
    targets = [
        draw.standard_normal(len(a)) if kind == "squared" else draw.integers(0, 3 if kind == "softmax" else 2, len(a))
        for a in features
    ]
    targets[0][:3] = range(3) if kind == "softmax" else (0, 1, 0)
    return Convex(kind, features, targets, l2=l2, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_convex_derivatives_are_those_of_its_loss(kind: Kind) -> None:
    p = small(kind)
    draw = torch.Generator().manual_seed(0)
    x, samples = torch.randn(p.dim, dtype=p.dtype, generator=draw), torch.arange(3, 12)
    g = torch.autograd.functional.jacobian(lambda at: p.loss(at, samples), x)
    H = torch.autograd.functional.hessian(lambda at: p.loss(at, samples), x)
    assert torch.allclose(p.gradient(x, samples), g, rtol=1e-13, atol=1e-14)
    assert torch.allclose(p.hessian(x, samples), H, rtol=1e-12, atol=1e-13)
    xs, index = torch.randn(2, p.dim, dtype=p.dtype, generator=draw), torch.tensor([[0, 1, 2], [5, 6, 0]])
    weight = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], dtype=p.dtype)
    found = p.gradients(xs, index, weight)
    for s in range(2):
        by_hand = sum(w * p.gradient(xs[s], i[None]) for w, i in zip(weight[s], index[s], strict=True))
        assert torch.allclose(found[s], torch.as_tensor(by_hand), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree_on_convex_clients(kind: Kind) -> None:
    schedule = Schedule(0, 2, 0.1, fixed(2), batch_size=4)
    found = []
    for engine in (Serial(), Stacked(None)):
        job = Job(small(kind), METHODS["scaffold"](), schedule, engine=engine)
        state = start(job)
        for _ in range(5):
            state = advance(job, state)
        found.append(state.server.x)
    assert torch.allclose(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_quadratics_and_least_squares_against_linear_algebra() -> None:
    q = quadratics(0, 6, torch.float64, CPU, dim=5)
    p = np.arange(1.0, 7.0) / 21
    found = optimum(q, p)
    assert float((found.x - q.optimum(p)).norm()) < 1e-12
    assert found.gradient < 1e-12
    ridge = small("squared", 0.3)
    A, y = ridge.a, ridge.y
    w = torch.as_tensor(np.repeat(1 / 3 / np.diff(ridge.offsets), np.diff(ridge.offsets)))
    exact = torch.linalg.solve(A.T @ (w[:, None] * A) + 0.3 * torch.eye(4, dtype=A.dtype), A.T @ (w * y))
    assert torch.allclose(ridge.optimum.x, exact, rtol=1e-12)


def test_logistic_and_softmax_against_scipy_and_sklearn() -> None:
    from scipy.optimize import minimize
    from sklearn.linear_model import LogisticRegression

    p = logistic_cancer(0, 5, torch.float64, CPU, l2=0.05, objective="size")
    every = torch.arange(569)

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.as_tensor(x)
        return float(p.loss(at, every)), p.gradient(at, every).numpy()

    scipy = minimize(f, np.zeros(31), jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-9})
    assert p.optimum.value == pytest.approx(scipy.fun, abs=1e-12)
    assert np.abs(p.optimum.x.numpy() - scipy.x).max() < 1e-5

    data = digits(Path(), 0)
    s = softmax_digits(0, 8, torch.float64, CPU, l2=0.01, objective="size")
    x = np.c_[data.train_x.reshape(1437, -1), np.ones(1437)]  # so that the intercept is regularised as ours
    other = LogisticRegression(C=1 / (0.01 * 1437), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(
        x, data.train_y
    )
    assert np.abs(s.optimum.x.numpy().reshape(10, 65) - other.coef_).max() < 1e-6
    assert s.optimum.gradient < 1e-12


def test_supervised_logreg_has_an_optimum_in_loss_despite_the_flat_directions() -> None:
    """Torch's own model and autograd: adding a vector to every class changes nothing, so H is singular."""
    p = small("softmax")
    from fedconcord.federation.data.dataset import Dataset

    x, y = p.a[:, :3].numpy(), p.y.numpy()
    noise = np.random.default_rng(1).integers(0, 3, 40)  # labels at random: not separable
    x = np.r_[x, np.random.default_rng(2).standard_normal((40, 3))].astype(np.float32)
    y = np.r_[y, noise]
    data = Dataset("toy", x, y, x, y, 3)
    parts = list(np.array_split(np.arange(len(y)), 4))
    found = optimum(Supervised(lambda: logreg((3,), 3), data, parts, dtype=torch.float64))
    twin = Convex("softmax", [x.astype(np.float64)[i] for i in parts], [y[i] for i in parts],
                  sizes=np.array([len(i) for i in parts], float))  # fmt: skip
    assert found.value == pytest.approx(twin.optimum.value, abs=1e-12)
    assert max(found.gradient, twin.optimum.gradient) < 1e-10


def test_conjugate_gradients_agree_with_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    p = small("softmax")
    dense = optimum(p)
    monkeypatch.setattr(optimum_module, "DENSE", 1)
    assert float((optimum(p).x - dense.x).norm()) < 1e-9


def test_evaluate_is_zero_at_the_optimum_in_both_precisions() -> None:
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        p = logistic_cancer(0, 5, dtype, CPU)
        found = p.evaluate(p.optimum.x.to(dtype))
        assert found["gap"] < 1e-12
        assert found["distance"] < close
        assert p.evaluate(p.init(0))["gap"] > 0.1


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_method_reaches_the_reference_optimum(name: str) -> None:
    """Partial participation on real data, to 1e-9 in F."""
    options: dict[str, Any] = {"alpha": 0.3} if name == "feddyn" else {}
    p = logistic_cancer(0, 6, torch.float64, CPU, l2=0.1)
    job = Job(p, METHODS[name](**options), Schedule(0, 3, 0.1, fixed(10), "steps"), engine=Stacked(None))
    state = start(job)
    for _ in range(250):
        state = advance(job, state)
    assert p.evaluate(state.server.x)["gap"] < 1e-9


def test_refusals() -> None:
    with pytest.raises(UserError, match="needs float64"):
        optimum(small("softmax", dtype=torch.float32))
    with pytest.raises(UserError, match="3 weights"):
        optimum(small("softmax"), np.array([0.5, 0.5]))
    a = np.array([[-1.0], [1.0]])
    with pytest.raises(UserError, match="no minimum"):
        optimum(Convex("logistic", [a], [np.array([0, 1])]))
    flat = fednova_quadratics(0, 3, torch.float64, CPU, dim=3)
    flat.H = flat.H * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    with pytest.raises(UserError, match="without bound"):
        optimum(flat)
    flat.H = -torch.eye(3, dtype=torch.float64).expand(3, 3, 3)
    with pytest.raises(UserError, match="not convex"):
        optimum(flat)
    with pytest.raises(UserError, match="client 1 of 2 has features"):
        Convex("logistic", [a, a * np.nan], [np.array([0, 1])] * 2)
    with pytest.raises(UserError, match="client 0 has labels from 0 to 2"):
        Convex("logistic", [a], [np.array([0, 2])])
    with pytest.raises(UserError, match="client 1 of 2 has no samples"):
        Convex("logistic", [a, a[:0]], [np.array([0, 1]), np.array([], int)])


def test_gaussian_work_and_step_size_drops() -> None:
    work = gaussian(30.0, 22.0, 1, 96)
    drawn = np.array([[work(0, t, i) for i in range(40)] for t in range(100)])
    assert (drawn.min(), drawn.max()) == (1, 96)
    assert abs(drawn.mean() - 30.6) < 1.0
    assert work(0, 3, 2) == work(0, 3, 2)
    with pytest.raises(UserError, match="low = 5 and high = 2"):
        gaussian(low=5, high=2)
    schedule = Schedule(0, 2, 0.05, lr_drops=((2, 0.2), (4, 0.2)))
    roster = roster_of(np.arange(3))
    rates = [schedule.plan(t, METHODS["fedavg"](), roster).lr for t in range(6)]
    assert rates == pytest.approx([0.05, 0.05, 0.01, 0.01, 0.002, 0.002])
