"""A model judged where the data are: each site sends sums over its own samples, the server what all of them come to.

A metric can be had so if it is a function of sums over samples. `SUMS` lists those that are, as METRICS defines them,
but the areas under curves: these are of scores in bins that all sites share, as if those of a bin were equal. Metrics
of the user's own are no such function, and a job that has one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.server import NOT_FINITE
from fedconcord.federation.layers import Measured, Sums, sums_of_next
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.evaluation import Inputs, Resident
from fedconcord.federation.objectives.losses import valid
from fedconcord.federation.objectives.metrics import (
    AT,
    CELLS,
    METRICS,
    Cell,
    Metric,
    brier_scores,
    calibration_gaps,
    chosen,
    crossed,
    f1,
    questions,
    rate,
)
from fedconcord.method.contract import tree_leaves
from fedconcord.support.errors import UserError

LARGEST = 2.0**480  # of a figure: squares of what all sites' come to are finite


class Summed(NamedTuple):
    """A metric by sums."""

    sums: Callable[[Tensor, Tensor], Tensor]  # (outputs [m, C], targets) -> [k] float64
    value: Callable[[np.ndarray, int, int], float]  # (sums [k], samples m > 0, outputs C) -> the metric
    between: tuple[float, float] = (0.0, 1.0)  # least and most of each of the sums, for every sample
    in_units: bool = True  # of numbers in the label's own unit; else scaled, where squares of large ones cannot cancel


class LayerSums(NamedTuple):
    """What a site sends of a layer that normalises by statistics of all sites' samples, those of the layers before it
    being known; sums are over what the layer gets of its training samples."""

    counts: Tensor  # [1] int64: numbers of a channel
    first: Tensor  # [C] float64: their sum
    second: Tensor  # [C] float64: of their squares


class Figures(NamedTuple):
    """What a site sends of one model; sums are over its samples."""

    counts: Tensor  # [2] int64: samples tested on, samples trained on; what they count, where it is their tokens
    losses: Tensor  # [2] float64: summed loss of either
    sums: tuple[Tensor, ...]  # of each metric of the problem [k] float64, over the samples tested on


Sent = TypeVar("Sent", Figures, LayerSums)


def _mean(each: Callable[[Tensor, Tensor], Tensor], most: float = 1.0) -> Summed:
    """The mean over samples of a figure [m] of each, which is 0 to `most`."""
    return Summed(lambda o, t: each(o, t).double().sum()[None], lambda sums, m, _: float(sums[0] / m), (0.0, most))


def _table(outputs: Tensor, targets: Tensor) -> Tensor:
    """[3 C]: hits, predicted and true of each class or label."""
    predicted, true = chosen(outputs, targets)
    return torch.cat([part.double().sum(0) for part in (predicted & true, predicted, true)])


def _micro(sums: np.ndarray, m: int, outputs: int) -> float:
    return float(f1(*torch.from_numpy(sums).reshape(3, outputs).sum(1)))


def _macro(sums: np.ndarray, m: int, outputs: int) -> float:
    return float(f1(*torch.from_numpy(sums).reshape(3, outputs)).mean())


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """[3 C]: squared error, target and squared target of each output, which are scaled: R2 is the same in any unit."""
    y = targets.double()
    return torch.cat([part.sum(0) for part in ((outputs - targets).double().square(), y, y.square())])


def _r2(sums: np.ndarray, m: int, outputs: int) -> float:
    missed, total, squares = sums.reshape(3, outputs)
    spread = squares - total**2 / m
    flat = spread <= 1e-12 * np.maximum(squares, 1e-300)  # a target that never varies
    each = np.where(flat, (missed == 0).astype(float), 1 - missed / np.where(flat, 1, spread))
    return float(each.mean())


def _at(cell: Cell, threshold: float) -> Summed:
    """Of two classes the share of a cell of the table of classes and answers."""
    return Summed(
        lambda outputs, classes: crossed(outputs, classes, threshold).double().flatten(),
        lambda sums, *_: rate(torch.from_numpy(sums).reshape(2, 2), cell),
    )


def _of_tokens(part: int, of: Callable[[float], float]) -> Summed:
    """A function of the mean over tokens with a class of a part of their samples' summaries [m, 2]."""
    return Summed(
        lambda summary, classes: torch.stack([summary[:, part].double().sum(), valid(classes).double().sum()]),
        lambda sums, *_: of(float(sums[0] / sums[1])) if sums[1] else math.inf * float(sums[0]),  # NaN of no token
        (0.0, LARGEST),
    )


BINS = 64
"""Of scores: of s / (1 + |s|) for log-odds s, in equal parts from -1 to 1."""


def _histograms(outputs: Tensor, targets: Tensor) -> Tensor:
    """[2 Q BINS]: for each question the samples in each bin of scores, first those where the answer is no; NaN where a
    score is."""
    truth, scores = questions(outputs, targets)
    if not np.isfinite(scores).all():
        return torch.full((2 * truth.shape[1] * BINS,), math.nan, dtype=torch.float64)
    place = np.clip((scores / (1 + np.abs(scores)) + 1) * (BINS / 2), 0, BINS - 1).astype(np.int64)
    cell = (np.arange(truth.shape[1]) * 2 + truth.astype(np.int64)) * BINS + place
    return torch.from_numpy(np.bincount(cell.ravel(), minlength=2 * truth.shape[1] * BINS).astype(np.float64))


def _area(of: Callable[[np.ndarray, np.ndarray], float]) -> Summed:
    """The mean over the questions with both answers of `of` (no, yes): samples by bin [BINS], highest scores first."""

    def value(sums: np.ndarray, m: int, outputs: int) -> float:
        tables = sums.reshape(-1, 2, BINS)[:, :, ::-1]
        both = [of(no, yes) for no, yes in tables if no.any() and yes.any()]
        return float(np.mean(both)) if both else math.nan

    return Summed(_histograms, value)


def _auroc(no: np.ndarray, yes: np.ndarray) -> float:
    """The share of pairs that are in the right order; those of one bin count a half, so that it is off by at most half
    their share."""
    return float(((no.sum() - no.cumsum()) + no / 2) @ yes / (no.sum() * yes.sum()))


def _average_precision(no: np.ndarray, yes: np.ndarray) -> float:
    """The mean over samples whose answer is yes of the precision at the end of their bin."""
    hits, every = yes.cumsum(), (no + yes).cumsum()
    return float((hits / np.maximum(every, 1)) @ yes / yes.sum())


SUMS: Mapping[str, Summed] = {
    "accuracy": _mean(lambda outputs, classes: outputs.argmax(-1) == classes),
    "label_accuracy": _mean(lambda outputs, labels: ((outputs > 0) == (labels > 0.5)).double().mean(-1)),
    "exact": _mean(lambda outputs, labels: ((outputs > 0) == (labels > 0.5)).all(-1)),
    "brier": _mean(brier_scores, 3.0),
    "ece": Summed(
        lambda outputs, classes: torch.from_numpy(calibration_gaps(outputs, classes)),
        lambda sums, m, _: float(np.abs(sums).sum() / m),
        (-2.0, 2.0),
    ),
    "auroc": _area(_auroc),
    "average_precision": _area(_average_precision),
    "mae": _mean(lambda outputs, targets: (outputs - targets).double().abs().mean(-1), LARGEST),
    "rmse": Summed(
        lambda outputs, targets: (outputs - targets).double().square().mean(-1).sum()[None],
        lambda sums, m, _: math.sqrt(sums[0] / m) if sums[0] >= 0 else math.nan,
        (0.0, LARGEST),
    ),
    "token_accuracy": _of_tokens(1, lambda share: share),
    "perplexity": _of_tokens(0, lambda mean: float(torch.tensor(mean, dtype=torch.float64).exp())),  # perhaps infinite
    "micro_f1": Summed(_table, _micro),
    "macro_f1": Summed(_table, _macro),
    "r2": Summed(_errors, _r2, (-LARGEST, LARGEST), in_units=False),
}


def summed(metric: Metric) -> Summed | None:
    """How sums give a metric, if they do."""
    base, _, threshold = metric.name.partition("_at_")
    if base in AT and metric.targets == METRICS[base].targets:
        return _at(CELLS[base], float(threshold or 0.5))
    return SUMS.get(metric.name) if METRICS.get(metric.name) is metric else None


def check_summed(metrics: Sequence[Metric]) -> None:
    """Refuse a metric that sums do not give.

    Raises:
        UserError: the first of them.
    """
    for one in metrics:
        if summed(one) is None:
            raise UserError(
                f"metric {one.name} is no function of sums over samples, which is all that sites send; use "
                f"{', '.join(name for name in SUMS if set(METRICS[name].targets) & set(one.targets))}"
            )


def count(problem: Supervised, targets: Tensor) -> int:
    """How much samples count together in a mean loss: each 1, or with its tokens."""
    counts = problem.loss_of.counts
    return len(targets) if counts is None else int(counts(targets).sum())


def figures(problem: Supervised, x: Tensor, test: tuple[Resident, Tensor], train: tuple[Resident, Tensor]) -> Figures:
    """What a site sends of the model x [d].

    Args:
        problem: the model, the loss and the metrics.
        test: the samples it is tested on and their targets, perhaps none.
        train: those it was trained on.
    """
    counts, losses = list[int](), list[float]()
    sums: tuple[Tensor, ...] = ()
    for k, (inputs, targets) in enumerate((test, train)):
        outputs, each = targets.new_zeros(0, _width(problem), dtype=problem.dtype), torch.zeros(0)
        if len(targets):
            [(each, outputs)] = problem.answers(x, (inputs, targets))
        counts.append(count(problem, targets))
        losses.append(float(each.double().sum()))
        if k == 0:
            units = (problem.in_units(values) / _unit(problem) for values in (outputs, targets))
            pairs = {False: (outputs, targets), True: tuple(units) if problem.unit else (outputs, targets)}
            metrics = map(_sums_of, problem.metrics)
            sums = tuple(metric.sums(*pairs[metric.in_units]).cpu() for metric in metrics)
    return Figures(torch.tensor(counts), torch.tensor(losses, dtype=torch.float64), sums)


def layer_sums(
    problem: Supervised, x: Tensor, inputs: Inputs, measured: Mapping[str, Measured]
) -> dict[str, LayerSums]:
    """What a site sends of the next layer of the model x [d], by its name; none where all have their statistics."""
    batches = problem.forward.batches(x, inputs, problem.replaced)
    each = sums_of_next(problem.replaced.of, dict(measured), batches)
    return {name: LayerSums(torch.tensor([one.count]), one.first.cpu(), one.second.cpu()) for name, one in each.items()}


def forms_of_layers(problem: Supervised) -> dict[str, LayerSums]:
    """The form of the sums of each layer that normalises by all samples, in the order of the pass; with how many
    numbers of a channel are of one sample."""
    forms, measured = dict[str, LayerSums](), dict[str, Measured]()
    while len(measured) < len(problem.replaced.normalises):
        forms |= (following := layer_sums(problem, problem.init(0), problem.x[:1], measured))
        measured |= {name: statistics_of(problem, one) for name, one in following.items()}
        if not following:
            break
    return forms


def statistics_of(problem: Supervised, total: LayerSums) -> Measured:
    """What a layer normalises by, whose sums over all samples are these."""
    sums = Sums()
    sums.count, sums.first, sums.second = int(total.counts[0]), total.first, total.second
    return sums.statistics(problem.dtype)


def of_question(
    problem: Supervised,
    frame: Frame,
    x: Tensor,
    layers: Mapping[str, LayerSums],
    test: tuple[Resident, Tensor],
    train: tuple[Resident, Tensor],
) -> Figures | LayerSums:
    """What a site says of the model x [d] in a frame: its figures, or its sums for the layer that the frame names, with
    the statistics in it; as `figures` and `forms_of_layers`."""
    layer = frame.fields.get("layer", len(layers))
    forms = tuple(statistics_of(problem, one) for one in [*layers.values()][:layer])
    measured = dict(zip(layers, codec.unpack("x/statistics", frame, forms, problem.device), strict=False))
    if layer < len(layers):
        [sums] = layer_sums(problem, x, train[0], measured).values()
        return sums
    problem.forward.take(x, problem.x, problem.replaced, measured)
    return figures(problem, x, test, train)


def form_of(problem: Supervised) -> Figures:
    """The form of what every site sends."""
    kind = torch.int64 if problem.target in ("class", "tokens") else problem.dtype
    none = torch.zeros(0, dtype=kind) if problem.target == "class" else torch.zeros(0, problem.classes, dtype=kind)
    outputs = torch.zeros(0, _width(problem), dtype=problem.dtype)
    sums = tuple(_sums_of(metric).sums(outputs, none) for metric in problem.metrics)
    return Figures(torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.float64), sums)


def _width(problem: Supervised) -> int:
    """How many numbers answer a sample: of tokens what `means.of_tokens` keeps."""
    return 2 if problem.target == "tokens" else problem.classes


def of_site(problem: Supervised, one: Figures) -> dict[str, float]:
    """`loss` and the metrics of a site's own samples tested on; NaN for none."""
    tested = int(one.counts[0])
    loss = float(one.losses[0]) / tested if tested else math.nan
    pairs = zip(problem.metrics, one.sums, strict=True)
    return {metric.name: _value(problem, metric, sums, tested) for metric, sums in pairs} | {"loss": loss}


def check(problem: Supervised, one: Figures | LayerSums) -> None:
    """Refuse what no samples come to: of a site, as all sites' figures would be its own then.

    Raises:
        FrameError: why; as of a number that is not finite where a figure, or what follows from it, is beyond all sense.
    """
    if any(bool((leaf.abs() > LARGEST).any()) for leaf in tree_leaves(one).values()):
        raise FrameError(NOT_FINITE)
    if isinstance(one, LayerSums):
        return
    tested = int(one.counts[0])
    for metric, sums in zip(problem.metrics, one.sums, strict=True):
        least, most = _sums_of(metric).between
        if bool(((sums < (least - 1e-6) * tested) | (sums > (most + 1e-6) * tested)).any()):
            raise FrameError(f"figures of {metric.name} that no {tested} samples have")
    if any(map(math.isinf, of_site(problem, one).values())):
        raise FrameError(NOT_FINITE)


def pooled(problem: Supervised, total: Figures) -> dict[str, float]:
    """`test_<metric>`, `test_loss` and `train_loss` over all samples that figures in this sum of them are of."""
    one = of_site(problem, total)
    return {f"test_{name}": value for name, value in one.items()} | {
        "train_loss": float(total.losses[1]) / int(total.counts[1])
    }


def _sums_of(metric: Metric) -> Summed:
    how = summed(metric)
    assert how is not None  # `check_summed` refused it
    return how


def _value(problem: Supervised, metric: Metric, sums: Tensor, samples: int) -> float:
    how = _sums_of(metric)
    with np.errstate(all="ignore"):
        value = how.value(sums.cpu().numpy(), samples, problem.classes) if samples else math.nan
    return value * _unit(problem) if how.in_units else value


def _unit(problem: Supervised) -> float:
    """A power of two near the label's own unit, in which sums are of numbers near 1."""
    scale = 0.0 if problem.unit is None else float(np.abs(problem.unit[1]).max())
    return 2.0 ** round(math.log2(scale)) if scale > 0 and math.isfinite(scale) else 1.0
