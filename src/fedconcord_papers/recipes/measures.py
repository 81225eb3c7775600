"""Numbers of a run that papers print: rounds to a target, accuracy at the end, loss, distance."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.stats import first_at, tail_mean
from fedconcord_papers.recipes.recipe import Measure

ACCURACY = "test_accuracy"
POSITIVE, PER_CENT = (0.0, math.inf), (0.0, 100.0)


def rounds_to(target: float, metric: str = ACCURACY, higher: bool = True, name: str | None = None) -> Measure:
    """The first evaluated round at a target; inf if the run ended before it. The first one of a recipe is its runs'
    `eval.target`."""

    def of(run: Run) -> float:
        at = first_at(run.metrics[metric], target, higher)
        return math.inf if at is None else float(run.round[at])

    text = f"{100 * target:g} %" if metric.endswith("accuracy") else f"{target:g}"
    return Measure(name or f"rounds to {text}", of, False, digits=0, goal=target, possible=POSITIVE)


def rounds_to_target(metric: str = ACCURACY, name: str = "rounds to target") -> Measure:
    """The first evaluated round at the run's own `eval.target`, which its cell sets; inf if it ended before."""

    def of(run: Run) -> float:
        target = run.head.target
        at = None if target is None else first_at(run.metrics[metric], target, True)
        return math.inf if at is None else float(run.round[at])

    return Measure(name, of, False, digits=0, possible=POSITIVE)


def final(
    metric: str = ACCURACY, higher: bool = True, window: int = 1, name: str | None = None, by: float = math.inf
) -> Measure:
    """The mean of a metric over the last `window` evaluated rounds up to round `by`, accuracies in per cent; NaN if the
    run diverged."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        return factor * tail_mean(run.round, run.metrics[metric], by, window)

    accuracy = metric == ACCURACY
    said = "accuracy, %" if accuracy else metric.replace("_", " ")
    possible = PER_CENT if factor > 1 else POSITIVE
    return Measure(name or said, of, higher, "%" if accuracy else "", 2 if factor > 1 else 4, possible=possible)


def magnitude(metric: str, window: int = 1, name: str | None = None) -> Measure:
    """log10 of the mean of a metric over the last `window` evaluated rounds; NaN if the run diverged."""

    def of(run: Run) -> float:
        return math.log10(max(tail_mean(run.round, run.metrics[metric], math.inf, window), 1e-300))

    return Measure(name or f"log10 of {metric.replace('_', ' ')}", of, False, "", 2)


def gradients_to(target: float, metric: str, higher: bool = True, name: str | None = None) -> Measure:
    """Mini-batch gradients of all clients up to the first evaluated round at a target; inf if the run ended before."""

    def of(run: Run) -> float:
        at = first_at(run.metrics[metric], target, higher)
        return math.inf if at is None else float(run.gradient_steps[at])

    return Measure(name or f"gradients to {target:g}", of, False, digits=0, possible=POSITIVE)


def best(metric: str = ACCURACY, higher: bool = True, name: str | None = None) -> Measure:
    """The best value of a metric at any evaluated round, accuracies in per cent."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        numbers = run.metrics[metric][np.isfinite(run.metrics[metric])]
        return factor * float(numbers.max() if higher else numbers.min()) if numbers.size else math.nan

    possible = PER_CENT if factor > 1 else POSITIVE
    return Measure(name or f"best {metric.replace('_', ' ')}", of, higher, "", 2, possible=possible)


def swing(metric: str = ACCURACY, share: float = 0.5, name: str | None = None) -> Measure:
    """The standard deviation of a metric's changes between evaluations over the last share of the run: instability."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        numbers = run.metrics[metric][int(len(run.round) * (1 - share)) :]
        return factor * float(np.std(np.diff(numbers))) if len(numbers) > 2 and np.isfinite(numbers).all() else math.nan

    return Measure(name or f"swing of {metric.replace('_', ' ')}", of, False, "", 2, possible=POSITIVE)


def parameters(name: str = "parameters") -> Measure:
    """The size of the model: says whether a run had the paper's."""
    return Measure(name, lambda run: float(run.head.dim), False, digits=0)


def client_sizes(statistic: Callable[[Array], float], name: str) -> Measure:
    """A statistic of the clients' numbers of samples [N]."""
    return Measure(
        name, lambda run: math.nan if run.counts is None else statistic(run.counts.sum(axis=1)), False, "", 2
    )
