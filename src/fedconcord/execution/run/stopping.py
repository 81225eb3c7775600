"""Why a run stops early: a fold over the rows of metrics.csv, in which a resumed run finds its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fedconcord.execution.job import Job, Step, has_own_models
from fedconcord.execution.run.observers import Observer
from fedconcord.federation.objectives import fairness
from fedconcord.federation.objectives.judging import supervised
from fedconcord.method.contract import Problem
from fedconcord.support.errors import UserError, unknown

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Goal: TypeAlias = tuple[str, float]  # the run stops where this metric is at this value, or past it
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
    names = list(metrics)
    if patience.metric is not None:
        if patience.metric not in names:
            raise unknown("metric in eval.watch", patience.metric, names)
        return patience.metric
    default = next((name for name in DEFAULTS if name in names), None)
    if default is None:
        raise UserError(f"eval.patience needs a metric to watch; name one in eval.watch: {', '.join(names)}")
    return default


def best_of(patience: Patience | None, problem: Problem, rows: Rows, best: Best | None = None) -> Best | None:
    """The best of evaluated rounds, rows as in metrics.csv, which come after those that `best` is of; None without
    patience."""
    if patience is None or not rows:
        return best
    metric = watched(patience, rows[0])
    sign = _sign(problem, metric)
    for row in rows:
        round, value = int(row["round"]), float(row[metric])
        if round > 0 and (best is None or sign * (value - best.value) > patience.min_delta):
            best = Best(round, value, 0)
        elif best is not None:
            best = best._replace(since=best.since + 1)
    return best


def _sign(problem: Problem, metric: str) -> float:
    """1 where more is better, else -1; as a metric of the user's own says for itself."""
    inner = supervised(problem)
    own_metrics = {f"test_{one.name}": one.higher for one in inner.metrics} if inner is not None else {}
    return 1.0 if fairness.higher_is_better(metric, own_metrics) else -1.0


class Stopping(Observer):
    """The best round so far, with patience, and why the run stops, once it does. All of it is in metrics.csv."""

    def __init__(self, job: Job, patience: Patience | None, goal: Goal | None, rows: Rows, round: int) -> None:
        """Go on after a round from the rows of metrics.csv; none where the run begins."""
        self.problem, self.patience, self.goal = job.problem, patience, goal
        self.keeps_best = not has_own_models(job)  # of a model a client the last are kept
        self.best: Best | None = None
        self.stopped: str | None = None
        self._judge(rows, round)

    def see(self, now: Step) -> None:
        """Whether the round is the best and patience is at its end; at the start, that the watched metric is there."""
        if now.row.metrics is not None:
            self._judge([{"round": now.row.round, **now.row.metrics}], now.row.round)

    def _judge(self, rows: Rows, round: int) -> None:
        patience, best = self.patience, best_of(self.patience, self.problem, rows, self.best)
        self.best = best
        if patience is not None and best is not None and best.since >= patience.evaluations:
            by = f" by more than {patience.min_delta:g}" if patience.min_delta else ""
            metric = watched(patience, rows[0])
            whose = "the model is that of" if self.keeps_best else "clients' models are the last ones, and the best was"
            self.stopped = (
                f"stopped early at round {round}: {metric} has not improved{by} in {best.since} evaluations; {whose} "
                f"round {best.round}, {metric} {best.value:.4g}"
            )
        if self.goal is not None and self.stopped is None:
            (metric, target), sign = self.goal, _sign(self.problem, self.goal[0])
            values = (float(row[metric]) for row in rows if int(row["round"]) > 0)
            if there := [value for value in values if sign * (value - target) >= 0]:
                self.stopped = f"stopped at round {round}: {metric} {there[0]:.4g} is at its target {target:g}"

    def about(self) -> dict[str, Any]:
        """The round of the model, and why the run stopped."""
        best = {"model_round": self.best.round} if self.best is not None and self.keeps_best else {}
        return best if self.stopped is None else {**best, "stopped": self.stopped}
