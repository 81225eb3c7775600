"""Gradients in half precision: near the full ones, the same on every engine, said in results, refused where useless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedconcord
from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, checkpoint, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised, precision
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.step.solver import Solver
from fedconcord.study.statistics.load import load_runs
from fedconcord.support.errors import UserError
from table import make

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SCHEDULE = Schedule(seed=5, cohort=4, lr=0.1, work=uniform(1, 3), batch_size=4)  # short batches carry weights
NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "kernel": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
    "in turn": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
    "vmap": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
}


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever processor the tests run on: torch computes in bfloat16 on all of them."""
    monkeypatch.setattr(precision, "native_bf16", lambda: True)


def problem(network: str, numbers: precision.Precision = "bf16") -> Supervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((60, 1, 6, 6)).astype(np.float32), draw.integers(0, 3, 60)
    data = Dataset("noise", x[:50], y[:50], x[50:], y[50:], classes=3)
    return Supervised(NETWORKS[network], data, np.split(np.arange(50), [3, 7, 16, 30]), numbers=numbers)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_near_the_full_ones_and_others(network: str) -> None:
    half, full = problem(network), problem(network, "full")
    x = torch.stack([full.init(seed) for seed in range(3)])
    samples = torch.arange(18).view(3, 6)
    weight = torch.full((3, 6), 0.2) * (torch.arange(6) < 5)
    for given in (None, weight):
        g, wanted = half.gradients(x, samples, given), full.gradients(x, samples, given)
        assert g.dtype == torch.float32
        errors = (g - wanted).norm(dim=1) / wanted.norm(dim=1)
        assert errors.median() < 0.03  # two pixels may round to one number, and a pool take the other one's gradient
        assert (errors > 1e-5).all()  # else nothing was shortened
    g, wanted = half.gradient(x[0], samples[0]), full.gradient(x[0], samples[0])
    assert 1e-5 < (g - wanted).norm() / wanted.norm() < 0.03
    assert half.loss(x[0], samples[0]) == full.loss(x[0], samples[0])
    assert half.evaluate(x[0]) == full.evaluate(x[0])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_engines_agree_to_a_hundredth_of_the_way(method: str, network: str) -> None:
    """Engines round their products at other places: 1e-2 of how far the model moved, where full has 1e-5."""
    job = Job(problem(network), make(method), SCHEDULE, engine=Serial())
    first = job.problem.init(5)

    def end(engine: Serial | Stacked) -> torch.Tensor:
        state = start(replace(job, engine=engine))
        for _ in range(3):
            state = advance(replace(job, engine=engine), state)
        assert all(leaf.dtype == torch.float32 for leaf in state.store.export().values() if leaf.is_floating_point())
        return state.server.x

    reference = end(Serial())
    assert reference.dtype == torch.float32
    for engine in (Stacked(None), Stacked(2, 2)):
        assert (end(engine) - reference).norm() < 1e-2 * (reference - first).norm()


@pytest.mark.parametrize("numbers", ["full", "bf16"])
def test_a_channel_of_its_own_is_a_convolution(numbers: precision.Precision) -> None:
    """Strides, padding and uneven sides of the first layer, which is a product of its windows."""
    draw = np.random.default_rng(1)
    x, y = draw.standard_normal((8, 1, 9, 7)).astype(np.float32), draw.integers(0, 3, 8)

    def network() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(1, 0)), nn.ReLU(), nn.Flatten(), nn.Linear(120, 3)
        )

    made = Supervised(network, Dataset("", x, y, x, y, 3), [np.arange(8)], numbers=numbers)
    assert made.accumulate is not None
    at, samples = made.init(0), torch.arange(8)
    g, wanted = made.gradients(at[None], samples[None], None)[0], made.gradient(at, samples)
    assert (g - wanted).norm() < {"full": 1e-6, "bf16": 1e-2}[numbers] * wanted.norm()


def test_line_searches_are_in_full_precision() -> None:
    job = Job(problem("dense"), make("fedavg"), SCHEDULE, Solver(kind="lbfgs"))
    with pytest.raises(UserError, match="L-BFGS minimises the loss in full precision"):
        start(job)


@pytest.mark.parametrize(
    ("asked", "dtype", "device", "said"),
    [
        ("bf16", torch.float64, CPU, "shortens float32, and engine.dtype is float64"),
        ("tf32", torch.float64, CUDA, "shortens float32, and engine.dtype is float64"),
        ("tf32", torch.float32, CPU, "tf32 is computed by GPUs, and this run is on cpu"),
        ("bf16", torch.float32, CPU, "this processor only emulates bfloat16"),
        ("bf16", torch.float32, CUDA, "compute capability 8.0 or later, and this one has 7.5"),
    ],
)
def test_refused(
    asked: precision.Precision, dtype: torch.dtype, device: torch.device, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (7, 5))
    precision.check("full", dtype, device)
    with pytest.raises(UserError, match=said):
        precision.check(asked, dtype, device)


def test_a_gpu_rounds_products_where_it_is_asked_to_alone() -> None:
    """TF32 inside a gradient of precision tf32, nowhere else: torch's own default lets convolutions round."""
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    for asked, allowed in (("full", False), ("tf32", True), ("bf16", False)):
        with precision.products(asked, CUDA):
            assert [switch.allow_tf32 for switch in switches] == [allowed, allowed]
        assert [switch.allow_tf32 for switch in switches] == before


def test_a_checkpoint_of_another_precision(tmp_path: Path) -> None:
    job = Job(problem("kernel"), make("scaffold"), SCHEDULE)
    checkpoint.save(job, start(job), tmp_path / "c")
    with pytest.raises(UserError, match=r'problem\.precision is "bf16" where this one.s is "full"'):
        checkpoint.load(replace(job, problem=problem("kernel", "full")), tmp_path / "c")


def test_results_say_it(tmp_path: Path) -> None:
    """In run.json, in the name that reports give a run, and a resumed run keeps it."""
    given = {
        "data": "digits",
        "model": "cnn1",
        "clients": 2,
        "cohort": 1,
        "rounds": 1,
        "settings": {"eval.clients": False},
    }
    for numbers in ("full", "bf16"):
        fedconcord.run("fedavg", precision=numbers, out=tmp_path / "runs" / numbers, **given)
    bf16, full = load_runs([tmp_path / "runs"])
    assert [bf16.name, full.name] == ["fedavg · bf16", "fedavg"]
    assert bf16.head.config["engine"]["precision"] == "bf16"
    with pytest.raises(UserError, match=r"engine\.precision .* cannot change"):
        fedconcord.run(resume=tmp_path / "runs" / "bf16", precision="full")
    with pytest.raises(UserError, match="data quadratics computes in"):
        fedconcord.run("fedavg", data="quadratics", precision="bf16", out=tmp_path / "none")
