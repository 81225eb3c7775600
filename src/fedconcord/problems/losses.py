"""What a sample's loss is, and what is measured on the test set: by name, or a function of your own by import path.

A loss takes a model's outputs [..., C] and the targets of as many samples: [...] int64 classes, or [..., C] numbers or
labels. To add one: write a factory whose parameters are the user's options and list it in `LOSSES`; a metric goes in
`METRICS`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedconcord.basis import factories
from fedconcord.basis.errors import UserError, unknown
from fedconcord.basis.imports import Open, with_options
from fedconcord.basis.objects import name_of
from fedconcord.basis.parameters import Positive, about
from fedconcord.core import LossForm
from fedconcord.problems import dense, probabilities

Target = Literal["class", "number", "labels"]
KINDS: tuple[Target, ...] = ("class", "number", "labels")


class Loss(NamedTuple):
    """The loss of a sample."""

    name: str
    targets: tuple[Target, ...]  # kinds of target that it is for
    per_sample: Callable[[Tensor, Tensor], Tensor]  # (outputs [..., B, C], targets) -> [..., B]
    delta: dense.Delta | None = None  # its gradient in the outputs, in closed form; may overwrite them
    form: LossForm | None = None  # what it is to compiled steps


class Metric(NamedTuple):
    """A figure of the whole test set."""

    name: str  # its column is test_<name>
    targets: tuple[Target, ...]
    value: Callable[[Tensor, Tensor], float]  # (outputs [m, C], targets), numbers in the label's own unit; NaN: none
    higher: bool  # whether more is better


# -- losses --------------------------------------------------------------------------------------------------------


def cross_entropy() -> Loss:
    """Softmax cross-entropy, -log softmax(outputs)[class]; for classes."""

    def per_sample(outputs: Tensor, classes: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, -2), classes.flatten(), reduction="none")
        return each.view(classes.shape)

    return Loss("cross_entropy", ("class",), per_sample, dense.cross_entropy, "cross_entropy")


def squared() -> Loss:
    """Half the squared error, 1/2 mean over outputs of (output - target)^2; for numbers."""
    return Loss(
        "squared",
        ("number",),
        lambda outputs, targets: (outputs - targets).square().mean(-1) / 2,
        lambda outputs, targets: outputs.sub_(targets).div_(outputs.shape[-1]),
        "squared",
    )


def huber(
    delta: Annotated[Positive, about("error up to which the loss is quadratic")] = 1.0,
) -> Loss:
    """Huber's loss (1964): squared error up to delta, linear beyond; mean over outputs; for numbers with outliers."""
    return Loss(
        "huber",
        ("number",),
        lambda outputs, targets: F.huber_loss(outputs, targets, reduction="none", delta=delta).mean(-1),
        lambda outputs, targets: outputs.sub_(targets).clamp_(-delta, delta).div_(outputs.shape[-1]),
    )


def logistic() -> Loss:
    """Logistic loss of each label by itself, log(1 + exp(-+output)), mean over labels; for labels that may co-occur."""
    return Loss(
        "logistic",
        ("labels",),
        lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1),
        lambda outputs, targets: outputs.sigmoid_().sub_(targets).div_(outputs.shape[-1]),
        "logistic",
    )


LOSSES: dict[str, Callable[..., Loss]] = {
    "cross_entropy": cross_entropy,
    "squared": squared,
    "huber": huber,
    "logistic": logistic,
}
DEFAULT_LOSS: Mapping[Target, str] = {"class": "cross_entropy", "number": "squared", "labels": "logistic"}


# -- metrics -------------------------------------------------------------------------------------------------------


def _accuracy(outputs: Tensor, classes: Tensor) -> float:
    return float((outputs.argmax(-1) == classes).sum()) / len(classes)


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).double().square().mean().sqrt())


def _mae(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).double().abs().mean())


def _r2(outputs: Tensor, targets: Tensor) -> float:
    targets = targets.double()
    missed = (outputs - targets).square().sum(0)
    spread = (targets - targets.mean(0)).square().sum(0)
    # an output whose target never varies: nothing to explain, as scikit-learn has it
    each = torch.where(spread > 0, 1 - missed / spread.where(spread > 0, 1), (missed == 0).double())
    return float(each.mean())


def _chosen(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(predicted, true) [m, C] of booleans, for classes and for labels."""
    if targets.ndim == 1:
        columns = torch.arange(outputs.shape[-1], device=outputs.device)
        return outputs.argmax(-1, keepdim=True) == columns, targets[:, None] == columns
    return outputs > 0, targets > 0.5


def _label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    predicted, true = _chosen(outputs, targets)
    return float((predicted == true).double().mean())


def _exact(outputs: Tensor, targets: Tensor) -> float:
    predicted, true = _chosen(outputs, targets)
    return float((predicted == true).all(-1).double().mean())


def _f1(hits: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """2 hits / (predicted + true); 0 where there is neither."""
    return 2 * hits / (predicted + true).clamp(min=1)


def _micro_f1(outputs: Tensor, targets: Tensor) -> float:
    predicted, true = _chosen(outputs, targets)
    return float(_f1((predicted & true).sum().double(), predicted.sum(), true.sum()))


def _macro_f1(outputs: Tensor, targets: Tensor) -> float:
    predicted, true = _chosen(outputs, targets)
    return float(_f1((predicted & true).sum(0).double(), predicted.sum(0), true.sum(0)).mean())


Threshold = Annotated[
    float, Field(gt=0, lt=1, description="probability from which on the second of two classes is predicted")
]


def sensitivity(threshold: Threshold = 0.5) -> Metric:
    """Share of the second of two classes that is told from a threshold on: the ill that are found."""
    return _of_two("sensitivity", threshold, second=True)


def specificity(threshold: Threshold = 0.5) -> Metric:
    """Share of the first of two classes that stays below a threshold: the well that are left alone."""
    return _of_two("specificity", threshold, second=False)


def _of_two(name: str, threshold: float, second: bool) -> Metric:
    named = name if threshold == 0.5 else f"{name}_at_{threshold:g}"
    value = functools.partial(probabilities.right, threshold=threshold, second=second)
    return Metric(named, ("class",), value, True)


AT: Mapping[str, Callable[..., Metric]] = {"sensitivity": sensitivity, "specificity": specificity}
"""Metrics that take a threshold."""

METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", ("class",), _accuracy, True),
    "macro_f1": Metric("macro_f1", ("class", "labels"), _macro_f1, True),
    "micro_f1": Metric("micro_f1", ("class", "labels"), _micro_f1, True),
    "label_accuracy": Metric("label_accuracy", ("labels",), _label_accuracy, True),
    "exact": Metric("exact", ("labels",), _exact, True),
    "rmse": Metric("rmse", ("number",), _rmse, False),
    "mae": Metric("mae", ("number",), _mae, False),
    "r2": Metric("r2", ("number",), _r2, True),
    "auroc": Metric("auroc", ("class", "labels"), probabilities.auroc, True),
    "average_precision": Metric("average_precision", ("class", "labels"), probabilities.average_precision, True),
    "brier": Metric("brier", ("class", "labels"), probabilities.brier, False),
    "ece": Metric("ece", ("class",), probabilities.ece, False),
    **{name: make() for name, make in AT.items()},
}
MEANING: Mapping[str, str] = {
    "accuracy": "fraction of samples whose class has the largest output",
    "macro_f1": "mean F1 score of the classes or labels; one that neither occurs nor is predicted counts 0",
    "micro_f1": "F1 over all classes or labels together",
    "label_accuracy": "fraction of the labels of all samples whose output is on the right side of 0",
    "exact": "fraction of samples for which every label is right",
    "rmse": "root of the mean squared error, in the label's own unit",
    "mae": "mean absolute error, in the label's own unit",
    "r2": "1 - squared error / variance of the test labels, averaged over outputs",
    "auroc": ("area under the ROC curve; for more than two classes or labels, the mean over each against the rest"),
    "average_precision": (
        "area under the curve of precision against recall; for more than two classes or labels, the mean over all"
    ),
    "brier": "mean squared error of the probabilities; for more than two classes, their sum",
    "sensitivity": (
        "fraction of the second of two classes that is recognised at probability 0.5, or at 0.3 with sensitivity(0.3)"
    ),
    "specificity": (
        "fraction of the first of two classes that stays below probability 0.5, or below 0.3 with specificity(0.3)"
    ),
    "ece": "expected calibration error: |accuracy - confidence| in 15 bins of the largest probability",
}
DEFAULT_METRICS: Mapping[Target, tuple[str, ...]] = {
    "class": ("accuracy",),
    "number": ("rmse", "mae", "r2"),
    "labels": ("label_accuracy", "micro_f1", "macro_f1"),
}


class Score(NamedTuple):
    """A figure of each sample, so that clients can be told apart."""

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]  # (outputs [n, C], targets) -> [n]


SCORES: Mapping[Target, Score] = {
    "class": Score("accuracy", lambda outputs, classes: outputs.argmax(-1) == classes),
    "number": Score("squared_error", lambda outputs, targets: (outputs - targets).square().mean(-1)),
    "labels": Score("label_accuracy", lambda outputs, labels: ((outputs > 0) == (labels > 0.5)).double().mean(-1)),
}


# -- by name or import path ----------------------------------------------------------------------------------------


def _own_loss(function: Callable[..., Any], path: str) -> Callable[..., Loss]:
    """A factory of a function (outputs, targets, options) -> the loss of each sample."""
    called = with_options(function, path, "loss", ("outputs", "targets"))

    def make(*args: Any, **options: Any) -> Loss:
        each = functools.partial(called, *args, **options)
        return Loss(name_of(path), KINDS, each)

    make.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    return make


def _own_metric(function: Callable[..., Any], path: str) -> Metric:
    """A function (outputs, targets) -> number; its attribute `higher_is_better` says which way, True if it has none."""
    called = with_options(function, path, "metric", ("outputs", "targets"))

    def value(outputs: Tensor, targets: Tensor) -> float:
        try:
            return float(called(outputs, targets))
        except Exception as error:  # whatever somebody else's function raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
            raise UserError(f"metric {path} failed on {shapes}: {why}; it must return one number") from error

    return Metric(name_of(path), KINDS, value, bool(getattr(function, "higher_is_better", True)))


def losses() -> Mapping[str, Callable[..., Loss]]:
    """`LOSSES`, and losses by import path."""
    return Open(LOSSES, "loss", _own_loss)


def metric(name: str) -> Metric:
    """A metric by name or import path.

    Raises:
        UserError: there is none.
    """
    if name.partition("(")[0] in AT:
        instance: Metric = factories.build(AT, "metric", name)
        return instance
    if name not in (known := Open(METRICS, "metric", _own_metric)):
        raise unknown("metric", name, METRICS)
    return known[name]


def defined(metric: Metric, targets: Tensor, outputs: int) -> bool:
    """Whether a metric has a value on such targets, as it says of outputs that are all 0 [m, outputs]."""
    try:
        return not math.isnan(metric.value(targets.new_zeros(len(targets), outputs, dtype=torch.float64), targets))
    except UserError:  # a metric of the user's own
        return False


def metrics_of(names: Sequence[str], target: Target) -> tuple[Metric, ...]:
    """The metrics of these names; those that are usual for the target if there are none.

    Raises:
        UserError: a name is unknown, given twice, or not for this target.
    """
    metrics = tuple(metric(name) for name in names or DEFAULT_METRICS[target])
    for k, one in enumerate(metrics):
        if target not in one.targets:
            fitting = [name for name, other in METRICS.items() if target in other.targets]
            raise UserError(f"metric {one.name} is not for a target of kind {target}; use {', '.join(fitting)}")
        if one.name in [other.name for other in metrics[:k]]:
            raise UserError(f"metric {one.name} is given twice; give every metric once")
    return metrics


def check_metrics(metrics: Sequence[Metric], targets: Tensor, outputs: int) -> None:
    """Refuse a metric that has no value on the test samples, if there are any.

    Raises:
        UserError: the first of them.
    """
    for one in metrics if len(targets) else ():
        if one.name.partition("_at_")[0] in AT and outputs != 2:
            raise UserError(f"metric {one.name} is of two classes, and the data have {outputs}; use macro_f1 or auroc")
        if one in METRICS.values() and not defined(one, targets, outputs):
            raise UserError(f"metric {one.name} needs test samples of two classes or more; leave it out, or give more")


def check_loss(loss: Loss, target: Target) -> Loss:
    """The loss, if it is for this kind of target."""
    if target not in loss.targets:
        fitting = [name for name, make in LOSSES.items() if target in make().targets]
        raise UserError(f"loss {loss.name} is not for a target of kind {target}; use {' or '.join(fitting)}")
    return loss
