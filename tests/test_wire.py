"""The wire: server and clients that share nothing but bytes compute what `serial` computes, and survive what breaks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.algorithms import METHODS
from fedconcord.core import tree_leaves
from fedconcord.engines import Serial, Wire
from fedconcord.heterogeneity.schedule import Schedule
from fedconcord.heterogeneity.work import uniform
from fedconcord.problems import quadratics
from fedconcord.training import Job, State, advance, start

CPU = torch.device("cpu")
SCHEDULE = Schedule(seed=3, cohort=3, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2)


def job(name: str, **changes: Any) -> Job:
    algorithm = METHODS[name]()
    schedule = replace(SCHEDULE, **changes)
    if algorithm.needs_everyone:
        schedule = replace(schedule, cohort=7)
    problem = quadratics(1, 7, torch.float64, CPU, dim=6, blocks=5)
    problem.x0 = torch.linspace(-1, 1, 6, dtype=torch.float64)
    return Job(problem, algorithm, schedule, engine=Serial())


def run(job: Job, rounds: int) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


def far(a: Any, b: Any) -> float:
    pairs = zip(tree_leaves(a).values(), tree_leaves(b).values(), strict=True)
    return max((float((x - y).abs().max() / (1 + y.abs().max())) for x, y in pairs if x.numel()), default=0.0)


@pytest.mark.parametrize("name", METHODS)
def test_without_faults_it_is_the_serial_engine_to_the_byte(name: str) -> None:
    here = job(name)
    there = replace(here, engine=Wire())
    want, got = run(here, 6), run(there, 6)
    assert far(got.server, want.server) < 1e-12
    everyone = np.arange(7)
    assert far(got.store.gather(everyone), want.store.gather(everyone)) < 1e-12
    assert got._replace(server=(), store=()) == want._replace(server=(), store=())  # type: ignore[arg-type]
    seen = there.engine.report(got.store)
    assert (seen["payload_down"], seen["payload_up"]) == (want.bytes_down, want.bytes_up)
    assert min(seen["framing_down"], seen["framing_up"]) > 0
    assert not any(seen[name] for name in ("refused", "lost", "resent_down", "resent_up", "clients_lost"))
