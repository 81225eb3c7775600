"""Losses and metrics: closed forms against autograd and scikit-learn, every kind of target, functions of one's own."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import nn

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, evaluate, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.losses import DEFAULT_LOSS, LOSSES, check_loss, losses
from fedconcord.federation.objectives.metrics import DEFAULT_METRICS, METRICS, metric, metrics_of
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.support import factories, imports
from fedconcord.support.errors import UserError

GEN = np.random.default_rng(0)
PARTS = [np.arange(0, 9), np.arange(9, 12), np.arange(12, 30)]


def targets_of(kind: str, shape: tuple[int, ...], outputs: int) -> torch.Tensor:
    if kind == "class":
        return torch.tensor(GEN.integers(0, outputs, shape))
    values = torch.tensor(GEN.normal(size=(*shape, outputs)))
    return values if kind == "number" else (values > 0).double()


def dataset(kind: str, outputs: int = 3) -> Dataset:
    x = GEN.normal(size=(40, 4)).astype(np.float32)
    w = GEN.normal(size=(4, outputs)).astype(np.float32)
    score = x @ w
    y = {"class": score.argmax(1), "number": score, "labels": (score > 0).astype(np.float32)}[kind]
    return Dataset("made", x[:30], y[:30], x[30:], y[30:], outputs, target=kind)  # type: ignore[arg-type]


def test_every_target_has_a_loss_and_metrics_for_it() -> None:
    for kind in ("class", "number", "labels"):
        assert kind in LOSSES[DEFAULT_LOSS[kind]]().targets
        assert [m.name for m in metrics_of((), kind)] == list(DEFAULT_METRICS[kind])


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "token_cross_entropy"])  # which has none
def test_the_closed_form_is_the_gradient(name: str) -> None:
    loss, lead = LOSSES[name](), (2, 5)
    outputs = torch.tensor(GEN.normal(size=(*lead, 3)), requires_grad=True)
    targets = targets_of(loss.targets[0], lead, 3)
    each = loss.per_sample(outputs, targets)
    assert each.shape == lead
    assert loss.per_sample(outputs[0], targets[0]).equal(each[0])
    (wanted,) = torch.autograd.grad(each.sum(), outputs)
    assert loss.delta is not None
    torch.testing.assert_close(loss.delta(outputs.detach().clone(), targets), wanted)


@pytest.mark.parametrize("kind", ["class", "number", "labels"])
def test_each_target_trains_the_same_on_both_engines_with_and_without_the_kernel(kind: str) -> None:
    data = dataset(kind)

    class Plain(nn.Module):  # not a Sequential: torch.func, no kernel
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out

    ends = []
    for build, engine in [(lambda: nn.Sequential(nn.Linear(4, 3)), Stacked(3)), (Plain, Stacked(2)), (Plain, Serial())]:
        problem = Supervised(build, data, PARTS, dtype=torch.float64)  # type: ignore[arg-type]
        from fedconcord.method.algorithms import METHODS

        schedule = Schedule(seed=0, cohort=3, lr=0.3, batch_size=4)
        job = Job(problem, METHODS["fedavg"](), schedule, engine=engine)
        state = start(job)
        first = evaluate(job, state)
        for _ in range(15):
            state = advance(job, state)
        last = evaluate(job, state)
        assert list(last) == [*(f"test_{name}" for name in DEFAULT_METRICS[kind]), "test_loss", "train_loss"]  # type: ignore[index]
        assert last["train_loss"] < 0.7 * first["train_loss"]
        assert (problem.label_counts() is not None) == (kind == "class")
        ends.append(state.server.x)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-10, atol=1e-12)


def test_metrics_are_scikit_learns() -> None:
    out, classes = torch.randn(50, 4), torch.randint(0, 4, (50,))
    best = out.argmax(1)
    assert METRICS["accuracy"].value(out, classes) == pytest.approx(reference.accuracy_score(classes, best))
    assert METRICS["macro_f1"].value(out, classes) == pytest.approx(reference.f1_score(classes, best, average="macro"))
    numbers, noisy = torch.randn(50, 2), torch.randn(50, 2)
    pair = numbers.numpy(), noisy.numpy()
    assert METRICS["rmse"].value(noisy, numbers) == pytest.approx(reference.mean_squared_error(*pair) ** 0.5, rel=1e-6)
    assert METRICS["mae"].value(noisy, numbers) == pytest.approx(reference.mean_absolute_error(*pair), rel=1e-6)
    assert METRICS["r2"].value(noisy, numbers) == pytest.approx(reference.r2_score(*pair), rel=1e-6)
    assert METRICS["r2"].value(noisy[:, :1], torch.ones(50, 1)) == 0.0  # never NaN
    labels = (torch.randn(50, 3) > 0).float()
    guess = (out[:, :3] > 0).numpy()
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        wanted = reference.f1_score(labels.numpy(), guess, average=average)
        assert METRICS[name].value(out[:, :3], labels) == pytest.approx(wanted, rel=1e-6)
    assert METRICS["exact"].value(out[:, :3], labels) == pytest.approx(reference.accuracy_score(labels.numpy(), guess))
    assert METRICS["label_accuracy"].value(out[:, :3], labels) == pytest.approx((labels.numpy() == guess).mean())


def test_numbers_are_measured_in_the_labels_own_unit() -> None:
    data = dataset("number", 1)
    scaled = data._replace(train_y=(data.train_y - 3) / 10, test_y=(data.test_y - 3) / 10, unit=([3.0], [10.0]))
    one, two = (Supervised(lambda: nn.Linear(4, 1), d, PARTS, dtype=torch.float64) for d in (data, scaled))
    x = one.init(0)
    y = x.clone()
    y /= 10
    y[-1] -= 0.3  # the bias, last in the vector
    assert two.evaluate(y)["test_rmse"] == pytest.approx(one.evaluate(x)["test_rmse"], rel=1e-6)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_losses.py").write_text(
        "import torch\n"
        "def cubed(outputs, targets, power=3):\n    return (outputs - targets).abs().pow(power).mean(-1)\n"
        "def worst(outputs, targets):\n    return (outputs - targets).abs().max()\n"
        "worst.higher_is_better = False\n"
        "def broken(outputs, targets):\n    return outputs\n"
        "def short(outputs):\n    return outputs\n"
        "def summed(outputs, targets):\n    return (outputs - targets).sum()\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("broken", "cubed", "number", "short", "summed", "worst", "wrost"):
        imports.trust(f"their_losses:{name}")
    imports.trust("nowhere_at_all:f")
    yield "their_losses"
    sys.modules.pop("their_losses", None)


def test_a_loss_and_a_metric_of_ones_own(own: str) -> None:
    loss = factories.build(losses(), "loss", f"{own}:cubed(power=2)")
    measured = metric(f"{own}:worst")
    assert (loss.name, measured.name, measured.higher) == ("cubed", "worst", False)
    data = dataset("number", 1)
    problem = Supervised(lambda: nn.Linear(4, 1), data, PARTS, dtype=torch.float64, loss=loss, metrics=[measured])
    twice = Supervised(lambda: nn.Linear(4, 1), data, PARTS, dtype=torch.float64)
    x, samples = problem.init(0), torch.arange(30)
    torch.testing.assert_close(problem.gradient(x, samples), 2 * twice.gradient(x, samples))
    assert problem.evaluate(x)["test_worst"] > 0


def sentences() -> list[tuple[Callable[[str], object], str]]:
    def supervised(**options: object) -> Callable[[str], object]:
        return lambda own: Supervised(lambda: nn.Linear(4, 3), dataset("number"), PARTS, **options)  # type: ignore[arg-type]

    def built(build: Callable[[], nn.Module], kind: str = "class") -> Callable[[str], object]:
        return lambda own: Supervised(build, dataset(kind), PARTS)

    return [
        (lambda own: metric("acuracy"), "unknown metric 'acuracy' (did you mean 'accuracy'?); known: accuracy"),
        (lambda own: metrics_of(["rmse", "rmse"], "number"), "metric rmse is given twice"),
        (lambda own: metrics_of(["rmse"], "class"), "metric rmse is not for a target of kind class; use acc"),
        (lambda own: check_loss(LOSSES["huber"](), "class"), "loss huber is not for a target of kind class; use cross"),
        (lambda own: factories.build(losses(), "loss", "huber(0)"), "loss huber: delta must be a number > 0, given 0"),
        (lambda own: metric(f"{own}:wrost"), "their_losses has no 'wrost' (did you mean 'worst'?)"),
        (lambda own: metric(f"{own}:number"), "metric their_losses:number is int, not a function"),
        (lambda own: metric(f"{own}:short"), "short cannot be called with (outputs, targets): too many"),
        (lambda own: metric("nowhere_at_all:f"), "cannot import the metric nowhere_at_all:f: Module"),
        (
            lambda own: supervised(metrics=[metric(f"{own}:broken")])(own).evaluate(torch.zeros(15)),
            "metric their_losses:broken failed on outputs [10, 3] and targets [10, 3]: ",
        ),
        (
            lambda own: supervised(loss=factories.build(losses(), "loss", f"{own}:summed"))(own),
            "loss summed gives shape () for 2 samples, and one number a sample is needed, (2,)",
        ),
        (
            lambda own: factories.build(losses(), "loss", f"{own}:cubed(powr=2)"),
            "loss their_losses:cubed has no parameter 'powr' (did you mean 'power'?); it has power",
        ),
        (built(lambda: nn.Linear(4, 5)), "the model answers 2 samples with (2, 5), and the data need (2, 3)"),
        (built(lambda: nn.Linear(5, 3)), "the model cannot take samples of shape (4,) (float32): RuntimeError: mat1"),
        (built(lambda: nn.LSTM(4, 3)), "the model answers 2 samples with tuple, and the data need (2, 3)"),
        (
            built(lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU())),
            "the model draws random numbers outside of nn.Dropout (in '1'), which no seed governs",
        ),
        (built(lambda: nn.ReLU()), "the model has no parameters"),
    ]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), sentences())
def test_mistakes_are_sentences(own: str, call: Callable[[str], object], said: str) -> None:
    with pytest.raises(UserError) as error:
        call(own)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("number", np.nan, "client 1 has the label nan, which is not finite; drop or fill such samples"),
        ("labels", 2.0, "client 1 has the label 2, not between 0 and 1; map labels to 0 and 1"),
    ],
)
def test_wrong_targets_are_sentences(kind: str, value: float, said: str) -> None:
    data = dataset(kind)
    data.train_y[10, 1] = value
    with pytest.raises(UserError, match=said):
        Supervised(lambda: nn.Linear(4, 3), data, PARTS)
