"""Batch normalisation: statistics are functions of the model and all clients' samples; local steps go by the batch."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, State, advance, checkpoint, refusals, start
from fedconcord.execution.rows import tensors
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.layers import Norm
from fedconcord.federation.objectives import Supervised, evaluation
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.alone import local
from fedconcord.method.contract import model_of
from fedconcord.method.step.solver import ORACLES, Solver
from fedconcord.method.wrappers.privacy import with_privacy
from fedconcord.support.errors import UserError

SIZES = (20, 130, 150)
SMALL = (7, 12, 8, 11, 15, 16)


def data(sizes: tuple[int, ...] = SMALL, shape: tuple[int, ...] = (4,)) -> Dataset:
    """Clients drift apart: each has another mean and spread."""
    draw, n = np.random.default_rng(0), sum(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes).reshape(-1, *[1] * len(shape))
    x = (draw.standard_normal((n, *shape)) * (1 + owner) + 2 * owner).astype(np.float32)
    y = draw.integers(0, 3, n)
    return Dataset("drifting", x, y, x[::3], y[::3], classes=3)


def parts(sizes: tuple[int, ...]) -> list[np.ndarray]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def three() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.BatchNorm1d(5, eps=1e-3), nn.ReLU()),
        *(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)),
    )


class Residual(nn.Module):
    """A block as ResNet has it, whose second normalisation is called `downsample.1`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.downsample = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3))
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.relu(self.bn1(self.conv1(x)) + self.downsample(x)).mean((2, 3)))
        return out


def problem(
    build: Callable[[], nn.Module] = three,
    sizes: tuple[int, ...] = SMALL,
    shape: tuple[int, ...] = (4,),
    norm: Norm = "pooled",
) -> Supervised:
    return Supervised(build, data(sizes, shape), parts(sizes), dtype=torch.float64, norm=norm)


def job(name: str = "fedavg", of: Supervised | None = None, **more: Any) -> Job:
    schedule = Schedule(3, 4, 0.1, uniform(2, 5), "steps", batch_size=4)
    return Job(of or problem(), METHODS[name](), schedule, **{"engine": Serial(), **more})


def after(job: Job, rounds: int = 3) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


def plain(of: Supervised, x: Tensor) -> nn.Module:
    """Torch's own model with the weights that are exported."""
    model = of.build().double()
    model.load_state_dict(of.export(x))
    return model.eval()


# -- the statistics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_statistics_are_the_pooled_ones(in_one_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, by hand: the mean and the unbiased variance over all clients' samples of what the layers before,
    at their own statistics, make of them; in one batch, or in as many passes as layers."""
    if not in_one_batch:
        monkeypatch.setattr(evaluation, "WHOLE", 0)
        monkeypatch.setattr(evaluation, "CACHED", 0)  # batches of 32
    of = problem(sizes=SIZES)
    assert of.forward.passes(sum(SIZES), of.replaced) == (1 if in_one_batch else 3)
    x, views = of.init(3), of.layout.views(of.init(3))
    statistics, a = of.statistics(x), of.x[:]
    for k, (linear, norm, eps, act) in enumerate(
        [("0", "1", 1e-5, torch.tanh), ("3", "4", 1e-3, torch.relu), ("6", "7", 1e-5, None)]
    ):
        a = F.linear(a, views[f"{linear}.weight"], views[f"{linear}.bias"])
        mean, var = a.mean(0), a.var(0, unbiased=True)
        torch.testing.assert_close(statistics[f"{norm}.running_mean"], mean, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(statistics[f"{norm}.running_var"], var, rtol=1e-12, atol=1e-13)
        each = torch.stack([a[part].var(0) for part in parts(SIZES)])
        if k == 0:  # the mean of clients' variances drops what lies between them
            weights = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
            assert float(((weights @ each) / var).max()) < 0.97
        a = (a - mean) / (var + eps).sqrt()
        if f"{norm}.weight" in views:
            a = a * views[f"{norm}.weight"] + views[f"{norm}.bias"]
        a = a if act is None else act(a)


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_images_too_and_layers_that_no_name_tells(in_one_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_one_batch:
        monkeypatch.setattr(evaluation, "WHOLE", 0)
    of = problem(Residual, SIZES, (2, 5, 5))
    assert of.replaced.normalises == ("bn1", "downsample.1")
    x = of.init(1)
    views, inputs = of.layout.views(x), of.x[:]
    shortcut = F.conv2d(inputs, views["downsample.0.weight"]).transpose(0, 1).flatten(1)
    got = of.statistics(x)
    torch.testing.assert_close(got["downsample.1.running_mean"], shortcut.mean(1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(got["downsample.1.running_var"], shortcut.var(1), rtol=1e-12, atol=1e-13)


def test_statistics_do_not_go_by_the_division_and_leave_out_what_is_set_apart() -> None:
    x = problem(sizes=SIZES).init(0)
    one, other = problem(sizes=SIZES), problem(sizes=(300,))
    other = Supervised(three, data(SIZES), [np.arange(300)], dtype=torch.float64)
    for name, value in one.statistics(x).items():
        torch.testing.assert_close(value, other.statistics(x)[name], rtol=1e-12, atol=1e-13)
    held = [part[:5] for part in parts(SIZES)]
    rest = [part[5:] for part in parts(SIZES)]
    apart = Supervised(three, data(SIZES), rest, dtype=torch.float64, held=held)
    inputs = data(SIZES).train_x[np.concatenate(rest)]
    views = apart.layout.views(x)
    first = F.linear(torch.from_numpy(inputs).double(), views["0.weight"], views["0.bias"])
    torch.testing.assert_close(apart.statistics(x)["1.running_var"], first.var(0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("build", [three, Residual])
def test_what_is_judged_is_what_the_exported_model_answers(build: Callable[[], nn.Module]) -> None:
    shape = (4,) if build is three else (2, 5, 5)
    of = problem(build, shape=shape)
    x = model_of(after(job(of=of)).server)
    model = plain(of, x)
    assert int(model.state_dict()[f"{of.replaced.normalises[0]}.num_batches_tracked"]) == 0
    with torch.no_grad():
        outputs = model(of.test_x[:])
    [(_, ours)] = of.answers(x, (of.test_x, of.test_y))
    torch.testing.assert_close(ours, outputs, rtol=1e-11, atol=1e-12)
    assert of.evaluate(x)["test_loss"] == pytest.approx(float(F.cross_entropy(outputs, of.test_y)), rel=1e-11)


# -- local steps -----------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_torchs_layers_in_training_and_padding_is_not_in_the_batch() -> None:
    of, samples = problem(), torch.arange(5)
    x = of.init(2)
    model = three().double()
    model.load_state_dict(of.export(x))
    model.train()
    loss = F.cross_entropy(model(of.x[samples]), of.y[samples])
    want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(of.objective.gradient(x, samples), want, rtol=1e-10, atol=1e-13)
    padded = torch.tensor([[0, 1, 2, 3, 4, 0, 0], [6, 7, 8, 9, 10, 11, 12]])
    weight = torch.tensor([[0.2] * 5 + [0.0] * 2, [1 / 7] * 7], dtype=torch.float64)
    both = of.objective.gradients(x.expand(2, -1), padded, weight)
    torch.testing.assert_close(both[0], want, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(both[1], of.objective.gradient(x, padded[1]), rtol=1e-10, atol=1e-13)
    wrong = of.objective.gradients(x.expand(2, -1), padded, None)
    assert float((wrong[0] - want).abs().max()) > 1e-3


@pytest.mark.parametrize("norm", ["pooled", "frozen"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "afedpd"])
def test_engines_agree(name: str, norm: Norm) -> None:
    of = problem(norm=norm)
    want = model_of(after(job(name, of)).server)
    for engine in (Stacked(1), Stacked(None), Stacked(3), Wire()):
        got = model_of(after(job(name, of, engine=engine)).server)
        assert float((got - want).abs().max()) < 1e-12


@pytest.mark.parametrize("oracle", ["minibatch", "sam"])
def test_engines_agree_on_images_with_dropout_beside(oracle: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(Residual(), nn.Dropout(0.2), nn.BatchNorm1d(3), nn.Linear(3, 3))

    of, solver = problem(build, shape=(2, 5, 5)), Solver(oracle=ORACLES[oracle]())
    models = [model_of(after(job(of=of, solver=solver, engine=e)).server) for e in (Serial(), Stacked(None), Wire())]
    for got in models[1:]:
        assert float((got - models[0]).abs().max()) < 1e-12


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    this = job("scaffold", engine=Stacked(2))
    state = after(this, 2)
    checkpoint.save(this, state, tmp_path / "c.safetensors")
    want = advance(this, advance(this, state))
    again = job("scaffold", engine=Stacked(2))
    got = advance(again, advance(again, checkpoint.load(again, tmp_path / "c.safetensors")))
    assert torch.equal(model_of(got.server), model_of(want.server))
    kept, fresh = (of.problem.evaluator.export(model_of(want.server)) for of in (this, again))
    assert all(torch.equal(kept[name], fresh[name]) for name in kept)


# -- frozen ----------------------------------------------------------------------------------------------------------


class Affine(nn.Module):
    """What batch normalisation is where its statistics are constants."""

    def __init__(self, of: nn.BatchNorm1d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = of.weight, of.bias, of.eps
        self.register_buffer("mean", of.running_mean)
        self.register_buffer("var", of.running_var)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (x - self.mean) / (self.var + self.eps).sqrt() * self.weight + self.bias
        return out


def pretrained(is_affine: bool) -> nn.Module:
    """One that has seen other data."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm1d)
    for _ in range(10):
        net(torch.randn(20, 4) * 3 + 1)
    if is_affine:
        net[1] = Affine(norm)
    return net


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "feddyn", "losac", "mimesvrg", "fedhybrid", "fedvra", "fednova"]
)
def test_frozen_is_an_affine_layer_under_every_method(name: str) -> None:
    schedule = Schedule(3, 6, 0.05, uniform(2, 4), "steps", batch_size=3)
    models = []
    for is_affine in (False, True):
        of = problem(lambda is_affine=is_affine: pretrained(is_affine), norm="pooled" if is_affine else "frozen")
        this = Job(of, METHODS[name](), schedule, engine=Stacked(None))
        try:
            state = after(this)
        except UserError as error:  # of the problem, and so of both
            models.append(str(error))
            continue
        models.append(model_of(state.server))
    if isinstance(models[0], str):
        assert models[0].partition("(")[0] == models[1].partition("(")[0]
        assert "normalis" not in models[0]
    else:
        assert float((models[0] - models[1]).abs().max()) < 1e-12


@pytest.mark.parametrize("oracle", ["svrg", "full", "saga"])
def test_frozen_has_every_oracle(oracle: str) -> None:
    of, solver = problem(lambda: pretrained(False), norm="frozen"), Solver(oracle=ORACLES[oracle]())
    assert not [reason for reason in refusals.reasons(job(of=of, solver=solver)) if "normalis" in reason]


def test_frozen_keeps_the_models_own_statistics() -> None:
    of = problem(lambda: pretrained(False), norm="frozen")
    x = model_of(after(job(of=of)).server)
    assert torch.equal(of.export(x)["1.running_var"], pretrained(False).double().state_dict()["1.running_var"])
    assert of.objective.frozen is not None
    assert problem().objective.frozen is None
    [(_, ours)] = of.answers(x, (of.test_x, of.test_y))
    model = pretrained(False).double()
    model.load_state_dict(of.export(x))
    torch.testing.assert_close(ours, model.eval()(of.test_x[:]).detach(), rtol=1e-12, atol=1e-13)


# -- a run by settings -----------------------------------------------------------------------------------------------

NET = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, classes)
    )
"""
JOB: dict[str, Any] = {"data": "digits", "clients": 5, "cohort": 3, "rounds": 4, "lr": 0.1, "steps": 3}


def test_a_run_its_predictions_and_its_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NET)
    own = {"engine.dtype": "float64", "engine.threads": 1}
    whole = fedconcord.run(method="fedavg", **JOB, model="nets:net", out="whole", settings=own).folder
    cut = fedconcord.run(method="fedavg", **{**JOB, "rounds": 2}, model="nets:net", out="cut", settings=own).folder
    fedconcord.run(resume=cut, rounds=4)
    first, second = (tensors.read(folder / "model.safetensors")[0] for folder in (whole, cut))
    assert set(first) == {*(f"{k}.{w}" for k in (1, 2, 5) for w in ("weight", "bias")), *STATISTICS}
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert float(first["2.running_var"].std()) > 0
    np.save("raw.npy", np.random.default_rng(0).integers(0, 17, (9, 1, 8, 8)).astype(np.float32))
    fedconcord.predict(whole, "raw.npy", "answers.csv", trust=True)
    with Path("answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    got = np.array([[float(row[f"p_{c}"]) for c in range(10)] for row in rows])
    a = np.load("raw.npy").reshape(9, 64) / 16 @ first["1.weight"].numpy().T + first["1.bias"].numpy()
    a = (a - first["2.running_mean"].numpy()) / np.sqrt(first["2.running_var"].numpy() + 1e-5)
    a = np.maximum(a * first["2.weight"].numpy() + first["2.bias"].numpy(), 0)
    z = np.exp(a @ first["5.weight"].numpy().T + first["5.bias"].numpy())
    np.testing.assert_allclose(got, z / z.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


STATISTICS = ("2.running_mean", "2.running_var", "2.num_batches_tracked")


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "solver", "said"),
    [
        ("fedavg", Solver(oracle=ORACLES["svrg"]()), "and svrg takes gradients of one and the same f_i; set"),
        ("fedavg", Solver(kind="lbfgs"), "and L-BFGS minimises one and the same f_i; use local SGD, or norm=frozen"),
        ("losac", Solver(), "the method keeps a table of gradients of one and the same f_i; use another method, or"),
        ("mimesvrg", Solver(), "the method takes full gradients of one and the same f_i; use another method"),
        ("local", Solver(), "and clients' own models have no statistics of their own under norm pooled; use norm=silo"),
    ],
)  # fmt: skip
def test_what_needs_a_mean_over_samples_is_refused(name: str, solver: Solver, said: str) -> None:
    method = local if name == "local" else METHODS[name]
    this = replace(job(solver=solver), algorithm=method())
    every = list(refusals.reasons(this))
    mine = [reason for reason in every if reason.startswith("layer '1' normalises by the batch")]
    assert any(said in reason for reason in mine), every


def test_privacy_is_refused() -> None:
    this = job()
    [reason] = refusals.reasons(replace(this, algorithm=with_privacy(this.algorithm, 1.0, 1.0, "central", 4)))
    assert reason.startswith("layer '1' normalises by the batch, and its statistics are sums of clients' activations")


def test_batches_of_one_sample_are_refused_with_a_size_that_has_none() -> None:
    sizes = (9, 12, 8)
    of = problem(sizes=sizes)
    schedule = Schedule(0, 3, 0.1, fixed(1), "steps", batch_size=4)
    [reason] = refusals.reasons(Job(of, METHODS["fedavg"](), schedule))
    assert reason == (
        "client 0 has 9 samples and batches of one sample among them, which batch normalisation cannot use; use "
        "norm=frozen or another local.batch_size, such as 3"
    )
    assert not list(refusals.reasons(Job(of, METHODS["fedavg"](), replace(schedule, batch_size=3))))
    one = problem(sizes=(9, 1, 8))
    [reason] = refusals.reasons(Job(one, METHODS["fedavg"](), schedule))
    assert reason == "client 1 has one sample, which batch normalisation cannot use; use norm=frozen"


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.norm(x)))
        return out


@pytest.mark.parametrize(
    ("build", "norm", "said"),
    [
        (Twice, "pooled", "layer 'norm' normalises at two places of the model, and its statistics are of one"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 3)),
            "pooled",
            "layer '0' is BatchNorm1d in evaluation mode, in which its statistics are constants; set norm to frozen",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)),
            "pooled",
            "layer '0' is BatchNorm1d without running statistics, so that its answers depend on what else is asked",
        ),
        (
            lambda: nn.Sequential(nn.SyncBatchNorm(4), nn.Linear(4, 3)),
            "pooled",
            "layer '0' is SyncBatchNorm, which has no form here",
        ),
        (
            lambda: nn.Linear(4, 3),
            "frozen",
            "norm frozen is of batch normalisation, and the model has none that trains",
        ),
    ],
)
def test_other_layers_are_sentences(build: Callable[[], nn.Module], norm: Norm, said: str) -> None:
    with pytest.raises(UserError) as error:
        problem(build, norm=norm)
    assert said in str(error.value)


def test_semi_supervised_clients_have_none() -> None:
    masks = [np.arange(n) % 2 == 0 for n in SMALL]
    with pytest.raises(UserError, match=r"layer '1' does otherwise in training than where the model answers"):
        SemiSupervised(three, data(), parts(SMALL), masks)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"settings": {"eval.personalise": "finetune", "validation": 0.2}}, "a model of a client's own has none"),
        ({"settings": {"norm": "frozen", "labels": "labelled(0.5)"}}, "norm frozen is of supervised models"),
        ({"settings": {"norm": "frozen"}, "data": "quadratics", "model": None}, "takes no norm, given frozen"),
    ],
)
def test_settings_that_do_not_go_with_it(
    more: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NET)
    with pytest.raises(UserError) as error:
        fedconcord.run(**{"method": "fedavg", **JOB, "model": "nets:net", "out": "r", **more})
    assert said in str(error.value)
