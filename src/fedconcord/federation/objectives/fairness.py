"""How evenly a model serves the clients, and what is written of it: clients.csv and fairness.csv.

Every client counts once, whatever it holds. The worst and the best decile are the means over the ceil(N / 10) clients
that fare worst and best, the gap is best minus worst, and std is the standard deviation over the N clients: the figures
of q-FFL (Li, Sanjabi, Beirami and Smith, ICLR 2020, Table 1 and Definition 1, which takes the variance). `worst` is the
single worst client, whose loss agnostic federated learning minimises (Mohri, Sivek and Suresh, ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.objectives.metrics import METRICS
from fedconcord.method.contract import Problem
from fedconcord.support import files, sums
from fedconcord.support.spread import Spread, spread

NOTHING: Mapping[str, bool] = MappingProxyType({})


def higher_is_better(metric: str, of_own: Mapping[str, bool] = NOTHING) -> bool:
    """Whether more of a metric is better: as it says itself, else by its name, of those that are listed and of
    accuracies."""
    known = METRICS.get(metric.partition("_at_")[0])
    return of_own.get(metric, metric.endswith("accuracy") if known is None else known.higher)


def main_metric(scores: Scores) -> str:
    """The metric that the report and run.json speak of: the accuracy where there is one, else the loss."""
    return next((name for name in scores.values if name != "loss"), "loss")


def look(problem: Problem, x: Tensor) -> Scores | None:
    """Every client's figures under the model x [d], or None where there are no such figures."""
    inner = supervised(problem)
    return None if inner is None else inner.client_scores(x)


def row(round: int, scores: Scores) -> dict[str, Any]:
    """A line of fairness.csv."""
    metric = main_metric(scores)
    return {"round": round, **spread(scores.values[metric], higher_is_better(metric, scores.higher))._asdict()}


def description(round: int, scores: Scores, after: Scores | None) -> dict[str, Any]:
    """What run.json says of the clients; `after` is the same model fine-tuned at each."""
    metric = main_metric(scores)
    known, has = ~np.isnan(scores.values[metric]), scores.samples > 0
    summary: dict[str, Any] = {
        "round": round,
        "split": scores.split,
        "judged": int(known.sum()),
        "without_samples": int((~has).sum()),
        **({"never_trained": int((has & ~known).sum())} if (has & ~known).any() else {}),
        "metric": metric,
        **spread(scores.values[metric], higher_is_better(metric, scores.higher))._asdict(),
    }
    others = {name: values for name, values in scores.values.items() if name not in ("loss", metric)}
    if others:
        summary["others"] = {name: _other(name, values, scores) for name, values in others.items()}
    if after is not None:
        summary["personalised"] = spread(after.values[metric], higher_is_better(metric, scores.higher))._asdict()
    return summary


def _other(name: str, values: np.ndarray, scores: Scores) -> dict[str, Any]:
    """Another metric: over all samples, the spread over the clients where it is defined, and how many those are."""
    overall = {"overall": scores.overall[name]} if name in scores.overall else {}
    return {
        **overall,
        **spread(values, higher_is_better(name, scores.higher))._asdict(),
        "defined": int((~np.isnan(values)).sum()),
    }


def write(
    path: Path,
    scores: Scores,
    after: Scores | None,
    names: Sequence[str] | None,
    marks: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """clients.csv: a line a client; a metric after fine-tuning ends in `_personalised`; empty where no samples are.

    Args:
        marks: further columns of counts [N].
    """
    n, metrics = len(scores.samples), dict(scores.values)
    if after is not None:
        metrics |= {f"{name}_personalised": values for name, values in after.values.items()}
    columns: dict[str, Sequence[Any]] = {
        "client": range(n),
        "name": names or [""] * n,
        "split": [scores.split] * n,
        "samples": scores.samples.tolist(),
        **(marks or {}),
        **{name: ["" if math.isnan(v) else v for v in values.tolist()] for name, values in metrics.items()},
    }
    sums.write(path.parent, {path.name: files.as_csv([*columns], [*zip(*columns.values(), strict=True)])})


def write_rounds(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """fairness.csv: the spread over the clients, a line a round that was looked at."""
    sums.write(path.parent, {path.name: files.as_csv(["round", *Spread._fields], rows)})
