"""Numbers of a run that papers print: rounds to a target, accuracy at the end, loss, distance."""

from __future__ import annotations

import math

import numpy as np

from fedconcord.recipes.recipe import Measure
from fedconcord.report.load import Run
from fedconcord.report.stats import first_at, tail_mean

ACCURACY = "test_accuracy"


def rounds_to(target: float, metric: str = ACCURACY, higher: bool = True, name: str | None = None) -> Measure:
    """The first evaluated round at a target; inf if the run ended before it. The first one of a recipe is its runs'
    `eval.target`."""

    def of(run: Run) -> float:
        at = first_at(run.metrics[metric], target, higher)
        return math.inf if at is None else float(run.round[at])

    shown = f"{100 * target:g} %" if metric.endswith("accuracy") else f"{target:g}"
    return Measure(name or f"rounds to {shown}", of, False, digits=0, goal=target)


def final(metric: str = ACCURACY, higher: bool = True, window: int = 1, name: str | None = None) -> Measure:
    """The mean of a metric over the last `window` evaluated rounds, accuracies in per cent; NaN if the run diverged."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        return factor * tail_mean(run.round, run.metrics[metric], math.inf, window)

    accuracy = metric == ACCURACY
    said = "accuracy, %" if accuracy else metric.replace("_", " ")
    return Measure(name or said, of, higher, "%" if accuracy else "", 2 if factor > 1 else 4)


def best(metric: str = ACCURACY, higher: bool = True, name: str | None = None) -> Measure:
    """The best value of a metric at any evaluated round, accuracies in per cent."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        seen = run.metrics[metric][np.isfinite(run.metrics[metric])]
        return factor * float(seen.max() if higher else seen.min()) if seen.size else math.nan

    return Measure(name or f"best {metric.replace('_', ' ')}", of, higher, "", 2)


def swing(metric: str = ACCURACY, share: float = 0.5, name: str | None = None) -> Measure:
    """The standard deviation of a metric's changes between evaluations over the last share of the run: instability."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0

    def of(run: Run) -> float:
        seen = run.metrics[metric][int(len(run.round) * (1 - share)) :]
        return factor * float(np.std(np.diff(seen))) if len(seen) > 2 and np.isfinite(seen).all() else math.nan

    return Measure(name or f"swing of {metric.replace('_', ' ')}", of, False, "", 2)
