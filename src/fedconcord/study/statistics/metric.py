"""The evaluation columns that the report knows, how they are read, and which of them rank the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.stats import Interval, interval

FLOOR = 1e-12  # a distance below it counts as this: rounding, not progress


@dataclass(frozen=True)
class Metric:
    """An evaluation column and how it is read. `log`: it is averaged and compared on a log scale."""

    column: str
    title: str
    higher: bool
    percent: bool = False
    log: bool = False

    def label(self, title: str | None = None) -> str:
        """The title of an axis or a column of its values, with their unit."""
        return (title or self.title) + (" (%)" if self.percent else "")

    def scale(self, values: Array) -> Array:
        """To the scale on which means are taken."""
        return np.log10(np.maximum(values, FLOOR)) if self.log else values

    def back(self, v: float) -> float:
        return 10.0**v if self.log else v

    def interval(self, values: Sequence[float]) -> Interval:
        """The interval of values on the averaging scale, in the metric's own unit."""
        return interval(values).mapped(self.back)


KNOWN = (  # the first that every run has ranks the methods
    Metric("test_accuracy", "test accuracy", higher=True, percent=True),
    Metric("cluster_accuracy", "cluster accuracy", higher=True, percent=True),
    Metric("distance", "distance to the optimum", higher=False, log=True),
    Metric("test_rmse", "test RMSE", higher=False),
    Metric("test_mae", "test MAE", higher=False),
    Metric("test_r2", "test R2", higher=True),
    Metric("test_label_accuracy", "test label accuracy", higher=True, percent=True),
    Metric("test_exact", "test samples all right", higher=True, percent=True),
    Metric("test_micro_f1", "test micro F1", higher=True),
    Metric("test_macro_f1", "test macro F1", higher=True),
    Metric("test_auroc", "test AUROC", higher=True),
    Metric("test_average_precision", "test average precision", higher=True),
    Metric("test_brier", "test Brier score", higher=False),
    Metric("test_sensitivity", "test sensitivity", higher=True, percent=True),
    Metric("test_specificity", "test specificity", higher=True, percent=True),
    Metric("test_ppv", "test PPV", higher=True, percent=True),
    Metric("test_npv", "test NPV", higher=True, percent=True),
    Metric("test_ece", "test calibration error", higher=False),
    Metric("test_loss", "test loss", higher=False),
    Metric("loss", "loss", higher=False),
    Metric("train_loss", "train loss", higher=False),
)
LOSSES = ("train_loss", "loss", "test_loss")  # the first that every run has is drawn beside the ranking metric


def metric_of(column: str) -> Metric:
    """How a column is read; one that is not known is drawn as it is, accuracy-like if its name ends so. What is known
    of the test set is so of validation and of clients too."""
    for m in KNOWN:
        if m.column == column:
            return m
        if m.column.startswith("test_") and column.removeprefix("validation_") == m.column.removeprefix("test_"):
            split = "validation" if column.startswith("validation_") else ""
            return replace(m, column=column, title=f"{split} {m.title.removeprefix('test ')}".strip())
    base, at, threshold = column.partition("_at_")
    if at and base.endswith(("sensitivity", "specificity", "ppv", "npv")):
        base_metric = metric_of(base)
        return replace(base_metric, column=column, title=f"{base_metric.title} at {threshold}")
    accuracy = column.endswith("accuracy")
    return Metric(column, column.replace("_", " "), higher=accuracy, percent=accuracy)


def ranking(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that may rank the runs, best choice first: those that they name themselves, then the known ones.

    Where a method answers with a model a client, first the same on the samples that clients set apart: such a model is
    for its client, and no measure of it is a test set of all clients'.
    """
    higher_of = {str(entry["column"]): bool(entry["higher"]) for entry in runs[0].head.ranking}
    every = tuple(replace(metric_of(column), higher=higher) for column, higher in higher_of.items())
    every += tuple(m for m in KNOWN if m.column not in higher_of)
    if not any(run.head.own for run in runs):
        return every
    validation = [(m, m.column.replace("test_", "validation_")) for m in every if m.column.startswith("test_")]
    return tuple(replace(metric_of(column), higher=m.higher) for m, column in validation) + every
