"""What a run's rounds did by client: who took part, and when last; what it computed; how long it took and waited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconcord.analysis.surrogate import schedule_of
from fedconcord.core import Plan
from fedconcord.federation import clock
from fedconcord.jobs import Job


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
