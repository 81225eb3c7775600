"""Early stopping, as a fold over the rows of metrics.csv: a resumed run finds its state in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedconcord.basis.errors import UserError, unknown

DEFAULTS = ("validation_loss", "test_loss", "loss", "distance")  # the first that is there is watched


class Patience(NamedTuple):
    """Stop after `evaluations` evaluated rounds in a row, none better than the best by more than `min_delta`."""

    evaluations: int
    min_delta: float = 0.0
    metric: str | None = None


class Best(NamedTuple):
    """The best evaluated round so far; the start, round 0, is not a candidate."""

    round: int
    value: float
    since: int  # evaluated rounds after it


def watched(patience: Patience, metrics: Iterable[str]) -> str:
    """The metric in force.

    Raises:
        UserError: the job has no such metric, or none to choose.
    """
    known = list(metrics)
    if patience.metric is not None:
        if patience.metric not in known:
            raise unknown("metric in eval.watch", patience.metric, known)
        return patience.metric
    found = next((name for name in DEFAULTS if name in known), None)
    if found is None:
        raise UserError(f"eval.patience needs a metric to watch; name one in eval.watch: {', '.join(known)}")
    return found


def step(patience: Patience, higher: bool, best: Best | None, round: int, value: float) -> Best:
    """The best after one more evaluated round, `since` 0 where this round is it; `higher`: more is better."""
    sign = 1.0 if higher else -1.0
    if best is None or sign * (value - best.value) > patience.min_delta:
        return Best(round, value, 0)
    return best._replace(since=best.since + 1)


def fold(patience: Patience, metric: str, higher: bool, rows: Iterable[Mapping[str, Any]]) -> Best | None:
    """The best of rows of metrics.csv."""
    best = None
    for row in rows:
        if int(row["round"]) > 0:
            best = step(patience, higher, best, int(row["round"]), float(row[metric]))
    return best


def sentence(patience: Patience, metric: str, best: Best, round: int) -> str:
    """Why a run stopped, for run.json and for people."""
    by = f" by more than {patience.min_delta:g}" if patience.min_delta else ""
    return (
        f"stopped early at round {round}: {metric} has not improved{by} in {best.since} evaluations; the model is that "
        f"of round {best.round}, {metric} {best.value:.4g}"
    )
