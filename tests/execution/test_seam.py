"""The seam between a client and the rest: a client that stands alone computes what it computes among others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, small
from test_two_block import clusters, own_problem
from test_two_block import small as semi
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.data.offline import synthetic
from fedconcord.federation.objectives import PROBLEMS, Regularised, Supervised, quadratics
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.participation import availability, clock, dropout, sampling
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Client, Done, Objective, Problem, Tree, orders_of, tree_leaves
from fedconcord.method.step.step import ask, client_step
from fedconcord.support.errors import UserError
from table import TABLE, make

CPU = torch.device("cpu")


def streamed(patch: pytest.MonkeyPatch) -> Streamed:
    """Five clients, of which three are judged."""
    patch.setitem(synthetic.__globals__, "IN_MEMORY", 0)
    patch.setitem(synthetic.__globals__, "JUDGED", 3)
    data = synthetic(Path(), 219, clients=5)
    assert data.streams is not None
    assert data.natural is not None
    return Streamed(Supervised(lambda: nn.Linear(60, 10), data, data.natural, dtype=torch.float64), data.streams)


FEDERATIONS: dict[str, Callable[[pytest.MonkeyPatch], Problem]] = {
    "network": lambda patch: small(),
    "kernel": lambda patch: small("dense"),
    "streamed": streamed,
    "quadratic": lambda patch: quadratics(0, 8, torch.float64, CPU, dim=4, blocks=3),
    "convex": lambda patch: PROBLEMS["ridge_diabetes"](0, 5, torch.float64, CPU),
    "matrix": lambda patch: PROBLEMS["low_rank"](0, 5, torch.float64, CPU, dim=3, rank=1, samples=7),
    "regularised": lambda patch: Regularised(small("dense"), l1(0.1)),
    "semi-supervised": lambda patch: semi(),
    "clustering": lambda patch: clusters(),
    "stated": lambda patch: own_problem(),
}


@pytest.fixture(params=FEDERATIONS)
def federation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Problem:
    return FEDERATIONS[request.param](monkeypatch)


def held(thing: Any, seen: set[int]) -> Iterator[Tensor | np.ndarray]:
    """The tensors and arrays that can be reached from an object."""
    if id(thing) in seen or isinstance(thing, type | ModuleType):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor | np.ndarray):
        yield thing
        return
    parts: list[Any] = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, dict):
        parts = list(thing.values())
    elif isinstance(thing, list | tuple | set):
        parts = list(thing)
    elif isinstance(thing, FunctionType):
        parts += [cell.cell_contents for cell in thing.__closure__ or ()]
    elif isinstance(thing, MethodType):
        parts = [thing.__self__, thing.__func__]
    for part in parts:
        yield from held(part, seen)


def same(a: Tree, b: Tree) -> None:
    left, right = tree_leaves(a), tree_leaves(b)
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert leaf.shape == right[name].shape, name
        assert torch.allclose(leaf, right[name], rtol=1e-12, atol=1e-14), name


def test_a_client_alone_has_the_same_objective(federation: Problem) -> None:
    whole = federation.objective
    x = federation.init(0) + 0.1 * torch.randn(whole.dim, dtype=whole.dtype, generator=torch.manual_seed(0))
    for place in range(federation.roster.n):
        alone = whole.alone(place)
        assert alone.offsets.tolist() == [0, federation.roster.samples[place]]
        assert (alone.dim, alone.dtype, alone.sample_size) == (whole.dim, whole.dtype, whole.sample_size)
        assert (alone.accumulate is None, alone.hessian is None) == (whole.accumulate is None, whole.hessian is None)
        assert alone.regulariser is whole.regulariser
        pairs = [(whole, alone)]
        if whole.private is not None:
            assert alone.private is not None
            assert torch.equal(alone.private.first, whole.private.first)
            y, at, zero = whole.private.first[None], np.array([place]), np.array([0])
            moved = whole.private.step(x, y, at)
            assert torch.allclose(alone.private.step(x, y, zero), moved, rtol=1e-13)
            pairs.append((whole.private.objective(moved, at), alone.private.objective(moved, zero)))
        for among, own in pairs:
            compare(among, own, place, x)


def compare(among: Objective, own: Objective, place: int, x: Tensor) -> None:
    """Values and derivatives of the client at this place, and of the same alone, on some and on all of its samples."""
    all_of, mine = among.samples(place), own.samples(0)
    assert len(all_of) == len(mine) > 0
    for few in (slice(0, 1), slice(None)):
        same(own.gradient(x, mine[few]), among.gradient(x, all_of[few]))
        same(own.loss(x, mine[few]), among.loss(x, all_of[few]))
    weight = torch.linspace(1.0, 2.0, len(mine), dtype=x.dtype)[None] / len(mine)
    for held_weight in (None, weight):
        same(own.gradients(x[None], mine[None], held_weight), among.gradients(x[None], all_of[None], held_weight))
    if own.hessian is not None and among.hessian is not None and own.dim <= 100:
        same(own.hessian(x, mine[:2]), among.hessian(x, all_of[:2]))
    if own.accumulate is not None and among.accumulate is not None:
        ours, theirs = x.clone()[None], x.clone()[None]
        own.accumulate(ours, 0.5, -2.0, x[None], mine[None], None)
        among.accumulate(theirs, 0.5, -2.0, x[None], all_of[None], None)
        same(ours, theirs)


def test_a_client_alone_holds_no_other_clients_samples(federation: Problem) -> None:
    total = int(federation.roster.samples.sum())
    everything = list(held(federation, set()))
    whole = [values for values in everything if values.ndim and len(values) == total]
    shared = {values.untyped_storage().data_ptr() for values in whole if isinstance(values, Tensor)}
    assert isinstance(federation, Streamed) or shared  # the walk finds samples
    place = int(federation.roster.samples.argmin())
    own = list(held(federation.objective.alone(place), set()))
    longest = {len(values) for values in own if values.ndim}
    assert federation.roster.samples[place] in longest
    assert total not in longest
    for values in own:
        if isinstance(values, Tensor):
            assert values.untyped_storage().data_ptr() not in shared  # a copy


@pytest.mark.parametrize("name", METHODS)
def test_a_client_alone_takes_the_serial_engines_step(name: str) -> None:
    """From the broadcast, its own state and its orders it makes the same message and the same new state."""
    problem: Problem = quadratics(0, 8, torch.float64, CPU) if name == "fedhybrid" else small()
    algorithm = make(name)
    job = Job(problem, algorithm, replace(SCHEDULE, cohort=8 if TABLE[name].everyone else 5), engine=Serial())
    state = advance(job, advance(job, start(job)))
    kept: dict[int, tuple[Tree, Tree, Tree]] = {}

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(down, row, done, client)
        kept[int(client.id)] = (down, up, new)
        return up, new

    plan, broadcast = plan_of(job, state), algorithm.broadcast(state.server)
    rows = state.store.gather(plan.ids)
    before = [row_at(rows, k) for k in range(len(plan.ids))]
    advance(replace(job, algorithm=replace(algorithm, finish=finish)), state)
    assert sorted(kept) == plan.ids.tolist()
    for k, i in enumerate(plan.ids.tolist()):
        down, up, new = kept[i]
        objective, orders = problem.objective.alone(i), orders_of(plan, k, algorithm)
        asks = algorithm.phases.prelude is not None and algorithm.needs.full_gradient
        gradient = ask(objective, 0, broadcast, before[k]) if asks else None
        step = client_step(job.assignment, objective, 0, down, before[k], orders, gradient)
        same(step.up, up)
        same(step.row, new)


def row_at(rows: Tree, k: int) -> Tree:
    """One client's row of a stack."""
    if isinstance(rows, tuple):
        parts = [row_at(leaf, k) for leaf in rows]
        return type(rows)(*parts) if hasattr(rows, "_fields") else tuple(parts)
    return rows[k].clone()


LEAVES_OUT: dict[str, dict[str, Any]] = {
    "a cohort of 7": {"cohort": 7},
    "a cohort of 3": {"cohort": 3, "sampler": sampling.cyclic()},
    "the sampling": {"sampler": sampling.bernoulli(0.9)},
    "with replacement": {"sampler": sampling.with_replacement()},
    "dropout": {"dropout": dropout.fixed(0.1)},
    "availability": {"availability": availability.coins(0.5, 0.9)},
    "deadline": {"deadline": 1.0, "devices": clock.lognormal(0.5)},
}


@pytest.mark.parametrize("why", LEAVES_OUT)
@pytest.mark.parametrize("name", ["fedpd", "vrlsgd", "fedhybrid"])
def test_methods_that_need_everyone_refuse_what_leaves_some_out(name: str, why: str) -> None:
    job = Job(quadratics(0, 8, torch.float64, CPU), make(name), Schedule(0, 8, 0.1, fixed(1), "steps"))
    cause = "the sampling" if why == "with replacement" else why
    with pytest.raises(UserError, match=f"{name} needs all 8 clients in every round, and {cause} may leave") as refused:
        start(replace(job, schedule=replace(job.schedule, **LEAVES_OUT[why])))
    assert "\n" not in str(refused.value)
    assert advance(job, start(job)).round == 1


@pytest.mark.parametrize("engine", [Serial(), Stacked(2)])
def test_a_client_is_not_told_its_weight_unless_the_method_asks(engine: Serial | Stacked) -> None:
    told: list[Tensor] = []

    def watched(algorithm: Algorithm) -> Algorithm:
        def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
            told.append(client.p.reshape(-1))
            return algorithm.finish(down, row, done, client)

        return replace(algorithm, finish=finish)

    for name, asks in (("scaffold", False), ("losac", True)):
        told.clear()
        job = Job(small(), watched(make(name)), SCHEDULE, engine=engine)
        advance(job, start(job))
        assert torch.cat(told).isnan().tolist() == [not asks] * 5
