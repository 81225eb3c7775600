"""What the bundle says of itself: the population it accepts, the form of its states, what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedconcord.execution.job import advance, start
from fedconcord.method.contract import Population, Tree, weights
from fedconcord.method.step import solver
from fedconcord.method.step.solver import Solver
from fedconcord.testing.bench import DIM, Bench, all_rows, observed, run
from fedconcord.testing.compare import clone, fail, first_difference, kind, kinds, leaves


def contract(bench: Bench) -> None:
    job = bench.job()
    p = weights.objective(job.algorithm.weights, job.problem.roster.sizes)
    population = Population(bench.clients, torch.as_tensor(p, device=bench.device))
    for reason in (
        job.algorithm.refuse(population, job.schedule.cohort),
        solver.refuse(Solver(), job.algorithm),
        job.schedule.refuse(job.algorithm, bench.clients),
    ):
        if reason is not None:
            fail(f"a method that accepts {bench.clients} clients, cohorts of {job.schedule.cohort}, plain SGD", reason)


def state(bench: Bench) -> None:
    job = bench.job()
    needs = job.algorithm.needs._replace(weight=True)  # whether it should is the next check's
    job = replace(job, algorithm=replace(job.algorithm, needs=needs))
    like: dict[str, dict[str, str]] = {}
    whose = {"init": "server", "update": "server", "prologue.update": "server"}
    whose |= {"init_client": "row", "finish": "row", "prologue.row": "row"}

    def compare(owner: str, name: str, tree: Tree, want: dict[str, str]) -> None:
        got = kinds(tree, owner)
        for path in sorted(got.keys() | want.keys()):
            if got.get(path) != want.get(path):
                fail(f"{path} {want.get(path, 'absent')} from {name} too", f"{got.get(path, 'nothing')}")

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in whose:
            owner, tree = whose[name], result[1] if name == "finish" else result
            for path, leaf in leaves(tree, owner):
                if not isinstance(leaf, Tensor):
                    fail(f"tensors only in the {owner}'s state, as a checkpoint keeps", f"{path} is {kind(leaf)}")
                if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                    fail("finite numbers (a smaller lr?)", f"{path} with inf or nan")
            compare(owner, name, tree, like.setdefault(owner, kinds(tree, owner)))
        elif name == "settle.row":
            compare("row", name, result, kinds(args[1], "row"))
        return result

    watched = observed(job, watch)
    state = start(watched)
    for _ in range(6):
        found = getattr(state.server, "x", None)
        if not isinstance(found, Tensor) or found.shape != (DIM,) or found.dtype != job.problem.objective.dtype:
            fail(f"server.x as {job.problem.objective.dtype} [{DIM}]", kind(found))
        models = job.algorithm.models(state.server)
        if not models or any(not isinstance(x, Tensor) or x.shape != (DIM,) for x in models.values()):
            fail(f"models that are vectors [{DIM}], at least one", f"{ {k: kind(x) for k, x in models.items()} }")
        state = advance(watched, state)
    client_model, rows = bench.algorithm().client_model, all_rows(job, state)
    if client_model is not None:
        before, found = clone(rows), client_model(rows, next(iter(models.values())))
        if not isinstance(found, Tensor) or found.shape != (bench.clients, DIM):
            fail(f"a model a row from own, [{bench.clients}, {DIM}]", kind(found))
        if (changed := first_difference(rows, before, "row")) is not None:
            fail("own to leave its rows as they are", changed)


def needs(bench: Bench) -> None:
    job = bench.job()
    x = job.problem.init(job.schedule.seed)
    first, other = (clone(job.algorithm.init_client(at)) for at in (x, x + 1.0))
    moved = first_difference(other, first, "row")
    if moved is not None and not job.algorithm.needs.x0:
        fail("a first row that is the same for every x^0, or needs.x0", moved)
    if moved is None and job.algorithm.needs.x0:
        fail("a first row that depends on x^0, as needs.x0 says", "the same first row")
    using: list[str] = []

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name not in ("start", "finish"):
            return f(*args)
        client = args[-1]
        blind, weighted = (f(*args[:-1], client._replace(p=torch.full_like(client.p, p))) for p in (torch.nan, 0.5))
        pairs = zip(leaves(blind, name), leaves(weighted, name), strict=True)
        tensors = [(a, b) for (_, a), (_, b) in pairs if isinstance(a, Tensor)]
        if any(bool((a.isnan() & ~b.isnan()).any()) for a, b in tensors):
            using.append(name)
        return weighted

    run(observed(job, watch), 3)
    if using and not job.algorithm.needs.weight:
        fail("client.p in methods with needs.weight alone", f"client.p in {using[0]}")
    if job.algorithm.needs.weight and not using:
        fail("client.p in start or finish, as needs.weight says", "no use of it")
