"""What is measured on the test set: by name, or a function of your own by import path.

A metric takes a model's outputs [m, C] and the targets of as many samples: [m] int64 classes, or [m, C] numbers or
labels; of tokens not outputs, which a vocabulary makes large, but what `means.of_tokens` keeps of them. To add one:
write the function and list it in `METRICS`; its docstring is what `fedconcord list metrics` prints.

Some are of a classifier's probabilities: how it ranks samples, and whether its confidence can be believed. Classes have
the softmax of the outputs, labels that may hold together the sigmoid of each. With two classes there is one question,
the second class; with more, or with labels, each is a question of its own and the figure their mean over those that
have samples of both kinds (macro, one against the rest). NaN where none has, or an output is not finite. What ranks
goes by log-odds, which order samples as probabilities do, and do not all round to 1 where outputs are large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives.losses import KINDS, Counts, valid
from fedconcord.support import factories
from fedconcord.support.errors import UserError, in_words, unknown
from fedconcord.support.imports import Open, with_options
from fedconcord.support.objects import name_of


class Metric(NamedTuple):
    """A figure of the whole test set."""

    name: str  # its column is test_<name>
    targets: tuple[Target, ...]
    value: Callable[[Tensor, Tensor], float]  # (outputs [m, C], targets), numbers in the label's own unit; NaN: none
    higher: bool  # whether more is better


# -- of predictions ------------------------------------------------------------------------------------------------


def rescaled(values: Tensor, mean: Sequence[float], scale: Sequence[float]) -> Tensor:
    """Standardised numbers [..., C] in float64, in the label's own unit."""
    by, to = (torch.tensor(part, dtype=torch.float64, device=values.device) for part in (scale, mean))
    return values * by + to


def _accuracy(outputs: Tensor, classes: Tensor) -> float:
    """Fraction of samples whose class has the largest output."""
    return float((outputs.argmax(-1) == classes).sum()) / len(classes)


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error, in the label's own unit."""
    return float((outputs - targets).double().square().mean().sqrt())


def _mae(outputs: Tensor, targets: Tensor) -> float:
    """Mean absolute error, in the label's own unit."""
    return float((outputs - targets).double().abs().mean())


def _r2(outputs: Tensor, targets: Tensor) -> float:
    """1 - squared error / variance of the test labels, averaged over outputs."""
    targets = targets.double()
    missed = (outputs - targets).square().sum(0)
    spread = (targets - targets.mean(0)).square().sum(0)
    # an output whose target never varies: nothing to explain, as scikit-learn has it
    each = torch.where(spread > 0, 1 - missed / spread.where(spread > 0, 1), (missed == 0).double())
    return float(each.mean())


def chosen(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(predicted, true) [m, C] of booleans, for classes and for labels."""
    if targets.ndim == 1:
        columns = torch.arange(outputs.shape[-1], device=outputs.device)
        return outputs.argmax(-1, keepdim=True) == columns, targets[:, None] == columns
    return outputs > 0, targets > 0.5


def _label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Fraction of the labels of all samples whose output is on the right side of 0."""
    predicted, true = chosen(outputs, targets)
    return float((predicted == true).double().mean())


def _exact(outputs: Tensor, targets: Tensor) -> float:
    """Fraction of samples for which every label is right."""
    predicted, true = chosen(outputs, targets)
    return float((predicted == true).all(-1).double().mean())


def _macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """Mean F1 score of the classes or labels; one that neither occurs nor is predicted counts 0."""
    predicted, true = chosen(outputs, targets)
    return float(f1((predicted & true).sum(0).double(), predicted.sum(0), true.sum(0)).mean())


def _micro_f1(outputs: Tensor, targets: Tensor) -> float:
    """F1 over all classes or labels together."""
    predicted, true = chosen(outputs, targets)
    return float(f1((predicted & true).sum().double(), predicted.sum(), true.sum()))


def f1(hits: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """2 hits / (predicted + true); 0 where there is neither."""
    return 2 * hits / (predicted + true).clamp(min=1)


def _token_accuracy(summary: Tensor, targets: Tensor) -> float:
    """Fraction of the tokens with a class whose class has the largest output."""
    return float(summary[..., 1].double().sum() / valid(targets).sum())


def _perplexity(summary: Tensor, targets: Tensor) -> float:
    """Exponential of the mean cross-entropy of the tokens with a class; as many as there are classes for one that
    answers with all of them alike."""
    return float((summary[..., 0].double().sum() / valid(targets).sum()).exp())


# -- of probabilities ----------------------------------------------------------------------------------------------


BINS = 15  # of confidence, of equal width; the docstring of `ece`, which people read, has the number


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve, by scikit-learn; for more than two classes or labels, the mean over each against the
    rest."""
    from sklearn.metrics import roc_auc_score  # a second to import; most jobs do not ask for it

    return _macro(roc_auc_score, outputs, targets)


def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Area under the curve of precision against recall as a sum of steps, by scikit-learn; for more than two classes or
    labels, the mean over all."""
    from sklearn.metrics import average_precision_score

    return _macro(average_precision_score, outputs, targets)


def brier(outputs: Tensor, targets: Tensor) -> float:
    """Mean squared error of the probabilities (Brier, Monthly Weather Review 1950): of the second of two classes, of
    each label, summed over more classes."""
    return float(brier_scores(outputs, targets).mean())


def brier_scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """[m]: each sample's."""
    if targets.ndim > 1:
        return (outputs.double().sigmoid() - (targets > 0.5).double()).square().mean(-1)
    truth = targets[:, None] == torch.arange(outputs.shape[-1], device=outputs.device)
    return (outputs.double().softmax(-1) - truth.double()).square()[:, _first(outputs, targets) :].sum(-1)


def crossed(outputs: Tensor, classes: Tensor, threshold: float) -> Tensor:
    """[2, 2] int64: samples by their class of two, and by the answer, which is the second from `threshold` on."""
    answers = (outputs.double().softmax(-1)[:, 1] >= threshold).long()
    return torch.bincount(2 * classes + answers, minlength=4).reshape(2, 2)


class Cell(NamedTuple):
    """Of which samples a metric at a threshold is a share."""

    of: tuple[int, int]  # (class, answer)
    of_answer: bool  # among those with that answer; else among those of the class


def rate(table: Tensor, cell: Cell) -> float:
    """The share of a cell of `crossed` [2, 2] among the samples of its class, NaN of none; or among those of its
    answer, 0 of none, as scikit-learn has it."""
    among = float(table[:, cell.of[1]].sum() if cell.of_answer else table[cell.of[0]].sum())
    return float(table[cell.of]) / among if among else 0.0 if cell.of_answer else math.nan


def at_threshold(outputs: Tensor, classes: Tensor, threshold: float, cell: Cell) -> float:
    """Sensitivity, specificity or a predictive value."""
    return rate(crossed(outputs, classes, threshold), cell)


def ece(outputs: Tensor, classes: Tensor) -> float:
    """Expected calibration error: sum over 15 bins of equal width of share of samples * |accuracy - mean confidence|,
    confidence being the largest probability (Guo, Pleiss, Sun and Weinberger, ICML 2017, eq. (3))."""
    return float(np.abs(calibration_gaps(outputs, classes)).sum() / len(outputs)) if len(outputs) else math.nan


def calibration_gaps(outputs: Tensor, classes: Tensor) -> np.ndarray:
    """[BINS]: how many samples of each bin of confidence are right, less the sum of their confidences; NaN where a
    confidence is."""
    guess = outputs.double().softmax(-1).cpu().numpy()
    if not np.isfinite(guess).all():
        return np.full(BINS, math.nan)
    sure, is_right = guess.max(1, initial=0.0), guess.argmax(1) == classes.cpu().numpy()
    place = np.clip(np.ceil(sure * BINS) - 1, 0, BINS - 1).astype(np.int64)
    gaps = np.bincount(place, weights=is_right - sure, minlength=BINS)
    return gaps.astype(np.float64)  # numpy has whole numbers where there is no sample


def _first(outputs: Tensor, targets: Tensor) -> int:
    """The first class that is a question: of two classes the second."""
    return 1 if targets.ndim == 1 and outputs.shape[1] == 2 else 0


def _truth(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """The answers [m, Q] of the questions, 0 or 1."""
    if targets.ndim > 1:
        return np.asarray((targets > 0.5).double().cpu().numpy())
    classes = np.arange(_first(outputs, targets), outputs.shape[1])
    return np.asarray((targets.cpu().numpy()[:, None] == classes), dtype=np.float64)


def questions(outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(truth [m, Q] of 0 and 1, log p / (1 - p) [m, Q]) of the questions; of classes the latter are an output's margin
    over those of all others."""
    each, truth = outputs.double(), _truth(outputs, targets)
    if targets.ndim == 1:
        others = [each[:, [j for j in range(each.shape[1]) if j != k]].logsumexp(-1) for k in range(each.shape[1])]
        each = (each - torch.stack(others, -1))[:, _first(outputs, targets) :]
    return truth, each.cpu().numpy()


def _macro(of: Callable[[np.ndarray, np.ndarray], float], outputs: Tensor, targets: Tensor) -> float:
    """The mean over the questions of a figure of (truth [m], log p / (1 - p) [m])."""
    truth, guess = questions(outputs, targets)
    both = (truth.max(0) > truth.min(0)) if len(truth) else np.zeros(truth.shape[1], bool)
    if not both.any() or not np.isfinite(guess).all():
        return math.nan
    return float(np.mean([of(truth[:, k], guess[:, k]) for k in np.flatnonzero(both)]))


Threshold = Annotated[
    float, Field(gt=0, lt=1, description="probability from which on the second of two classes is predicted")
]


CELLS: Mapping[str, Cell] = {
    "sensitivity": Cell((1, 1), of_answer=False),
    "specificity": Cell((0, 0), of_answer=False),
    "ppv": Cell((1, 1), of_answer=True),
    "npv": Cell((0, 0), of_answer=True),
}


def sensitivity(threshold: Threshold = 0.5) -> Metric:
    """Fraction of the second of two classes that is recognised at probability 0.5, or at 0.3 with sensitivity(0.3)."""
    return _of_two("sensitivity", threshold)


def specificity(threshold: Threshold = 0.5) -> Metric:
    """Fraction of the first of two classes that stays below probability 0.5, or below 0.3 with specificity(0.3)."""
    return _of_two("specificity", threshold)


def ppv(threshold: Threshold = 0.5) -> Metric:
    """Positive predictive value: fraction of the second of two classes among the samples at probability 0.5 or above,
    or at 0.3 or above with ppv(0.3); 0 where there are none."""
    return _of_two("ppv", threshold)


def npv(threshold: Threshold = 0.5) -> Metric:
    """Negative predictive value: fraction of the first of two classes among the samples below probability 0.5, or below
    0.3 with npv(0.3); 0 where there are none."""
    return _of_two("npv", threshold)


def _of_two(name: str, threshold: float) -> Metric:
    label, cell = name if threshold == 0.5 else f"{name}_at_{threshold:g}", CELLS[name]
    value = functools.partial(at_threshold, threshold=threshold, cell=cell)
    return Metric(label, ("class",), value, True)


AT: Mapping[str, Callable[..., Metric]] = factories.by_name(sensitivity, specificity, ppv, npv)
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
    "auroc": Metric("auroc", ("class", "labels"), auroc, True),
    "average_precision": Metric("average_precision", ("class", "labels"), average_precision, True),
    "token_accuracy": Metric("token_accuracy", ("tokens",), _token_accuracy, True),
    "perplexity": Metric("perplexity", ("tokens",), _perplexity, False),
    "brier": Metric("brier", ("class", "labels"), brier, False),
    "ece": Metric("ece", ("class",), ece, False),
    **{name: make() for name, make in AT.items()},
}


def meaning(name: str) -> str:
    """What a metric of `METRICS` is, in a sentence."""
    function: Callable[..., Any] = AT.get(name) or METRICS[name].value
    return " ".join((function.__doc__ or "").split())  # python -OO keeps no docstrings


DEFAULT_METRICS: Mapping[Target, tuple[str, ...]] = {
    "class": ("accuracy",),
    "number": ("rmse", "mae", "r2"),
    "labels": ("label_accuracy", "micro_f1", "macro_f1"),
    "tokens": ("token_accuracy", "perplexity"),
}


class Score(NamedTuple):
    """A figure of each sample, so that clients can be told apart."""

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]  # (outputs [n, C], targets) -> [n]
    counts: Counts | None = None  # as in `losses.Loss`


SCORES: Mapping[Target, Score] = {
    "class": Score("accuracy", lambda outputs, classes: outputs.argmax(-1) == classes),
    "number": Score("squared_error", lambda outputs, targets: (outputs - targets).square().mean(-1)),
    "labels": Score("label_accuracy", lambda outputs, labels: ((outputs > 0) == (labels > 0.5)).double().mean(-1)),
    "tokens": Score("token_accuracy", lambda summary, targets: summary[..., 1], valid),
}


# -- by name or import path ----------------------------------------------------------------------------------------


def _own_metric(function: Callable[..., Any], path: str) -> Metric:
    """A function (outputs, targets) -> number; its attribute `higher_is_better` says which way, True if it has none."""
    called = with_options(function, path, "metric", ("outputs", "targets"))

    def value(outputs: Tensor, targets: Tensor) -> float:
        try:
            return float(called(outputs, targets))
        except Exception as error:  # whatever somebody else's function raises
            shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
            raise UserError(
                f"metric {path} failed on {shapes}: {in_words(error)}; it must return one number"
            ) from error

    return Metric(name_of(path), KINDS, value, bool(getattr(function, "higher_is_better", True)))


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
