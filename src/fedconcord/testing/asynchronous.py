"""Conformance checks for rounds that wait for nobody: `check_asynchronous(factory)`.

accepted    `phases.asynchronous` says that it runs so, and the clock takes it: replies are damped by their age where it
            says damped, and as they are where it says undamped
rounds      equal times with as many clients at work as an update has replies are the rounds that wait: the same bits of
            server and rows, the same bytes and gradients, on both engines
engines     stacked = serial to 1e-12, with replies that are late, lost and refused
sums        what the server keeps of all clients' rows is what `sums` says, to 1e-12 at every update
exact       it reaches the optimum to 1e-8 where clients differ in data, speed and work (only where that is claimed)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.participation import dropout
from fedconcord.federation.participation.clock import Device
from fedconcord.federation.participation.events import Clock, poly
from fedconcord.federation.participation.work import fixed
from fedconcord.method.contract import Tree, rng, weights
from fedconcord.testing.bench import SEED, Bench, Factory, all_rows, run
from fedconcord.testing.check import run_check
from fedconcord.testing.compare import fail, far, first_difference

Sums = Callable[[Tree, Tree, Tensor], tuple[Tensor, Tensor]]
"""(server, all clients' rows, p [N]) -> what the server keeps, and what it should be of the rows, [d] each."""

CLIENTS, BUFFER = 8, 3


def check_asynchronous(
    factory: Factory, *, exact: bool = False, sums: Sums | None = None, lr: float = 0.1, updates: int = 500
) -> float:
    """Run every check on a method: eight clients on quadratics that differ, whose times differ 1 to 8.

    Args:
        factory: makes the method; called anew by every check.
        exact: whether it claims the optimum, whoever replies how often.
        sums: what its server keeps of its clients' rows, if anything.
        lr: local step size; smaller where the method's penalty makes the default diverge.
        updates: of the server's model, to the optimum.

    Returns:
        How far from the optimum it ends, ||x - x*||: where it is not exact, its bias.

    Raises:
        CheckFailedError: at the first check that fails.
    """
    bench = Bench(factory, BUFFER, CLIENTS, lr, torch.device("cpu"))
    off = [0.0]
    for name, check in (
        ("accepted", _accepted),
        ("rounds", _rounds),
        ("engines", _engines),
        ("sums", partial(_sums, sums=sums)),
        ("exact", partial(_exact, claims=exact, updates=updates, off=off)),
    ):
        run_check(name, check, bench)
    return off[0]


def _unequal(seed: int, wave: int, client: int) -> Device:
    """1 to 8 seconds a step, and half as much again or less from dispatch to dispatch."""
    return Device(
        1.35**client * (1 + rng.generator(seed, rng.Purpose.DEVICE, wave, client).random() / 2), 1e9, 1e9, 0.1
    )


def _job(bench: Bench, engine: Engine | None = None, batch_size: int | None = 2) -> Job:
    """Six of the clients at work; a tenth of the replies is lost, and those that are very old are refused."""
    one = bench.job(engine, batch_size=batch_size)
    staleness = poly(0.5) if one.algorithm.phases.asynchronous == "damped" else None
    clock = Clock(CLIENTS - 2, staleness=staleness, max_staleness=12)
    schedule = replace(one.schedule, devices=_unequal, clock=clock, dropout=dropout.fixed(0.1))  # type: ignore[type-var]
    return replace(one, schedule=schedule)


def _accepted(bench: Bench) -> None:
    if bench.algorithm().phases.asynchronous is None:
        fail("phases.asynchronous damped or undamped", "None, which is for methods that need rounds")
    if reason := next(iter(reasons(_job(bench))), None):
        fail("a method that asynchronous rounds take", reason)


def _rounds(bench: Bench) -> None:
    for engine in (Serial(), Stacked(None)):
        waits = bench.job(engine, work=fixed(3))
        schedule = replace(waits.schedule, devices=lambda *key: Device(1.0, math.inf, math.inf, 0.0))  # type: ignore[type-var]
        waits = replace(waits, schedule=schedule)
        clock = Clock(BUFFER, staleness=_job(bench).schedule.clock.staleness)  # type: ignore[attr-defined]
        free = replace(waits, schedule=replace(schedule, clock=clock))  # type: ignore[type-var]
        want, got = run(waits, 8), run(free, 8)
        if difference := first_difference(want.server, got.server, "server") or first_difference(
            all_rows(waits, want), all_rows(free, got), "row"
        ):
            fail("the bits of rounds that wait where all times are equal", difference)
        if _counts(want) != _counts(got):
            fail(f"(bytes up, bytes down, gradients) {_counts(want)} as in rounds that wait", f"{_counts(got)}")


def _engines(bench: Bench) -> None:
    want = run(_job(bench, Serial()), 20)
    for chunk in (None, 2):
        job = _job(bench, Stacked(chunk))
        got = run(job, 20)
        off = far(got.server, want.server, "server") or far(all_rows(job, got), all_rows(job, want), "row")
        if off is not None:
            fail(f"stacked (chunk {chunk}) = serial", off)
        if _counts(want) != _counts(got):
            fail(f"(bytes up, bytes down, gradients) {_counts(want)} as serial", f"{_counts(got)}")


def _sums(bench: Bench, sums: Sums | None) -> None:
    job = _job(bench, Stacked(None))
    state, p = start(job), weights.objective(job.algorithm.weights, job.problem.roster.sizes)
    for _ in range(30 if sums is not None else 0):
        state = advance(job, state)
        assert sums is not None
        if off := far(*sums(state.server, all_rows(job, state), torch.as_tensor(p)), "the server's sum"):
            fail(f"what the server keeps as the sum over rows after update {state.round}", off)


def _exact(bench: Bench, claims: bool, updates: int, off: list[float]) -> None:
    job = _job(bench, Stacked(None), None)
    p = weights.objective(job.algorithm.weights, job.problem.roster.sizes)
    x = job.algorithm.models(run(job, updates).server)
    off[0] = float((next(iter(x.values())) - bench.quadratics().optimum(p)).norm())
    if claims and not off[0] < 1e-8:
        fail(f"the optimum to 1e-8 after {updates} updates, as claimed", f"{off[0]:.1e} from it at seed {SEED}")


def _counts(state: State) -> tuple[int, int, int]:
    return state.bytes_up, state.bytes_down, state.gradient_steps
