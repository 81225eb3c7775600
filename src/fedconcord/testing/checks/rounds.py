"""Whole rounds: other clients, orders, engines, absent clients, an interruption, another origin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, Planner, State, advance, checkpoint, start
from fedconcord.federation.objectives import Quadratic
from fedconcord.federation.participation.participation import View
from fedconcord.federation.participation.work import fixed
from fedconcord.method.contract import Algorithm, Draws, Plan, Problem, Roster, Tree, tree_leaves
from fedconcord.testing.bench import DIM, UNEQUAL, Bench, all_rows, observed, plan_of, run
from fedconcord.testing.compare import MismatchError, clone, fail, far, first_difference, leaves


def isolation(bench: Bench) -> None:
    if bench.algorithm().phases.prelude is not None:
        return  # its point is that clients meet others' gradients within the round
    job = bench.job(Stacked(None))
    problem = job.problem
    assert isinstance(problem, Quadratic)
    before = run(job, 2)
    ids = plan_of(job, 2).ids

    def sent_and_kept(where: Quadratic) -> dict[int, Tree]:
        rows: dict[int, Tree] = {}

        def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            result = f(*args)
            if name == "finish":
                size = len(args[3].id)
                each = [(path, v) for path, v in leaves(result, "finish") if isinstance(v, Tensor) and len(v) == size]
                for k, i in enumerate(args[3].id[:, 0].tolist()):
                    rows[i] = {path: leaf[k] for path, leaf in each}
            return result

        advance(observed(replace(job, problem=where), watch), _fork(job, before))
        return rows

    usual = sent_and_kept(problem)
    blocks = len(problem.b) // bench.clients
    for i in ids.tolist():
        mine = torch.zeros(bench.clients, dtype=torch.bool, device=bench.device)
        mine[i] = True
        objective_blocks = mine.repeat_interleave(blocks)
        H = torch.where(objective_blocks[:, None, None], problem.H, 0.5 * problem.H)
        b = torch.where(objective_blocks[:, None], problem.b, 1.0 - problem.b)
        other = Quadratic(
            H.reshape(bench.clients, blocks, DIM, DIM), b.reshape(bench.clients, blocks, DIM), problem.sizes, problem.x0
        )
        off = far(usual[i], sent_and_kept(other)[i], f"client {i}")
        if off is not None:
            fail("messages and rows that do not depend on other clients' data in the same round", off)


def _fork(job: Job, state: State) -> State:
    """A copy of the state that a round may write to."""
    fresh, exported = start(job), state.store.export()
    fresh.store.restore(
        {name: leaf if name == "ids" else leaf.to(job.problem.objective.device) for name, leaf in exported.items()}
    )
    return state._replace(server=clone(state.server), store=fresh.store)


def order(bench: Bench) -> None:
    for engine in (Stacked(None), Serial()):
        for work in (fixed(3), UNEQUAL):  # equal steps: nothing else sorts the clients
            job = bench.job(engine, work=work)
            shuffled = replace(job, schedule=_Shuffled(job.schedule))
            one, two = run(job, 4), run(shuffled, 4)
            off = far(one.server, two.server, "server") or far(all_rows(job, one), all_rows(job, two), "row")
            if off is not None:
                fail("the same server and rows whatever the order of the cohort", off)


class _Shuffled(NamedTuple):
    """The same plans with the clients in another order."""

    inner: Planner

    @property
    def seed(self) -> int:
        return self.inner.seed

    @property
    def cohort(self) -> int:
        return self.inner.cohort

    @property
    def draws(self) -> Draws:
        return self.inner.draws

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        return self.inner.refuse(algorithm, n)

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        plan = self.inner.plan(round, algorithm, roster, view)
        order = np.roll(np.arange(len(plan.ids))[::-1], round)
        arrays: dict[str, Any] = {
            name: value[order] for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
        }
        return plan._replace(**arrays)


def engines(bench: Bench) -> None:
    settings: list[tuple[str, Problem, int | None]] = [
        ("quadratics, mini-batches", bench.quadratics(), 2),
        ("quadratics, full gradients", bench.quadratics(), None),
    ]
    if bench.algorithm().step.hessian_at is None:  # Newton methods refuse softmax regression's singular Hessian
        settings.append(("logistic regression", bench.logistic(), 4))
    for where, problem, batch_size in settings:
        job = bench.job(Serial(), problem, batch_size=batch_size)
        want = run(job, 4)
        for chunk in (None, 1, 2):
            try:
                got = run(replace(job, engine=Stacked(chunk)), 4)
            except Exception as error:
                raise MismatchError(
                    "the stacked engine to run what the serial engine runs", f"{type(error).__name__}: {error}"
                ) from error
            off = far(got.server, want.server, "server") or far(all_rows(job, got), all_rows(job, want), "row")
            if off is not None:
                fail(f"stacked (chunk {chunk}) = serial on {where}", off)
            counted = [(s.bytes_up, s.bytes_down, s.gradient_steps) for s in (got, want)]
            if counted[0] != counted[1]:
                fail(f"(bytes up, bytes down, gradients) {counted[1]} as serial on {where}", f"{counted[0]}")


def absent(bench: Bench) -> None:
    for engine in (Serial(), Stacked(None)):
        job = bench.job(engine)
        state = start(job)
        ids = set(state.store.ids().tolist())
        everyone = np.arange(bench.clients)
        for round in range(5):
            plan = plan_of(job, round)
            absent = np.setdiff1d(everyone, plan.ids)
            before = clone(state.store.gather(absent)) if len(absent) else ()
            state = advance(job, state)
            after = state.store.gather(absent) if len(absent) else ()
            difference = first_difference(before, after, "row")
            if difference is not None:
                fail("rows of absent clients as they were", difference)
            ids |= set(plan.ids.tolist()) if tree_leaves(state.store.template) else set()
            if set(state.store.ids().tolist()) != ids:
                fail(f"rows of the clients seen, {sorted(ids)}", f"{state.store.ids().tolist()}")


def resume(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        whole, first = bench.job(Stacked(2)), bench.job(Stacked(2))
        want = run(whole, 10)
        checkpoint.save(first, run(first, 5), path)
        second = bench.job(Stacked(2))
        got = run(second, 5, checkpoint.load(second, path))
    difference = (
        first_difference(want.server, got.server, "server")
        or first_difference(all_rows(whole, want), all_rows(second, got), "row")
        or first_difference(want._replace(server=(), store=()), got._replace(server=(), store=()), "counters")  # type: ignore[arg-type]
    )
    if difference is not None:
        fail("10 rounds = 5, a checkpoint, and 5, bit for bit", difference)


def origin(bench: Bench) -> None:
    job = bench.job()
    if job.algorithm.needs.loss:  # which differ by a constant there
        return
    problem = job.problem
    assert isinstance(problem, Quadratic)
    shift = torch.linspace(1.0, -2.0, DIM, dtype=problem.dtype, device=problem.device)
    blocks = len(problem.b) // bench.clients
    moved = Quadratic(
        problem.H.reshape(bench.clients, blocks, DIM, DIM),
        (problem.b + problem.H @ shift).reshape(bench.clients, blocks, DIM),
        problem.sizes,
        problem.x0 + shift,
    )
    there = replace(job, problem=moved)
    here = _models(job, run(job, 6))
    models = _models(there, run(there, 6))
    off = far({name: x - shift for name, x in models.items()}, here, "model", 1e-9)
    if off is not None:
        fail("iterates that move with the origin of the parameter space", off)


def _models(job: Job, state: State) -> dict[str, Tensor]:
    return {"x": state.server.x} | dict(job.algorithm.models(state.server))
