"""The way of a diagnosis: a job's rounds, with looks at some of them that change none of their bits.

Beside the looks stand what the rounds did by client (who took part, and when last; what it computed; how long it took
and waited), which objective the average goes down, and how unlike the clients' data are in sizes, labels and features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedconcord.execution.job import Job, State, advance, plan_of, start
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.participation import clock
from fedconcord.federation.partitions.describe import distance
from fedconcord.insight.methods.surrogate import Surrogate, chi_square, schedule_of, surrogate
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Plan
from fedconcord.support.yardstick import YARDSTICK
from fedconcord_diagnosis.look import MOST_SAMPLES, Look, chosen, look, plan_for

WORK_ROUNDS = 20  # of a run, spread evenly, whose local work is averaged


class History(NamedTuple):
    """Of N clients over the rounds so far. Seconds are simulated, and 0 without devices."""

    rounds: int
    taken: np.ndarray  # [N] int64 rounds it took part in
    last: np.ndarray  # [N] int64 the last of these; -1 for none
    gradients: np.ndarray  # [N] float64 mini-batch gradients it evaluated
    seconds: np.ndarray  # [N, 4] float64: getting the model, computing, sending, waiting for the slowest

    def age(self) -> np.ndarray:
        """[N] rounds since a client's state was last updated: 0 in the round just done; all rounds if never."""
        return np.asarray(np.where(self.last < 0, self.rounds, self.rounds - 1 - self.last))


def nothing(n: int) -> History:
    """Before round 0."""
    return History(0, np.zeros(n, np.int64), np.full(n, -1), np.zeros(n), np.zeros((n, 4)))


def extended(past: History, job: Job, plan: Plan) -> History:
    """After a round of this plan. A client that was lost does not count as one that took part."""
    schedule, ids = schedule_of(job), plan.ids
    taken, last, gradients, seconds = (column.copy() for column in past[1:])
    taken[ids] += 1
    last[ids] = past.rounds
    full = schedule.draws.full_cost(job.algorithm, job.problem.roster.samples[ids])
    did = job.cost.gradients(plan.steps, full)
    gradients[ids] += did
    if schedule.devices is not None and len(ids):
        devices = [schedule.devices(plan.seed, plan.round, int(i)) for i in ids]
        took = clock.times(devices, job.cost, did)
        waited = np.maximum(plan.seconds - took.total, 0)
        seconds[ids] += np.stack([took.down, took.compute, took.up, waited], axis=1)
    return History(past.rounds + 1, taken, last, gradients, seconds)


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


class Features(NamedTuple):
    """How much of the features' variance lies between clients."""

    share: float  # adjusted for chance: 0 in expectation where clients draw from one distribution, 1 at most
    distance: np.ndarray  # [n] distance of the client's mean to everybody's, in standard deviations of one feature
    within: str  # "class" where means of classes were taken out first, else "all"


def features(x: np.ndarray, owner: np.ndarray, n: int, labels: np.ndarray | None = None) -> Features:
    """Of samples x [m, q] that clients owner [m] (0 .. n-1) hold.

    With labels [m] the mean of each class is taken out first, so that clients who hold other classes do not count as
    others in their features. The share is epsilon^2 of a one-way analysis of variance, summed over the features:
    (SS_between - (n - 1) MS_within) / SS_total (Kelley, PNAS 1935).
    """
    x = np.asarray(x, np.float64)
    groups = np.zeros(len(x), np.int64) if labels is None else np.unique(labels, return_inverse=True)[1]
    x = x - _means(x, groups, int(groups.max()) + 1)[groups]
    means, counts = _means(x, owner, n), np.bincount(owner, minlength=n)
    between = float(counts @ (means**2).sum(1))
    total = float((x**2).sum())
    holders = int((counts > 0).sum())
    free = max(len(x) - holders - int(groups.max()), 1)  # degrees of freedom within
    share = (between - (holders - 1) * (total - between) / free) / total if total > 0 else 0.0
    unit = np.sqrt(total / max(x.size, 1))
    distance = np.sqrt((means**2).mean(1)) / unit if unit > 0 else np.zeros(n)
    return Features(share, distance, "all" if labels is None else "class")


def _means(x: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Means [groups, q] of x [m, q] by group; 0 for an empty one."""
    sums = np.zeros((groups, x.shape[1]))
    np.add.at(sums, group, x)
    return sums / np.maximum(np.bincount(group, minlength=groups), 1)[:, None]


class Skew(NamedTuple):
    """How unlike the data of the N clients are."""

    samples: np.ndarray  # [N] int64
    labels: np.ndarray | None  # [N] sum_c |p_i(c) - p(c)|, 0 to 2; None without classes
    features: Features | None  # of the clients that are looked at; None where there are no numbers to compare


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
    past, looks, diverged = nothing(job.problem.roster.n), [], None
    if state is None:
        state = start(job)
    else:
        for t in range(state.round):
            past = extended(past, job, plan_of(job, state._replace(round=t)))
    while True:
        if not bool(torch.isfinite(state.server.x).all()):
            diverged = state.round
            break
        if state.round in at:
            looks.append(look(job, state, ids))
        if state.round >= at[-1]:
            break
        past = extended(past, job, plan_of(job, state))
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
    data, between = supervised(job.problem), None
    if data is not None and len(data.x) and data.x[0:1].dtype.is_floating_point:
        picked = [job.problem.objective.samples(int(i))[:MOST_SAMPLES] for i in ids]
        owner = np.repeat(np.arange(len(ids)), [len(part) for part in picked])
        where = torch.cat(picked)
        x = data.x[where].flatten(1).cpu().numpy()
        labels = data.y[where].cpu().numpy() if data.target == "class" else None
        between = features(x, owner, len(ids), labels)
    return Skew(roster.samples, None if counts is None else distance(counts), between)
