"""Early stopping: a fold over the rows of metrics.csv, in which a resumed run finds its state, and its observer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedconcord.analysis import fairness
from fedconcord.basis.errors import UserError, unknown
from fedconcord.core import Problem
from fedconcord.jobs import Step
from fedconcord.problems.judging import supervised
from fedconcord.runs.observers import Observer

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


def best_of(patience: Patience | None, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> Best | None:
    """The best of rows of metrics.csv; None without patience."""
    if patience is None or not rows:
        return None
    metric = watched(patience, rows[0])
    return fold(patience, metric, _higher(problem, metric), rows)


def _higher(problem: Problem, metric: str) -> bool:
    """Whether more of a metric is better, as a metric of the user's own says for itself."""
    inner = supervised(problem)
    known = {f"test_{one.name}": one.higher for one in inner.metrics} if inner is not None else {}
    return known.get(metric, fairness.higher_is_better(metric))


class Stopping(Observer):
    """The best round so far, and why the run stops, once it does; neither without patience. All of it is in
    metrics.csv."""

    def __init__(
        self, problem: Problem, patience: Patience | None, rows: Sequence[Mapping[str, Any]], round: int
    ) -> None:
        """Go on after a round from the rows of metrics.csv; none where the run begins."""
        self.problem, self.patience = problem, patience
        self.best = best_of(patience, problem, rows)
        self.stopped: str | None = None
        if patience is not None and rows:
            self._judge(patience, watched(patience, rows[0]), round)

    def see(self, now: Step) -> None:
        """Whether the round is the best and patience is spent; at the start, that the watched metric is there."""
        patience, row = self.patience, now.row
        if patience is None or row.metrics is None:
            return
        metric = watched(patience, row.metrics)
        if row.round > 0:
            self.best = step(patience, _higher(self.problem, metric), self.best, row.round, row.metrics[metric])
            self._judge(patience, metric, row.round)

    def _judge(self, patience: Patience, metric: str, round: int) -> None:
        if self.best is not None and self.best.since >= patience.evaluations:
            self.stopped = sentence(patience, metric, self.best, round)

    def about(self) -> dict[str, Any]:
        """The round of the model, and why the run stopped."""
        said: dict[str, Any] = {} if self.best is None else {"model_round": self.best.round}
        return said if self.stopped is None else said | {"stopped": self.stopped}
