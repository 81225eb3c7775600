"""Conformance checks for methods: `check_algorithm(factory)` for all of them, `algorithm_checks` for one test each.

Every check runs the method on small problems (float64 quadratics and a logistic regression, clients of unequal sizes
and steps, absent clients unless the method refuses them) and fails with a `CheckFailedError` that names the check, what
was expected and what was found.

    contract    the factory gives an Algorithm that accepts the population
    state       the server has x [d]; states hold tensors only, finite, of one structure, shape and dtype in all rounds
    needs       `needs_x0` and `needs_p` say whether clients use the values of x^0 and their weight
    purity      the same inputs give the same outputs, twice, and the same job the same bits
    mutation    no function writes to its inputs
    broadcasting  given a stacked cohort, per-client results are stacked: [S, ...], scalars [S, 1]
    isolation   what a client sends and keeps does not depend on other clients' data in the same round
    order       the server does not depend on the order of the cohort
    messages    messages and states are tensors (what is broadcast may hold numbers), survive being written, and are
                counted to the byte
    engines     stacked = serial to 1e-12, whatever the chunk, on every problem
    absent      rows of clients that do not take part keep their bits, and none is made
    resume      10 rounds = 5, a checkpoint, a method built anew, and 5 more, bit for bit
    dtype       nothing becomes float64 in a float32 job
    device      functions of a round work on tensors of any device and read no value back to the host
    origin      moving the origin of the parameter space moves the iterates along (skip it for a method with its own
                regulariser; most others that fail average models by weights whose sum is not 1)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fedconcord.basis.errors import unknown
from fedconcord.core import (
    Algorithm,
    Draws,
    Plan,
    Population,
    Problem,
    Roster,
    Tree,
    cohort_of,
    rng,
    space_of,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from fedconcord.data import Dataset
from fedconcord.engines import Engine, Serial, Stacked
from fedconcord.engines.base import joining
from fedconcord.federation import weights
from fedconcord.federation.participation import View
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import Work, fixed, uniform
from fedconcord.jobs import Job, Planner, State, advance, checkpoint, start
from fedconcord.local import solver
from fedconcord.local.solver import Solver
from fedconcord.problems import Quadratic, Supervised, quadratics

Factory = Callable[[], Algorithm]

SEED = 7
TOLERANCE = 1e-12  # between engines, relative to the largest entry
DIM = 4  # of the quadratics
UNEQUAL: Work = uniform(1, 4)  # steps


class CheckFailedError(AssertionError):
    """A method breaks the contract."""

    def __init__(self, check: str, expected: str, found: str) -> None:
        super().__init__(f"check {check!r}: expected {expected}; found {found}")
        self.check, self.expected, self.found = check, expected, found


def check_algorithm(
    factory: Factory,
    *,
    cohort: int | None = None,
    clients: int = 7,
    lr: float = 0.05,
    device: torch.device | str = "cpu",
    skip: Collection[str] = (),
) -> None:
    """Run every check on a method; returns if it passes all.

    Args:
        factory: makes the method; called anew by every check.
        cohort: clients of a round; 3, or all where the method refuses absent clients, if not given.
        clients: clients in all.
        lr: local step size; smaller where the method's penalty makes the default diverge.
        device: where the problems live.
        skip: names of checks to leave out.

    Raises:
        CheckFailedError: at the first check that fails.
        UserError: `skip` names no check.
    """
    for _, check in algorithm_checks(factory, cohort=cohort, clients=clients, lr=lr, device=device, skip=skip):
        check()


def algorithm_checks(
    factory: Factory,
    *,
    cohort: int | None = None,
    clients: int = 7,
    lr: float = 0.05,
    device: torch.device | str = "cpu",
    skip: Collection[str] = (),
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of `check_algorithm`, same arguments, as (name, call) pairs for a parametrised test.

    Raises:
        UserError: `skip` names no check.
    """
    for name in skip:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    bench = Bench(factory, cohort, clients, lr, torch.device(device))
    for name, check in CHECKS.items():
        if name not in skip:
            yield name, partial(_run, name, check, bench)


class _MismatchError(Exception):
    """What a check expected and found; `_run` adds the check's name."""


def _fail(expected: str, found: str) -> NoReturn:
    raise _MismatchError(expected, found)


def _run(name: str, check: Callable[[Bench], None], bench: Bench) -> None:
    try:
        check(bench)
    except _MismatchError as mismatch:
        raise CheckFailedError(name, *mismatch.args) from None
    except Exception as error:  # whatever the method raises is a finding
        raise CheckFailedError(name, "no error", f"{type(error).__name__}: {error}") from error


# -- what the checks run on ----------------------------------------------------------------------------------------


class Bench(NamedTuple):
    """The method under test and the size of its jobs."""

    factory: Factory
    cohort: int | None
    clients: int
    lr: float
    device: torch.device

    def algorithm(self) -> Algorithm:
        made = self.factory()
        if not isinstance(made, Algorithm):
            _fail("an Algorithm from the factory", f"{type(made).__name__}")
        return made

    def quadratics(self, dtype: torch.dtype = torch.float64) -> Quadratic:
        """Clients with at least as many samples as the method has blocks; it does not start at zero."""
        blocks = max(3, self.algorithm().blocks or 0)
        found = quadratics(SEED, self.clients, dtype, self.device, dim=DIM, blocks=blocks, condition=4.0)
        found.x0 = torch.linspace(-1.0, 1.0, DIM, dtype=dtype, device=self.device)
        return found

    def logistic(self) -> Supervised:
        """Ridge-free logistic regression on clients of very unequal sizes."""
        draw = rng.generator(SEED, rng.Purpose.DATA)
        least = max(3, self.algorithm().blocks or 0)
        sizes = least + np.arange(self.clients) * 2
        x = draw.standard_normal((int(sizes.sum()) + 4, 3)).astype(np.float32)
        y = draw.integers(0, 3, len(x))
        data = Dataset("normal", x[:-4], y[:-4], x[-4:], y[-4:], classes=3)
        parts = np.split(np.arange(len(x) - 4), np.cumsum(sizes)[:-1])
        return Supervised(lambda: nn.Linear(3, 3), data, parts, dtype=torch.float64, device=self.device)

    def job(
        self,
        engine: Engine | None = None,
        problem: Problem | None = None,
        work: Work = UNEQUAL,
        batch_size: int | None = 2,
    ) -> Job:
        problem = self.quadratics() if problem is None else problem
        algorithm = self.algorithm()
        cohort = self.cohort
        if cohort is None:
            p = weights.objective(algorithm.weights, problem.roster.sizes)
            population = Population(problem.roster.n, torch.as_tensor(p, device=self.device))
            cohort = min(3, self.clients)
            if algorithm.needs_everyone or algorithm.refuse(population, cohort) is not None:
                cohort = self.clients
        schedule = Schedule(SEED, cohort, self.lr, work, "steps", batch_size)
        return Job(problem, algorithm, schedule, engine=engine or Serial())


def _rounds(job: Job, rounds: int, state: State | None = None) -> State:
    state = start(job) if state is None else state
    for _ in range(rounds):
        state = advance(job, state)
    return state


def _plan(job: Job, round: int) -> Plan:
    return job.schedule.plan(round, job.algorithm, job.problem.roster)


def _all_rows(job: Job, state: State) -> Tree:
    return state.store.gather(np.arange(job.problem.roster.n))


def _models(job: Job, state: State) -> dict[str, Tensor]:
    return {"x": state.server.x} | dict(job.algorithm.models(state.server))


# -- comparing -----------------------------------------------------------------------------------------------------


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Leaves of tuples and mappings with a readable path."""
    if isinstance(tree, tuple):
        for field, part in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from _leaves(part, f"{name}.{field}")
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from _leaves(part, f"{name}.{key}")
    else:
        yield name, tree


def _clone(tree: Any, change: Callable[[Tensor], Tensor] = torch.clone) -> Any:
    """A deep copy; what is not a tensor, tuple or mapping is kept."""
    if isinstance(tree, tuple):
        parts = [_clone(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, Mapping):
        return {key: _clone(part, change) for key, part in tree.items()}
    return change(tree) if isinstance(tree, Tensor) else tree


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8)


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else f"{type(leaf).__name__} {leaf!r}"


def _kinds(tree: Tree, name: str) -> dict[str, str]:
    return {path: _kind(leaf) for path, leaf in _leaves(tree, name)}


def _difference(a: Any, b: Any, name: str) -> str | None:
    """The first leaf of two trees whose bits differ, in words, or None."""
    left, right = dict(_leaves(a, name)), dict(_leaves(b, name))
    if left.keys() != right.keys():
        return f"leaves {', '.join(left) or 'none'} and {', '.join(right) or 'none'}"
    for path, one in left.items():
        other = right[path]
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if one.dtype != other.dtype or one.shape != other.shape:
                return f"{path} as {_kind(one)} and as {_kind(other)}"
            if not torch.equal(_bits(one), _bits(other)):
                return f"{path} changed by {float((one.double() - other.double()).abs().max()):.1e}"
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            return f"{path} as {_kind(one)} and as {_kind(other)}"
        elif not callable(one) and one != other:
            return f"{path} as {one!r} and as {other!r}"
    return None


def _far(a: Any, b: Any, name: str, tolerance: float = TOLERANCE) -> str | None:
    """The first leaf of two trees that differs by more than the tolerance, in words, or None."""
    left, right = dict(_leaves(a, name)), dict(_leaves(b, name))
    if left.keys() != right.keys():
        return f"leaves {', '.join(left) or 'none'} and {', '.join(right) or 'none'}"
    for path, one in left.items():
        other = right[path]
        if one.shape != other.shape:
            return f"{path} as {_kind(one)} and as {_kind(other)}"
        if one.numel():
            off = float((one.double() - other.double()).abs().max()) / max(1.0, float(other.double().abs().max()))
            if not off <= tolerance:
                return f"{path} off by {off:.1e}"
    return None


Watch = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


def _watched(algorithm: Algorithm, watch: Watch) -> Algorithm:
    """The same method, every function f of the bundle called as watch(name, f, arguments)."""

    def wrap(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: watch(name, f, args)

    changes: dict[str, Any] = {}
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if callable(value):
            changes[field.name] = wrap(field.name, value)
        elif isinstance(value, tuple) and hasattr(value, "_replace"):  # prelude, prologue
            inner = zip(value._fields, value, strict=True)  # type: ignore[attr-defined]
            changes[field.name] = value._replace(
                **{name: wrap(f"{field.name}.{name}", f) for name, f in inner if callable(f)}
            )
    return replace(algorithm, **changes)


def _watch(job: Job, watch: Watch) -> Job:
    return replace(job, algorithm=_watched(job.algorithm, watch))


# -- the checks ----------------------------------------------------------------------------------------------------


def _contract(bench: Bench) -> None:
    job = bench.job()
    p = weights.objective(job.algorithm.weights, job.problem.roster.sizes)
    population = Population(bench.clients, torch.as_tensor(p, device=bench.device))
    for reason in (
        job.algorithm.refuse(population, job.schedule.cohort),
        solver.refuse(Solver(), job.algorithm),
        job.schedule.refuse(job.algorithm, bench.clients),
    ):
        if reason is not None:
            _fail(f"a method that accepts {bench.clients} clients, cohorts of {job.schedule.cohort}, plain SGD", reason)


def _state(bench: Bench) -> None:
    job = bench.job()
    job = replace(job, algorithm=replace(job.algorithm, needs_p=True))  # whether it should is the next check's
    like: dict[str, dict[str, str]] = {}
    whose = {"init": "server", "update": "server", "prologue.update": "server"}
    whose |= {"init_client": "row", "finish": "row", "prologue.row": "row"}

    def compare(owner: str, name: str, tree: Tree, want: dict[str, str]) -> None:
        got = _kinds(tree, owner)
        for path in sorted(got.keys() | want.keys()):
            if got.get(path) != want.get(path):
                _fail(f"{path} {want.get(path, 'absent')} from {name} too", f"{got.get(path, 'nothing')}")

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in whose:
            owner, tree = whose[name], result[1] if name == "finish" else result
            for path, leaf in _leaves(tree, owner):
                if not isinstance(leaf, Tensor):
                    _fail(f"tensors only in the {owner}'s state, as a checkpoint keeps", f"{path} is {_kind(leaf)}")
                if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                    _fail("finite numbers (a smaller lr?)", f"{path} with inf or nan")
            compare(owner, name, tree, like.setdefault(owner, _kinds(tree, owner)))
        elif name == "settle.row":
            compare("row", name, result, _kinds(args[1], "row"))
        return result

    watched = _watch(job, watch)
    state = start(watched)
    for _ in range(6):
        found = getattr(state.server, "x", None)
        if not isinstance(found, Tensor) or found.shape != (DIM,) or found.dtype != job.problem.objective.dtype:
            _fail(f"server.x as {job.problem.objective.dtype} [{DIM}]", _kind(found))
        models = job.algorithm.models(state.server)
        if not models or any(not isinstance(x, Tensor) or x.shape != (DIM,) for x in models.values()):
            _fail(f"models that are vectors [{DIM}], at least one", f"{ {k: _kind(x) for k, x in models.items()} }")
        state = advance(watched, state)


def _needs(bench: Bench) -> None:
    job = bench.job()
    x = job.problem.init(job.schedule.seed)
    first, other = (_clone(job.algorithm.init_client(at)) for at in (x, x + 1.0))
    moved = _difference(other, first, "row")
    if moved is not None and not job.algorithm.needs_x0:
        _fail("a first row that is the same for every x^0, or needs_x0", moved)
    if moved is None and job.algorithm.needs_x0:
        _fail("a first row that depends on x^0, as needs_x0 says", "the same first row")
    using: list[str] = []

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name not in ("start", "finish"):
            return f(*args)
        client = args[-1]
        blind, told = (f(*args[:-1], client._replace(p=torch.full_like(client.p, p))) for p in (torch.nan, 0.5))
        pairs = zip(_leaves(blind, name), _leaves(told, name), strict=True)
        tensors = [(a, b) for (_, a), (_, b) in pairs if isinstance(a, Tensor)]
        if any(bool((a.isnan() & ~b.isnan()).any()) for a, b in tensors):
            using.append(name)
        return told

    _rounds(_watch(job, watch), 3)
    if using and not job.algorithm.needs_p:
        _fail("client.p in methods with needs_p alone", f"client.p in {using[0]}")
    if job.algorithm.needs_p and not using:
        _fail("client.p in start or finish, as needs_p says", "no use of it")


def _purity(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        again = _clone(args)
        result = f(*args)
        kept = _clone(result)
        difference = _difference(kept, f(*again), name)
        if difference is not None:
            _fail(f"the same output of {name} for the same inputs", difference)
        return result

    _rounds(_watch(bench.job(), watch), 3)
    one, two = bench.job(), bench.job()
    first, second = _rounds(one, 3), _rounds(two, 3)
    difference = _difference(first.server, second.server, "server") or _difference(
        _all_rows(one, first), _all_rows(two, second), "row"
    )
    if difference is not None:
        _fail("the same bits from the same job run twice", difference)


def _mutation(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = _clone(args)
        result = f(*args)
        difference = _difference(before, args, f"{name}.arguments")
        if difference is not None:
            _fail(f"inputs of {name} as they were given", difference)
        return result

    _rounds(_watch(bench.job(), watch), 3)


def _broadcasting(bench: Bench) -> None:
    shapes: dict[str, dict[str, list[int]]] = {}

    def record(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in ("finish", "contribute"):
            shapes[name] = {path: list(v.shape) for path, v in _leaves(result, name) if isinstance(v, Tensor)}
        return result

    def compare(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in ("finish", "contribute"):
            size = len(args[3 if name == "finish" else 1].id)
            for path, leaf in _leaves(result, name):
                want = [size, *(shapes[name].get(path) or [1])]
                if isinstance(leaf, Tensor) and list(leaf.shape) != want:
                    _fail(f"{path} {want} for a stacked cohort of {size}", f"{list(leaf.shape)}")
        return result

    _rounds(_watch(bench.job(), record), 2)
    try:
        _rounds(_watch(bench.job(Stacked(None)), compare), 2)
    except _MismatchError:
        raise
    except Exception as error:
        raise _MismatchError(
            "functions that take a stacked cohort, vectors [S, d] and scalars [S, 1]",
            f"{type(error).__name__}: {error}",
        ) from error


def _isolation(bench: Bench) -> None:
    if bench.algorithm().prelude is not None:
        return  # its point is that clients meet others' gradients within the round
    job = bench.job(Stacked(None))
    problem = job.problem
    assert isinstance(problem, Quadratic)
    before = _rounds(job, 2)
    ids = _plan(job, 2).ids

    def sent_and_kept(where: Quadratic) -> dict[int, Tree]:
        found: dict[int, Tree] = {}

        def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            result = f(*args)
            if name == "finish":
                size = len(args[3].id)
                each = [(path, v) for path, v in _leaves(result, "finish") if isinstance(v, Tensor) and len(v) == size]
                for k, i in enumerate(args[3].id[:, 0].tolist()):
                    found[i] = {path: leaf[k] for path, leaf in each}
            return result

        advance(_watch(replace(job, problem=where), watch), _fork(job, before))
        return found

    usual = sent_and_kept(problem)
    blocks = len(problem.b) // bench.clients
    for i in ids.tolist():
        mine = torch.zeros(bench.clients, dtype=torch.bool, device=bench.device)
        mine[i] = True
        own = mine.repeat_interleave(blocks)
        H = torch.where(own[:, None, None], problem.H, 0.5 * problem.H)
        b = torch.where(own[:, None], problem.b, 1.0 - problem.b)
        other = Quadratic(
            H.reshape(bench.clients, blocks, DIM, DIM), b.reshape(bench.clients, blocks, DIM), problem.sizes, problem.x0
        )
        off = _far(usual[i], sent_and_kept(other)[i], f"client {i}")
        if off is not None:
            _fail("messages and rows that do not depend on other clients' data in the same round", off)


def _fork(job: Job, state: State) -> State:
    """A copy of the state that a round may write to."""
    fresh, held = start(job), state.store.export()
    fresh.store.restore(
        {name: leaf if name == "ids" else leaf.to(job.problem.objective.device) for name, leaf in held.items()}
    )
    return state._replace(server=_clone(state.server), store=fresh.store)


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


def _order(bench: Bench) -> None:
    for engine in (Stacked(None), Serial()):
        for work in (fixed(3), UNEQUAL):  # equal steps: nothing else sorts the clients
            job = bench.job(engine, work=work)
            shuffled = replace(job, schedule=_Shuffled(job.schedule))
            one, two = _rounds(job, 4), _rounds(shuffled, 4)
            off = _far(one.server, two.server, "server") or _far(_all_rows(job, one), _all_rows(job, two), "row")
            if off is not None:
                _fail("the same server and rows whatever the order of the cohort", off)


def _engines(bench: Bench) -> None:
    settings: list[tuple[str, Problem, int | None]] = [
        ("quadratics, mini-batches", bench.quadratics(), 2),
        ("quadratics, full gradients", bench.quadratics(), None),
    ]
    if bench.algorithm().hessian_at is None:  # softmax regression has a singular Hessian, Newton methods refuse those
        settings.append(("logistic regression", bench.logistic(), 4))
    for where, problem, batch_size in settings:
        job = bench.job(Serial(), problem, batch_size=batch_size)
        want = _rounds(job, 4)
        for chunk in (None, 1, 2):
            try:
                got = _rounds(replace(job, engine=Stacked(chunk)), 4)
            except Exception as error:
                raise _MismatchError(
                    "the stacked engine to run what the serial engine runs", f"{type(error).__name__}: {error}"
                ) from error
            off = _far(got.server, want.server, "server") or _far(_all_rows(job, got), _all_rows(job, want), "row")
            if off is not None:
                _fail(f"stacked (chunk {chunk}) = serial on {where}", off)
            counted = [(s.bytes_up, s.bytes_down, s.gradient_steps) for s in (got, want)]
            if counted[0] != counted[1]:
                _fail(f"(bytes up, bytes down, gradients) {counted[1]} as serial on {where}", f"{counted[0]}")


def _absent(bench: Bench) -> None:
    for engine in (Serial(), Stacked(None)):
        job = bench.job(engine)
        state = start(job)
        known = set(state.store.ids().tolist())
        everyone = np.arange(bench.clients)
        for round in range(5):
            plan = _plan(job, round)
            absent = np.setdiff1d(everyone, plan.ids)
            before = _clone(state.store.gather(absent)) if len(absent) else ()
            state = advance(job, state)
            after = state.store.gather(absent) if len(absent) else ()
            difference = _difference(before, after, "row")
            if difference is not None:
                _fail("rows of absent clients as they were", difference)
            known |= set(plan.ids.tolist()) if tree_leaves(state.store.template) else set()
            if set(state.store.ids().tolist()) != known:
                _fail(f"rows of the clients seen, {sorted(known)}", f"{state.store.ids().tolist()}")


def _resume(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        whole, first = bench.job(Stacked(2)), bench.job(Stacked(2))
        want = _rounds(whole, 10)
        checkpoint.write(path, _rounds(first, 5), first)
        second = bench.job(Stacked(2))
        got = _rounds(second, 5, checkpoint.read(path, second))
    difference = (
        _difference(want.server, got.server, "server")
        or _difference(_all_rows(whole, want), _all_rows(second, got), "row")
        or _difference(want._replace(server=(), store=()), got._replace(server=(), store=()), "counters")  # type: ignore[arg-type]
    )
    if difference is not None:
        _fail("10 rounds = 5, a checkpoint, and 5, bit for bit", difference)


def _messages(bench: Bench) -> None:
    job = bench.job()
    sent = {"up": 0, "down": 0}
    now: dict[str, int] = {}

    def counted(name: str, tree: Tree) -> int:
        _round_trip(name, tree)
        return sum(leaf.nbytes if isinstance(leaf, Tensor) else 8 for _, leaf in _leaves(tree, name))

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name == "finish":
            now["up"] = now.get("up", 0) + counted("message", result[0])
            _round_trip("row", result[1])
        elif name == "broadcast":
            now["down"] = job.schedule.cohort * counted("broadcast", result)
        elif name == "contribute":
            _round_trip("share", result)
        elif name == "prelude.contribute":
            sent["up"] += args[0].nbytes
        elif name == "prelude.absorb":
            sent["down"] += job.schedule.cohort * counted("prelude", args[1])
        elif name == "settle.send":
            now["down"] = now.get("down", 0) + job.schedule.cohort * counted("settle", result)
        elif name in ("update", "init"):
            _round_trip("server", result)
        return result

    watched = _watch(job, watch)
    state = start(watched)
    for _ in range(4):
        before, now = state, {}
        plan = _plan(job, state.round)
        talks = job.algorithm.communicates is None or job.algorithm.communicates(cohort_of(space_of(job.problem), plan))
        x0 = joining(job.algorithm, state.store, plan, plan.ids, talks) * state.server.x.nbytes
        sent |= {"up": 0, "down": x0}
        state = advance(watched, state)
        want = tuple(sent[way] + talks * now.get(way, 0) for way in ("up", "down"))
        got = (state.bytes_up - before.bytes_up, state.bytes_down - before.bytes_down)
        if got != want:
            _fail(f"(up, down) {want} bytes of the messages' tensors", f"{got}")


def _round_trip(name: str, tree: Tree) -> None:
    """A tree must come back from bytes as it was."""
    leaves = tree_leaves(tree)
    for path, leaf in leaves.items():
        if not isinstance(leaf, Tensor) and not (name == "broadcast" and isinstance(leaf, int | float)):
            _fail(f"tensors only in every {name}", f"{path or name} is {_kind(leaf)}")
        if isinstance(leaf, Tensor) and (leaf.layout != torch.strided or leaf.requires_grad):
            _fail(f"plain dense tensors without gradient in every {name}", f"{path or name} is {leaf.layout}")
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}
    # safetensors refuses the empty name of a bare tensor and tensors that share memory
    written = save({f"/{path}": leaf.detach().cpu().contiguous().clone() for path, leaf in tensors.items()})
    read = {path.removeprefix("/"): leaf for path, leaf in load(written).items()}
    back = tree_unflatten(tree, leaves | read)
    difference = _difference(tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, tree), back, name)
    if type(back) is not type(tree) or difference is not None:
        _fail(f"every {name} as it was after being written and read", difference or type(back).__name__)


def _dtype(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        for path, leaf in _leaves(result, name):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float32:
                _fail("float32 throughout a float32 job", f"{path} is {leaf.dtype}")
        return result

    for engine in (Serial(), Stacked(None)):
        _rounds(_watch(bench.job(engine, bench.quadratics(torch.float32)), watch), 3)


def _device(bench: Bench) -> None:
    """Replays recorded calls on tensors without values ('meta'): they cannot be read, and do not mix with others."""
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {}

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        calls[name] = (f, args, result)
        return result

    _rounds(_watch(bench.job(Stacked(None)), watch), 2)
    for name, (f, args, result) in calls.items():
        if name in ("refuse", "communicates"):  # outside the round, or of plain numbers
            continue
        try:
            got = f(*_without_values(args))
        except Exception as error:
            if name == "init":  # before round 0 a method may look at the weights
                continue
            raise _MismatchError(
                f"{name} to run on tensors of any device and to read no value back to the host",
                f"{type(error).__name__}: {error}",
            ) from error
        for (path, leaf), (_, real) in zip(_leaves(got, name), _leaves(result, name), strict=True):
            if isinstance(leaf, Tensor) and (leaf.device.type != "meta" or leaf.shape != real.shape):
                _fail(f"{path} {list(real.shape)} on the device of the inputs", f"{list(leaf.shape)} on {leaf.device}")


def _without_values(args: tuple[Any, ...]) -> Any:
    def noise(draw: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
        return lambda n: draw(n).to("meta")

    moved = _clone(args, lambda leaf: leaf.to("meta"))
    return tuple(part._replace(noise=noise(part.noise)) if hasattr(part, "noise") else part for part in moved)


def _origin(bench: Bench) -> None:
    job = bench.job()
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
    here = _models(job, _rounds(job, 6))
    found = _models(there, _rounds(there, 6))
    off = _far({name: x - shift for name, x in found.items()}, here, "model", 1e-9)
    if off is not None:
        _fail("iterates that move with the origin of the parameter space", off)


CHECKS: dict[str, Callable[[Bench], None]] = {
    "contract": _contract,
    "state": _state,
    "needs": _needs,
    "purity": _purity,
    "mutation": _mutation,
    "broadcasting": _broadcasting,
    "isolation": _isolation,
    "order": _order,
    "messages": _messages,
    "engines": _engines,
    "absent": _absent,
    "resume": _resume,
    "dtype": _dtype,
    "device": _device,
    "origin": _origin,
}
