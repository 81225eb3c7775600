"""What each client makes of the trained model for itself: fine-tuning on its own training samples.

Local fine-tuning of a global model is the plain baseline of personalised federated learning (e.g. Yu, Bagdasaryan and
Shmatikov, "Salvaging federated learning by local adaptation", 2020; FT-FedAvg in Collins et al., ICML 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked, run_round
from fedconcord.execution.job import Job
from fedconcord.execution.rows import MemoryStore
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.federation.objectives.judging import Models, answers, figure_names, figures, supervised
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.federation.participation.sampling import Drawn, Sampler
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms.alone import Model, local
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.solver import Solver
from fedconcord.support.errors import UserError

ENTRIES = 2**26  # numbers in the models of one group of clients


class Finetune(NamedTuple):
    """Plain local SGD from the final model, with the run's batch size."""

    steps: int
    lr: float


def finetune(
    steps: Annotated[int, Field(ge=1, description="local steps of every client")] = 20,
    lr: Annotated[float, Field(gt=0, description="step size")] = 0.05,
) -> Finetune:
    """Every client takes plain SGD steps from the final model on its own training samples."""
    return Finetune(steps, lr)


PERSONALISE: dict[str, Callable[..., Finetune]] = {"finetune": finetune}


ALONE = local()  # a round of it is local training without a message: each client keeps the model that it ends at


def personalised(job: Job, x: Tensor, how: Finetune, round: int, models: Models | None = None) -> Scores:
    """Every client's figures under its own model, fine-tuned from x [d] or [d + D] (with an addition to the frozen
    weights below low-rank factors, which stays), on the samples that it has set apart; where the answer is a model a
    client, from that, all parts of it, and from x for one that never took part.

    Clients go through the engine in groups of bounded memory, as in a round of training; `round` keys their batches.

    Raises:
        UserError: no samples are set apart, or the job's schedule is not one of settings.
    """
    problem, schedule = supervised(job.problem), job.schedule
    of = job.problem.whole if isinstance(job.problem, PrivateParts) else job.problem
    if problem is None or problem.judged.split != "validation" or not isinstance(schedule, Schedule):
        raise UserError("personalisation is judged on samples that clients set apart; set validation, as in 0.1")
    offsets = problem.judged.offsets
    choices = job.engine.can.choices
    engine = Stacked(choices["chunk"]) if choices else Serial()
    n, rows = problem.roster.n, []
    x, addition = x[: problem.dim], x[problem.dim :]
    alone = replace(ALONE, step=ALONE.step._replace(addition=(lambda down: addition) if len(addition) else None))
    group = max(1, ENTRIES // problem.dim)
    for first in range(0, n, group):
        ids = np.arange(first, min(first + group, n))
        finetuning = Schedule(
            schedule.seed,
            cohort=len(ids),
            lr=how.lr,
            work=fixed(how.steps),
            unit="steps",
            batch_size=schedule.batch_size,
            sampler=_only(ids),
        )
        plan = finetuning.plan(round, alone, problem.roster)
        store = MemoryStore(Model(x))
        if models is not None:
            starts = [models(int(i)) for i in ids]
            store.scatter(ids, Model(torch.stack([x if one is None else one for one in starts])))
        run_round(engine, of, Assignment(alone, Solver(), finetuning.draws), Model(x), store, plan)
        for i, model in zip(ids, store.gather(ids).x, strict=True):
            mine = slice(int(offsets[i]), int(offsets[i + 1]))
            rows.append(figures(problem, *answers(problem, torch.cat([model, addition]), mine)))
    columns = np.array(rows, np.float64).T
    return Scores("validation", np.diff(offsets), dict(zip(figure_names(problem), columns, strict=True)))


def _only(ids: np.ndarray) -> Sampler:
    ones = np.ones(len(ids))
    return Sampler(lambda seed, round, cohort, sizes, losses: Drawn(ids, ones, ones, ones))
