"""Parameters that are not trained (`requires_grad=False`), and buffers: constants of the model, everywhere."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import BASE, Federation, same, simulated, with_, write
from torch import Tensor, nn

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, start
from fedconcord.execution.rows import tensors
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import tree_leaves
from fedconcord.method.contract.flat import Layout
from fedconcord.study.settings.objects import named
from fedconcord.study.settings.problem import forget_problem
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from fedconcord_papers.audit import Attack, audit

JOB: dict[str, Any] = {"data": "digits", "clients": 5, "cohort": 3, "rounds": 2, "lr": 0.1, "steps": 3}


def halves(seed: int = 3, freeze: bool = True) -> nn.Sequential:
    """2,410 numbers, of which the last 330 are trained."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    net[1].requires_grad_(not freeze)
    return net


def run(folder: Path, model: Any, **more: Any) -> fedconcord.Finished:
    own = {"engine.dtype": "float64", "engine.threads": 1, **more.pop("settings", {})}
    return fedconcord.run(**{"method": "fedavg", **JOB, **more}, model=model, out=folder, settings=own)


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def weights_of(folder: Path) -> dict[str, Tensor]:
    return tensors.read(folder / "model.safetensors")[0]


# -- a run ---------------------------------------------------------------------------------------------------------


def test_what_is_frozen_is_neither_trained_nor_sent(tmp_path: Path) -> None:
    net, last = halves(), {}
    for engine in ("serial", "stacked", "wire"):
        done = run(tmp_path / engine, net, engine=engine, settings={"engine.dtype": "float32"})
        row = lines_of(done.folder / "metrics.csv")[-1]
        assert (int(row["bytes_up"]), int(row["bytes_down"])) == (330 * 4 * 6, 330 * 4 * 6)
        assert torch.equal(weights_of(done.folder)["1.weight"], net[1].weight)
        last[engine] = weights_of(run(tmp_path / f"{engine}-wide", net, engine=engine).folder)
    assert json.loads((done.folder / "run.json").read_text())["dim"] == 330
    assert (
        "2410 parameters, which start as they were given, 2080 of them frozen" in (done.folder / "run.json").read_text()
    )
    for engine in ("stacked", "wire"):
        assert last[engine].keys() == net.state_dict().keys()
        assert float((last[engine]["3.weight"] - last["serial"]["3.weight"]).abs().max()) < 1e-12
        assert torch.equal(last[engine]["1.weight"], net[1].weight.double())
    assert float((last["serial"]["3.weight"] - net[3].weight.detach()).abs().max()) > 0.01


def test_baselines_leave_it_as_it_is(tmp_path: Path, quick_report: None) -> None:
    net = halves()
    compared = fedconcord.compare(
        ["fedavg"], **JOB, model=net, baselines=["local", "pooled"], seeds=[0], out=tmp_path / "c"
    )
    assert [one.status for one in compared.runs] == ["complete"] * 3
    [pooled] = tmp_path.glob("c/pooled*/seed-0")
    assert torch.equal(weights_of(pooled)["1.weight"], net[1].weight)


PIXELS = np.random.default_rng(2).integers(0, 17, (3, 1, 8, 8)).astype(np.float32)


def forward(held: Mapping[str, np.ndarray]) -> np.ndarray:
    """The probabilities [3, 10] of `PIXELS`, by hand."""
    hidden = np.maximum(PIXELS.reshape(3, 64) / 16 @ held["1.weight"].T + held["1.bias"], 0)
    z = np.exp(hidden @ held["3.weight"].T + held["3.bias"])
    found: np.ndarray = z / z.sum(1, keepdims=True)
    return found


OWN = """
import numpy as np, torch
from torch import nn

def net(shape, classes):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))
    made[1].weight.data = torch.from_numpy(np.load("backbone.npy"))
    made[1].requires_grad_(False)
    return made
"""


@pytest.mark.slow
def test_the_command_and_its_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen values of a file are the run's: a checkpoint refuses others, and what is used later has those."""
    backbone = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32) / 8
    np.save(tmp_path / "backbone.npy", backbone)
    (tmp_path / "ownnet.py").write_text(OWN)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedconcord", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    job = ["--data", "digits", "--model", "ownnet:net", "--clients", "5", "--cohort", "3", "--out", "r"]
    begun = command("run", *job, "--rounds", "2")
    assert begun.returncode == 0, begun.stderr
    held = {name: leaf.numpy().astype(np.float64) for name, leaf in weights_of(tmp_path / "r").items()}
    assert np.array_equal(held["1.weight"], backbone)
    np.save(tmp_path / "backbone.npy", backbone + 1)
    other = command("run", "--resume", "r", "--rounds", "3", "--trust")
    assert other.returncode == 2
    assert re.search(
        r"belongs to another job, whose problem\.frozen is \"2080 numbers, sha256 \w+\" where this one's is",
        other.stderr,
    )
    # the file has changed since, and the run's model has not
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    np.save("x.npy", PIXELS)
    fedconcord.predict("r", "x.npy", "p.csv", trust=True)
    monkeypatch.delitem(sys.modules, "ownnet")
    told, want = lines_of(tmp_path / "p.csv"), forward(held)
    assert [int(row["label"]) for row in told] == want.argmax(1).tolist()
    given = [max(float(row[key]) for key in row if key.startswith("p_")) for row in told]
    assert given == pytest.approx(want.max(1), abs=1e-5)


@pytest.mark.slow
def test_programs_have_the_frozen_values(tmp_path: Path) -> None:
    net = halves()
    folder = run(tmp_path / "r", net).folder
    held = weights_of(folder)
    assert torch.equal(held["1.weight"], net[1].weight.double())
    want = forward({name: leaf.numpy() for name, leaf in held.items()})
    program = torch.export.load(fedconcord.export(folder, model=net)).module()
    assert np.abs(program(torch.from_numpy(PIXELS)).detach().numpy() - want).max() < 1e-5
    pytest.importorskip("onnx"), pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(fedconcord.export(folder, "onnx", model=net)))
    assert np.abs(session.run(None, {"raw": PIXELS})[0] - want).max() < 1e-5


def test_other_flags_are_another_object(tmp_path: Path) -> None:
    (one, _), (other, _) = named("model", halves()), named("model", halves(freeze=False))
    assert one != other
    for freeze, dim in ((False, 2410), (True, 330)):
        done = run(tmp_path / str(dim), halves(freeze=freeze))
        assert json.loads((done.folder / "run.json").read_text())["dim"] == dim


def test_what_a_function_draws_and_freezes_is_the_same_with_every_seed(tmp_path: Path) -> None:
    """And so is a buffer; the rest starts from the seed."""

    def features(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
        net[1].requires_grad_(False)
        net[0].register_buffer("noise", torch.randn(2))
        return net

    found = []
    for seed in (0, 1):
        torch.manual_seed(100 + seed)  # whatever was drawn before
        forget_problem()
        found.append(weights_of(run(tmp_path / str(seed), features, seed=seed).folder))
    one, other = found
    assert set(one) == {"0.noise", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert torch.equal(one["1.weight"], other["1.weight"])
    assert torch.equal(one["0.noise"], other["0.noise"])
    assert float((one["3.weight"] - other["3.weight"]).abs().max()) > 0.01


# -- sites ---------------------------------------------------------------------------------------------------------


def test_sites_have_the_servers_frozen_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ModuleType("frozen_sites")
    own.scale = 1.0  # type: ignore[attr-defined]

    def net(shape: tuple[int, ...], classes: int) -> nn.Module:
        made = nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh(), nn.Linear(4, classes))
        made[0].requires_grad_(False).weight.data *= own.scale
        return made

    own.net = net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "frozen_sites", own)
    imports.trust("frozen_sites:net")
    rows = np.random.default_rng(0).standard_normal((30, 4))
    lines = [[f"{value:.4f}" for value in row[:3]] + ["yes" if row[0] + row[3] > 0 else "no"] for row in rows]
    head, every = ["u", "v", "w", "label"], list[list[str]]()
    for name, part in (("basel", slice(0, 12)), ("bern", slice(12, 20)), ("chur", slice(20, 30))):
        write(tmp_path / f"{name}.csv", head, lines[part])
        every += [[name, *row] for row in lines[part]]
    write(tmp_path / "all.csv", ["site", *head], every)
    job = with_(BASE, model="frozen_sites:net", method="scaffold", rounds=2)
    here = Federation(job, tmp_path, tmp_path / "like")
    assert here.serve().status == "complete"
    same(here, *simulated(job, tmp_path / "all.csv"))
    there = Federation(job, tmp_path, tmp_path / "unlike")

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        """The site in Bern has other weights."""
        answers = {}
        for name, data in messages.items():
            own.scale = 2.0 if name == "bern" else 1.0  # type: ignore[attr-defined]
            forget_problem()
            answers[name] = there.site(name).answer(data)
        own.scale = 1.0  # type: ignore[attr-defined]
        forget_problem()
        return answers

    with pytest.raises(
        UserError, match=r"site bern: the frozen part of the model is 16 numbers, sha256 .* there and 16"
    ):
        there.serve(exchange)


# -- gradients -----------------------------------------------------------------------------------------------------


class Constants(nn.Module):
    """A model whose first half is a closure over tensors that torch does not know of."""

    def __init__(self, of: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.held, self.rest = [of], rest

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.held[0](x)
        found: Tensor = self.rest(x)
        return found


class Adapted(nn.Module):
    """x W' + b + x A' B' with W and b frozen, and one table of numbers tied between its ends."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2) / 9)
        self.head = nn.Linear(6, 3, bias=False)
        self.tail = nn.Linear(6, 3, bias=False)
        self.tail.weight = self.head.weight
        self.register_buffer("shift", torch.linspace(0, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.base(x) + x @ self.a.T @ self.b.T)
        found: Tensor = self.head(z) + self.tail(z * self.shift)
        return found


def data(shape: tuple[int, ...]) -> Dataset:
    draw = np.random.default_rng(5)
    x, y = draw.standard_normal((44, *shape)).astype(np.float32), draw.integers(0, 3, 44)
    return Dataset("normal", x[:40], y[:40], x[40:], y[40:], classes=3)


def problem(build: Callable[[], nn.Module], shape: tuple[int, ...] = (6,)) -> Supervised:
    return Supervised(build, data(shape), np.split(np.arange(40), [3, 9, 20]), dtype=torch.float64)


def dense() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False), net[2].bias.requires_grad_(False)
    return net


def images() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )
    net[1].running_mean += 0.3
    net[0].requires_grad_(False), net[1].requires_grad_(False).eval()
    return net


def plain_images() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    net[0].requires_grad_(False)
    return net


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (6,)),
    "adapted": (Adapted, (6,)),
    "images": (images, (1, 4, 4)),
    "plain images": (plain_images, (1, 4, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree(kind: str) -> None:
    build, shape = KINDS[kind]
    found = problem(build, shape)
    schedule = Schedule(seed=3, cohort=3, lr=0.1, work=uniform(1, 4), unit="steps", batch_size=2)
    ends = []
    engine: Engine
    for engine in (Serial(), Stacked(2, 1), Wire()):
        job = Job(found, METHODS["scaffold"](), schedule, engine=engine)
        state = start(job)
        for _ in range(3):
            state = advance(job, state)
        ends.append(tree_leaves(state.server))
        assert found.init(3).shape == (found.dim,)
    for other in ends[1:]:
        for name, leaf in ends[0].items():
            assert float((leaf - other[name]).abs().max()) < 1e-12
    assert float((ends[0]["x"] - found.init(3)).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_outputs_are_autograds_on_the_module(kind: str) -> None:
    build, shape = KINDS[kind]
    found = problem(build, shape)
    net = found._built(0).double()
    x = torch.cat([p.detach().reshape(-1) for p in net.parameters() if p.requires_grad])
    assert torch.equal(found.init(0), x)
    rows = torch.arange(7)
    nn.functional.cross_entropy(net(found.x[rows]), found.y[rows]).backward()
    want = torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
    for got in (found.gradient(x, rows), found.gradients(x[None], rows[None], None)[0]):
        assert float((got - want).abs().max()) < 1e-12
    assert all(p.grad is None for p in net.parameters() if not p.requires_grad)
    [(_, outputs)] = found.answers(x, (found.test_x, found.test_y))
    assert float((outputs - net(found.test_x[:])).detach().abs().max()) < 1e-12
    loaded = build().double()
    loaded.load_state_dict(found.export(x))
    assert torch.equal(loaded(found.test_x[:]), net(found.test_x[:]))


def test_half_a_network_is_the_other_half_on_constants_to_the_bit() -> None:
    torch.manual_seed(1)
    first, rest = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).requires_grad_(False), nn.Linear(5, 3)
    one, other = problem(lambda: nn.Sequential(first, rest)), problem(lambda: Constants(first.double(), rest))
    rows, x = torch.arange(20), one.init(0)
    assert one.layout.constants
    assert not other.layout.constants
    assert torch.equal(one.gradient(x, rows), other.gradient(x, rows))
    assert torch.equal(one.hessian(x, rows), other.hessian(x, rows))


def test_two_blocks_and_the_audit_have_the_constants() -> None:
    parts, mask = np.split(np.arange(40), [3, 9, 20]), np.array([True, False])
    labelled = [np.resize(mask, len(part)) for part in parts]
    both = SemiSupervised(dense, data((6,)), parts, labelled, dtype=torch.float64)
    assert both.dim == problem(dense).dim == 5 * 4 + 4 * 3 + 3
    assert both.objective.frozen == problem(dense).objective.frozen
    schedule = Schedule(seed=3, cohort=2, lr=0.1, unit="steps", batch_size=2)
    job = Job(Supervised(dense, data((6,)), parts), METHODS["fedavg"](), schedule)
    found = audit(job, round=1, attack=Attack(iterations=2))
    assert np.isfinite([curve.distance[-1] for curve in found.curves]).all()
    headless = Supervised(
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3).requires_grad_(False)), data((6,)), parts
    )
    with pytest.raises(UserError, match="last parameter is not one of 3 entries that is trained"):
        audit(replace(job, problem=headless), round=1, attack=Attack(iterations=2, labels="inferred"))


# -- what cannot be ------------------------------------------------------------------------------------------------


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.head(self.body(x))
        return found


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: nn.Linear(6, 3).requires_grad_(False),
            r"every parameter of the model is frozen \(requires_grad=False\)",
        ),
        (Cut, "the model's outputs depend on none of the parameters that are trained"),
        (
            lambda: nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), nn.Linear(6, 3)),
            r"layer '0' is InstanceNorm1d.*GroupNorm\(2, 6\) in its place, or freeze it with requires_grad_\(Fal",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 3)),
            "layer '0' is BatchNorm1d in evaluation",
        ),
    ],
)
def test_what_leaves_nothing_to_train_or_changes_by_itself_is_refused(build: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        problem(build)


def test_the_digest_is_of_names_types_and_values() -> None:
    def digest(seed: int = 0, dtype: torch.dtype = torch.float32) -> str | None:
        return Layout(halves(seed).to(dtype)).digest

    assert digest() == digest()
    assert str(digest()).startswith("2080 numbers, sha256 ")
    assert len({digest(), digest(1), digest(0, torch.float64)}) == 3
    assert Layout(halves(freeze=False)).digest is None
