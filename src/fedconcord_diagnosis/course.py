"""The way of a diagnosis: a job's rounds, with looks at some of them that change none of their bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedconcord.algorithms import METHODS
from fedconcord.analysis.surrogate import Surrogate, chi_square, surrogate
from fedconcord.basis.yardstick import YARDSTICK
from fedconcord.core import Plan
from fedconcord.federation.describe import distance
from fedconcord.jobs import Job, State, advance, plan_of, start
from fedconcord.problems.judging import supervised
from fedconcord_diagnosis import history, skew
from fedconcord_diagnosis.history import History
from fedconcord_diagnosis.look import MOST_SAMPLES, Look, chosen, look, plan_for

WORK_ROUNDS = 20  # of a run, spread evenly, whose local work is averaged


class Aim(NamedTuple):
    """The objective that the average goes down, over n clients, with each one's mean work."""

    p: np.ndarray  # [n] weights of the objective, sum 1
    steps: np.ndarray  # [n] float64 mean local steps
    own: Surrogate | str  # the method's, or why it cannot be said
    plain: Surrogate | str  # FedAvg's on the same work

    def miss(self, of: Surrogate | str) -> float | None:
        """chi^2(p || w) of one of them."""
        return None if isinstance(of, str) else chi_square(self.p, of.w)

    def slowdown(self, of: Surrogate | str) -> float | None:
        """tau_bar / tau_eff, with tau_bar = sum_i p_i tau_i (the paper's mean where all p_i are equal)."""
        return None if isinstance(of, str) else float(self.p @ self.steps) / of.effective


class Skew(NamedTuple):
    """How unlike the data of the N clients are."""

    samples: np.ndarray  # [N] int64
    labels: np.ndarray | None  # [N] sum_c |p_i(c) - p(c)|, 0 to 2; None without classes
    features: skew.Features | None  # of the clients that are looked at; None where there are no numbers to compare


class Diagnosis(NamedTuple):
    """What was seen of a job."""

    ids: np.ndarray  # [n] the clients that looks asked
    looks: list[Look]
    history: History
    aim: Aim
    skew: Skew
    names: list[str] | None  # [N]
    diverged: int | None  # the round after which the model was no longer finite, where looks ended
    state: State  # after the last round


def diagnose(
    job: Job, at: Sequence[int], state: State | None = None, each: Callable[[int], None] = lambda t: None
) -> Diagnosis:
    """Train to the last of the rounds `at`, rising, and look at each.

    Args:
        state: after round `at[0]`, where training need not begin anew; earlier rounds are then known by their plans.
        each: told of every round done.
    """
    ids = chosen(job, at)
    past, looks, diverged = history.nothing(job.problem.roster.n), [], None
    if state is None:
        state = start(job)
    else:
        for t in range(state.round):
            past = history.extended(past, job, plan_of(job, state._replace(round=t)))
    while True:
        if not bool(torch.isfinite(state.server.x).all()):
            diverged = state.round
            break
        if state.round in at:
            looks.append(look(job, state, ids))
        if state.round >= at[-1]:
            break
        past = history.extended(past, job, plan_of(job, state))
        state = advance(job, state)
        each(state.round)
    data = supervised(job.problem)
    names = None if data is None else data.data.client_names
    return Diagnosis(ids, looks, past, _aim(job, ids, max(at[-1], 1)), _skew(job, ids), names, diverged, state)


def _aim(job: Job, ids: np.ndarray, rounds: int) -> Aim:
    spread = np.unique(np.linspace(0, rounds - 1, min(rounds, WORK_ROUNDS)).astype(int))
    plans = [plan_for(job, int(t), ids) for t in spread]
    steps = np.mean([plan.steps for plan in plans], axis=0)
    plan: Plan = plans[0]._replace(steps=np.maximum(np.rint(steps), 1).astype(np.int64))
    average = replace(job, algorithm=METHODS[YARDSTICK](weights=job.algorithm.weights))
    return Aim(plan.p / plan.p.sum(), steps, surrogate(job, plan), surrogate(average, plan))


def _skew(job: Job, ids: np.ndarray) -> Skew:
    roster = job.problem.roster
    counts = roster.label_counts()
    data, features = supervised(job.problem), None
    if data is not None and len(data.x) and data.x[0:1].dtype.is_floating_point:
        picked = [job.problem.objective.samples(int(i))[:MOST_SAMPLES] for i in ids]
        owner = np.repeat(np.arange(len(ids)), [len(part) for part in picked])
        where = torch.cat(picked)
        x = data.x[where].flatten(1).cpu().numpy()
        labels = data.y[where].cpu().numpy() if data.target == "class" else None
        features = skew.features(x, owner, len(ids), labels)
    return Skew(roster.samples, None if counts is None else distance(counts), features)
