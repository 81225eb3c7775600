"""What a run answers with: its last model, with early stopping its best one, and what that does for every client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord.execution.job import Job, State, Step, has_own_models, model_of, own_models
from fedconcord.execution.job.accountant import Budget
from fedconcord.execution.job.personalisation import Finetune, personalised
from fedconcord.execution.rows import tensors
from fedconcord.execution.run.observers import Observer
from fedconcord.execution.run.stopping import Goal, Patience, Stopping
from fedconcord.federation.objectives import Supervised, fairness
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.federation.objectives.judging import at_client, client_figures, own_figures, supervised
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.support.errors import UserError, reason


class RunOptions(NamedTuple):
    """What a run does besides training to its last round."""

    patience: Patience | None = None  # stop without progress
    goal: Goal | None = None  # stop at it
    clients: bool = True  # look at every client after the last round
    clients_every: int | None = None  # rounds between looks at every client, besides that after the last round
    finetune: Finetune | None = None  # personalise the final model
    card: Mapping[str, Any] | None = None  # what model.json says
    budget: Budget | None = None  # what a private run spends
    readme: str | None = None  # what README.txt says


NOTHING = RunOptions()
MODEL = "model.safetensors"
MODELS = "models"  # in it a file a client, named by its number, where the answer is a model a client


class Final(Observer):
    """The model that a run answers with, and what it does for every client: model.safetensors and clients.csv."""

    def __init__(self, job: Job, folder: Path, options: RunOptions, stopping: Stopping) -> None:
        self.job, self.folder, self.options, self.stopping = job, folder, options, stopping
        self.model: torch.Tensor | None = None  # [d] the best one, if it is newer than the file
        self.clients: dict[str, Any] | None = None

    def see(self, now: Step) -> None:
        """Keep the model of the best round."""
        best = self.stopping.best
        if best is not None and best.round == now.row.round:
            self.model = model_of(self.job, now.state).detach().clone()

    def save(self, state: State) -> None:
        """The best model's file, so that it and the checkpoint are of one past; or one a client that has its own."""
        if has_own_models(self.job):
            self._save_own(state)
        elif self.model is not None:
            tensors.write(self.folder / MODEL, self.job.problem.evaluator.export(self.model))
        self.model = None

    def release(self, state: State) -> None:
        """The last model's file, where that is the answer."""
        if self.stopping.best is None and not has_own_models(self.job):
            tensors.write(self.folder / MODEL, self.job.problem.evaluator.export(model_of(self.job, state)))

    def _save_own(self, state: State) -> None:
        if self.options.card is None:
            return
        models, inner = own_models(self.job, state), supervised(self.job.problem)
        assert inner is not None  # `refusals`
        (self.folder / MODELS).mkdir(exist_ok=True)
        for client in range(self.job.problem.roster.n):
            if (x := models(client)) is not None:
                tensors.write(self.folder / MODELS / f"{client}.safetensors", at_client(inner, client).export(x))

    def end(self, state: State) -> None:
        """The answer on every client."""
        inner = supervised(self.job.problem)
        if inner is None or not (self.options.clients or self.options.finetune):
            return
        if has_own_models(self.job):
            models, adapted = own_models(self.job, state), None
            if self.options.finetune is not None:
                x, problem = model_of(self.job, state), self.job.problem
                x = problem.joined(x) if isinstance(problem, PrivateParts) else x
                adapted = personalised(self.job, x, self.options.finetune, state.round, models)
            self._write(inner, state, state.round, own_figures(inner, models), adapted)
            return
        x, round, best = model_of(self.job, state), state.round, self.stopping.best
        if best is not None:
            x, round = self.model if self.model is not None else self._read(inner), best.round
        how, after = self.options.finetune, None
        if how is not None:
            after = personalised(self.job, x, how, state.round)
        self._write(inner, state, round, client_figures(inner, x), after)

    def _write(self, inner: Supervised, state: State, round: int, scores: Scores, after: Scores | None) -> None:
        clients, hostile = range(len(scores.samples)), frozenset(self.job.hostile)
        marks = {"hostile": [int(i in hostile) for i in clients]} if hostile else {}
        marks |= {"refused": [state.refused.get(i, 0) for i in clients]} if state.refused else {}
        fairness.write(self.folder / "clients.csv", scores, after, inner.data.client_names, marks)
        self.clients = fairness.description(round, scores, after)

    def _read(self, problem: Supervised) -> torch.Tensor:
        """The best model, where it is older than the last checkpoint."""
        path = self.folder / MODEL
        try:
            weights, _ = tensors.read(path)
        except (tensors.DamagedError, OSError) as broken:
            raise UserError(f"cannot read the model {path} ({reason(broken)}); restore it or run again") from broken
        return problem.read(weights)

    def about(self) -> dict[str, Any]:
        """How the clients fare."""
        return {} if self.clients is None else {"clients_judged": self.clients}
