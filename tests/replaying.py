"""Runs without rounds once more, from the orders that ended: by the driver, with plans that are made here."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.execution.engines import Serial, run_round
from fedconcord.execution.job import Job, start
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Orders, Plan, weights


class End(NamedTuple):
    """What became of orders."""

    client: int
    wave: int  # the round of the client's draws
    version: int  # of the model that they came with
    replied: bool


def rows_of(path: Path) -> list[dict[str, str]]:
    """A trace.csv."""
    with path.open() as file:
        return list(csv.DictReader(file))


def replayed(one: Job, ends: Iterable[End], rounds: int) -> tuple[Any, list[Plan]]:
    """The server of the simulation, by the serial engine, after so many updates of these replies in this order."""
    schedule = one.schedule
    assert isinstance(schedule, Schedule)
    assert schedule.clock is not None
    state, roster, versions, plans = start(one), one.problem.roster, dict[int, Any](), list[Plan]()
    server, buffer, clock = state.server, list[End](), schedule.clock

    def orders(client: int, round: int) -> Orders:
        return schedule.orders(one.algorithm, int(round), int(client), int(roster.samples[client]))

    for end in ends:
        if len(plans) == rounds:
            break
        t = len(plans)
        versions[t] = one.algorithm.broadcast(server)
        if not end.replied or (clock.max_staleness is not None and t - end.version > clock.max_staleness):
            continue
        buffer.append(end)
        if len(buffer) < schedule.cohort:
            continue
        ids, waves, old = (np.array(column) for column in zip(*sorted(end[:3] for end in buffer), strict=True))
        assert len(set(ids)) == len(ids)
        p = weights.objective(one.algorithm.weights, roster.sizes)[ids]
        damping = (1.0 + t - old) ** -0.5 if clock.staleness is not None else np.ones(len(ids))
        steps = np.array([orders(*pair).steps for pair in zip(ids, waves, strict=True)])
        lrs = np.array([orders(*pair).lr for pair in zip(ids, old, strict=True)])
        w, lr, seed = p / p.sum() * damping, orders(0, t).lr, schedule.seed
        plan = Plan(t, ids, steps, w, p, p * np.nan, lr, seed, wave=waves, version=old)
        plan = plan._replace(lrs=lrs, damping=damping, coin=schedule._coin(t))
        server = run_round(Serial(), one.problem, one.assignment, server, state.store, plan, versions).server
        plans, buffer = [*plans, plan], []
    return server, plans
