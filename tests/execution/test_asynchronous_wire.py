"""Asynchronous rounds over the wire: the messages of a clock, against the serial engine's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Engine, Serial, Wire
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.execution.messages.link import Faults
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.clock import Device
from fedconcord.federation.participation.dropout import fixed as losing
from fedconcord.federation.participation.events import Clock, poly
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, tree_leaves, weights
from table import TABLE

CLIENTS = 8
OTHERS = {"fedadmm": {"form": "paper", "server_lr": "participation"}}


def method_of(name: str) -> Algorithm:
    """With the options that it takes without rounds."""
    return METHODS[name](**(OTHERS.get(name) or TABLE[name].options))


WITHOUT_ROUNDS = [
    name for name in METHODS if method_of(name).phases.asynchronous and method_of(name).client_model is None
]
FAULTS = Faults(loss=0.1, duplicate=0.1, delay=0.1, corrupt=0.1, restart=0.1, server_restart=0.05)


def unequal(seed: int, wave: int, client: int) -> Device:
    """Jobs of 1 to 11 seconds a step, times 0.6 to 1.4 from dispatch to dispatch."""
    jitter = np.random.default_rng((wave, client)).uniform(0.6, 1.4)
    return Device(1.4**client * jitter, np.inf, np.inf, 0.0)


def job(method: str, engine: Engine, lr: float = 0.05) -> Job:
    """Six of eight clients at work, updates of two; replies are lost, refused and damped."""
    algorithm = method_of(method)
    damping = poly(0.5) if algorithm.phases.asynchronous == "damped" else None
    clock = Clock(6, staleness=damping, max_staleness=4)
    draws = {"work": uniform(2, 6), "unit": "steps", "batch_size": 2, "devices": unequal, "dropout": losing(0.2)}
    schedule = Schedule(seed=1, cohort=2, lr=lr, clock=clock, **draws)  # type: ignore[arg-type]
    problem = quadratics(3, CLIENTS, torch.float64, torch.device("cpu"), dim=3, blocks=6, condition=3.0)
    return Job(problem, algorithm, schedule, engine=engine)


def after(some: Job, updates: int, state: State | None = None) -> State:
    state = start(some) if state is None else state
    while state.round < updates:
        state = advance(some, state)
    return state


def same_bits(one: State, other: State) -> None:
    """Of the server and of every row."""
    held = other.store.ids()
    for ours, theirs in ((one.server, other.server), (one.store.gather(held), other.store.gather(held))):
        mine, wanted = tree_leaves(ours), tree_leaves(theirs)
        assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("method", WITHOUT_ROUNDS)
def test_frames_carry_what_serial_computes_to_the_bit_and_the_byte(method: str) -> None:
    here, there = (after(job(method, engine), 25) for engine in (Wire(), Serial()))
    assert here[3:7] == there[3:7]
    same_bits(here, there)


def test_with_every_fault_the_optimum_is_reached_and_the_sum_is_that_of_the_rows() -> None:
    one = job("scaffold", Wire(FAULTS, 3, 5))
    one = replace(one, schedule=replace(one.schedule, batch_size=None))  # type: ignore[type-var]
    state = after(one, 900)
    assert isinstance(one.problem, Quadratic)
    p = weights.objective(one.algorithm.weights, one.problem.roster.sizes)
    rows = state.store.gather(np.arange(CLIENTS))
    assert float((state.server.c - torch.as_tensor(p) @ rows.c).abs().max()) < 1e-13
    assert float((state.server.x - one.problem.optimum(p)).norm()) < 1e-8


def test_a_run_over_a_bad_wire_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    one = job("afedpd_share", Wire(FAULTS, 3, 5))
    whole, half = after(one, 20), after(one, 9)
    save(one, half, tmp_path / "state")
    again = job("afedpd_share", Wire(FAULTS, 3, 5))
    same_bits(after(again, 20, load(again, tmp_path / "state")), whole)
