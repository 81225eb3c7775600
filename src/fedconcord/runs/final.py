"""What a run answers with: its last model, with early stopping its best one, and what that does for every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord.analysis import fairness
from fedconcord.analysis.personalisation import Finetune, personalised
from fedconcord.basis.errors import UserError, reason
from fedconcord.core import tensors
from fedconcord.jobs import Job, Row, State
from fedconcord.problems import Supervised
from fedconcord.runs import stopping
from fedconcord.runs.stopping import Best, Patience


class Wanted(NamedTuple):
    """What a run does besides training to its last round."""

    patience: Patience | None = None  # stop early
    clients: bool = True  # look at every client after the last round
    clients_every: int | None = None  # rounds between looks at every client, besides that after the last round
    finetune: Finetune | None = None  # personalise the final model
    card: Mapping[str, Any] | None = None  # what model.json says


NOTHING = Wanted()
MODEL = "model.safetensors"


class Final:
    """The model that a run answers with, when it is found, and what it does for every client."""

    def __init__(self, job: Job, folder: Path, wanted: Wanted) -> None:
        self.job, self.folder, self.wanted = job, folder, wanted
        self.best: Best | None = None
        self.stopped: str | None = None
        self.clients: dict[str, Any] | None = None
        self.model: torch.Tensor | None = None  # [d] the best one, if it is newer than the file
        self.rows: list[dict[str, Any]] = []  # of fairness.csv

    def resume(self, metrics: Sequence[Mapping[str, Any]], rows: list[dict[str, Any]], round: int) -> None:
        """Take up the state of a run after so many rounds, from its rows of metrics.csv and fairness.csv."""
        self.rows = rows
        self.best = self._best(metrics)
        if self.best is not None:
            self._exhausted(round, self._watched(metrics[0]))

    def lost(self, before: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the model in the folder, the best by the rows `before`, is not the best by these fewer rows."""
        best, kept = self._best(before), self._best(metrics)
        return best is not None and kept is not None and best.round != kept.round

    def _best(self, metrics: Sequence[Mapping[str, Any]]) -> Best | None:
        """The best of rows of metrics.csv; None without patience."""
        patience = self.wanted.patience
        if patience is None or not metrics:
            return None
        metric = self._watched(metrics[0])
        return stopping.fold(patience, metric, self._higher(metric), metrics)

    def _watched(self, row: Mapping[str, Any]) -> str:
        assert self.wanted.patience is not None
        return stopping.watched(self.wanted.patience, row)

    def _higher(self, metric: str) -> bool:
        """Whether more of a metric is better, as a metric of the user's own says for itself."""
        inner = fairness.supervised(self.job.problem)
        known = {f"test_{one.name}": one.higher for one in inner.metrics} if inner is not None else {}
        return known.get(metric, fairness.higher_is_better(metric))

    def _exhausted(self, round: int, metric: str) -> None:
        patience = self.wanted.patience
        if patience is not None and self.best is not None and self.best.since >= patience.evaluations:
            self.stopped = stopping.sentence(patience, metric, self.best, round)

    def see(self, row: Row, state: State | None) -> None:
        """After every round; `state` is None at the start."""
        if row.metrics is not None and self.wanted.patience is not None:
            metric = self._watched(row.metrics)
            if state is not None:
                value = row.metrics[metric]
                self.best = stopping.step(self.wanted.patience, self._higher(metric), self.best, row.round, value)
                if self.best.since == 0:
                    self.model = _model(self.job, state).detach().clone()
                self._exhausted(row.round, metric)
        every = self.wanted.clients_every
        if state is not None and every is not None and row.round % every == 0:
            scores = fairness.look(self.job.problem, _model(self.job, state))
            if scores is not None:
                self.rows.append(fairness.row(row.round, scores))

    def write(self, state: State) -> None:
        """The model's file and fairness.csv. Best models are written with checkpoints, so that both are of one past."""
        if self.best is None:
            self.model = _model(self.job, state)
        if self.model is not None:
            tensors.write(self.folder / MODEL, self.job.problem.evaluator.export(self.model))
        self.model = None
        if self.rows:
            fairness.write_rounds(self.folder / "fairness.csv", self.rows)

    def judge(self, state: State) -> str:
        """The answer on every client, at the end of a run; returns nothing to tell of it."""
        inner = fairness.supervised(self.job.problem)
        if inner is None or not (self.wanted.clients or self.wanted.finetune):
            return ""
        x, round = _model(self.job, state), state.round
        if self.best is not None:
            x, round = self.model if self.model is not None else self._read(inner), self.best.round
        scores = inner.client_scores(x)
        how, after = self.wanted.finetune, None
        if how is not None:
            after = personalised(self.job, x, how, state.round)
        fairness.write(self.folder / "clients.csv", scores, after, inner.data.client_names)
        self.clients = fairness.description(round, scores, after)
        return ""

    def _read(self, problem: Supervised) -> torch.Tensor:
        """The best model, where it is older than the last checkpoint."""
        path = self.folder / MODEL
        try:
            named, _ = tensors.read(path)
        except (tensors.DamagedError, OSError) as broken:
            raise UserError(f"cannot read the model {path} ({reason(broken)}); restore it or run again") from broken
        x: torch.Tensor = problem.layout.vector(named).to(dtype=problem.dtype, device=problem.device)
        return x

    def description(self) -> dict[str, Any]:
        """What run.json says of it."""
        found: dict[str, Any] = {} if self.best is None else {"model_round": self.best.round}
        if self.stopped is not None:
            found["stopped"] = self.stopped
        if self.clients is not None:
            found["clients_judged"] = self.clients
        return found


def _model(job: Job, state: State) -> torch.Tensor:
    """The model that the method answers with [d]."""
    return next(iter(job.algorithm.models(state.server).values()))
