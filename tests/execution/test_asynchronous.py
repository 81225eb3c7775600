"""Asynchronous rounds against their equations: updates of replies that began from earlier models, in float64."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, State, advance, model_of, plan_of, start
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation import availability, sampling
from fedconcord.federation.participation.clock import Device, lognormal
from fedconcord.federation.participation.dropout import fixed as losing
from fedconcord.federation.participation.events import Clock, Staleness, asynchronous, hinge, poly
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.fedasync import fedasync
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.algorithms.scaffold import scaffold
from fedconcord.method.contract import Algorithm, Plan, orders_of, tree_leaves, weights
from fedconcord.method.wrappers.robust import median, with_aggregate
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.method.wrappers.uploads import topk, with_uploads
from tiers import tiers

CPU = torch.device("cpu")
ENGINES: dict[str, Engine] = {"serial": Serial(), "stacked": Stacked(3)}


def problem(n: int = 8) -> Quadratic:
    found = quadratics(3, n, torch.float64, CPU, dim=3, blocks=2, condition=3.0)
    found.sizes[:] = 1.0
    found._optimum = found.optimum(np.full(n, 1 / n))
    return found


def unequal(seed: int, wave: int, client: int) -> Device:
    """Jobs of 1 to 11 seconds a step, times 0.6 to 1.4 from dispatch to dispatch."""
    jitter = np.random.default_rng((wave, client)).uniform(0.6, 1.4)
    return Device(1.4**client * jitter, np.inf, np.inf, 0.0)


def job(clock: Clock | None, engine: str = "serial", cohort: int = 3, lr: float = 0.1, **changes: object) -> Job:
    settings = {"work": uniform(2, 6), "unit": "steps", "devices": unequal, **changes}
    schedule = Schedule(seed=1, cohort=cohort, lr=lr, clock=clock, **settings)  # type: ignore[arg-type]
    return Job(problem(), fedavg(), schedule, engine=ENGINES[engine])


def after(some: Job, rounds: int, state: State | None = None) -> State:
    state = start(some) if state is None else state
    while state.round < rounds:
        state = advance(some, state)
    return state


# -- the synchronous run is a special case ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("refill", ["reply", "update"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_equal_times_with_the_cohort_at_work_are_the_rounds_that_wait(engine: str, refill: str, method: str) -> None:
    """Bit for bit: models, rows, bytes, gradients; simulated seconds to the nanosecond a round that is rounded up."""

    def equal(seed: int, wave: int, client: int) -> Device:
        return Device(0.25, 1e3, 1e3, 0.0)

    clock = Clock(4, refill, poly(0.5), max_staleness=0)  # type: ignore[arg-type]
    runs = []
    for some in (clock, None):
        one = job(some, engine, 4, devices=equal, work=fixed(3), lr_decay=0.97)
        runs.append(after(replace(one, algorithm=METHODS[method]()), 12))
    ours, theirs = runs
    assert torch.equal(ours.server.x, theirs.server.x)
    everyone = np.arange(8)
    rows = [tree_leaves(state.store.gather(everyone)) for state in runs]
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[1])
    assert ours[3:6] == theirs[3:6]
    assert ours.simulated_seconds == pytest.approx(theirs.simulated_seconds, abs=1.3e-8)
    assert ours.versions == {}


# -- the equations, written once more --------------------------------------------------------------------------------


def response(one: Job, i: int, steps: int, z: np.ndarray, lr: float, rho: float = 0.0) -> np.ndarray:
    """Client i's move from z by full gradient steps on f_i + rho / 2 ||y - z||^2."""
    assert isinstance(one.problem, Quadratic)
    H, b = one.problem.H_mean[i].numpy(), one.problem.b_mean[i].numpy()
    y = z.copy()
    for _ in range(steps):
        y = y - lr * (H @ y - b + rho * (y - z))
    return y - z


def settled(one: Job, engine: str, rounds: int = 40) -> tuple[list[np.ndarray], list[Plan]]:
    """The server's models by this engine, and the plans that they were made by."""
    one = replace(one, engine=ENGINES[engine])
    state, plans = start(one), []
    x = [state.server.x.numpy()]
    for _ in range(rounds):
        plans.append(plan_of(one, state))
        state = advance(one, state)
        x.append(state.server.x.numpy())
    return x, plans


def transcribed(one: Job, plans: list[Plan], factor: Callable[[int], float]) -> list[np.ndarray]:
    """FedBuff from its box, with the trace of the clock: x <- x + 1/K sum_B s(tau) D, D from the model of a job's
    start."""
    x = [one.problem.init(1).numpy()]
    for t, plan in enumerate(plans):
        moves = [
            factor(t - v) * response(one, i, k, x[v], lr)
            for i, v, k, lr in zip(plan.ids, plan.version, plan.steps, plan.lrs, strict=True)  # type: ignore[arg-type]
        ]
        x.append(x[-1] + sum(moves) / len(plan.ids))
    return x


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize(
    ("staleness", "factor"),
    [
        (None, lambda tau: 1.0),
        (poly(0.5), lambda tau: 1 / np.sqrt(1 + tau)),
        (hinge(10, 1), lambda tau: 1.0 if tau <= 1 else 1 / (10 * (tau - 1) + 1)),
    ],
)
def test_fedavg_by_the_clock_is_fedbuff(
    engine: str, staleness: Staleness | None, factor: Callable[[int], float]
) -> None:
    one = job(Clock(6, staleness=staleness), engine, lr_decay=0.99, dropout=losing(0.2))
    x, plans = settled(one, engine, 60)
    tau = np.concatenate([plan.round - plan.version for plan in plans])  # type: ignore[operator]
    assert {0, 1, 2} <= set(tau.tolist())
    assert max(tau) >= 4
    wanted = transcribed(one, plans, factor)
    assert np.abs(np.array(wanted) - np.array(x)).max() < 1e-12


def entries(plan: Plan) -> list[tuple[int, int, int, float, float]]:
    """Client, version, steps, step size and s(tau) / K of each reply, by poly(0.5)."""
    assert plan.version is not None
    assert plan.lrs is not None
    replies = zip(plan.ids.tolist(), plan.version.tolist(), plan.steps.tolist(), plan.lrs.tolist(), strict=True)
    return [(i, v, k, lr, (1 + plan.round - v) ** -0.5 / len(plan.ids)) for i, v, k, lr in replies]


DAMPED = Clock(6, staleness=poly(0.5))


Gradient = Callable[[np.ndarray], np.ndarray]
Follower = Callable[[Gradient, np.ndarray, np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]
"""gradient, x, what is followed, steps, step size -> (the client's model, what it says of what is followed next)."""


def fedcm(gradient: Gradient, x: np.ndarray, direction: np.ndarray, steps: int, lr: float) -> tuple[np.ndarray, ...]:
    y = x
    for _ in range(steps):
        y = y - lr * (0.4 * gradient(y) + 0.6 * direction)
    return y, -(y - x) / (steps * lr)


def mfl(gradient: Gradient, x: np.ndarray, buffer: np.ndarray, steps: int, lr: float) -> tuple[np.ndarray, ...]:
    y = x
    for _ in range(steps):
        buffer = 0.6 * buffer + gradient(y)
        y = y - lr * buffer
    return y, buffer


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("algorithm", "client"), [(METHODS["fedcm"](alpha=0.4), fedcm), (METHODS["mfl"](momentum=0.6), mfl)]
)
def test_clients_follow_what_the_model_had_that_they_began_from(
    algorithm: Algorithm, client: Follower, engine: str
) -> None:
    """FedCM's direction and MFL's momentum; the next one is the damped mean of what replies say of it."""
    one = replace(job(DAMPED, lr_decay=0.99), algorithm=algorithm)
    got, plans = settled(one, engine)
    x, followed = [got[0]], [np.zeros(3)]
    for plan in plans:
        move, new = np.zeros(3), np.zeros(3)
        for i, v, k, lr, weight in entries(plan):
            H, b = one.problem.H_mean[i].numpy(), one.problem.b_mean[i].numpy()  # type: ignore[attr-defined]
            y, said = client(lambda at, H=H, b=b: H @ at - b, x[v], followed[v], k, lr)
            move, new = move + weight * (y - x[v]), new + weight * said
        x.append(x[-1] + move)
        followed.append(new)
    assert np.abs(np.array(x) - np.array(got)).max() < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimiser", ["momentum", "extrapolation"])
def test_server_optimisers_move_by_what_fedbuff_would(optimiser: str, engine: str) -> None:
    """Momentum as in FedBuff's experiments; FedExP's length, of damped squares over the square of the damped move."""
    method = METHODS["fedavgm"](server_momentum=0.5, server_lr=0.8) if optimiser == "momentum" else METHODS["fedexp"]()
    one = job(DAMPED)
    got, plans = settled(replace(one, algorithm=method), engine)
    x, m = [got[0]], np.zeros(3)
    for plan in plans:
        moves = [(weight, response(one, i, k, x[v], lr)) for i, v, k, lr, weight in entries(plan)]
        delta = sum(weight * move for weight, move in moves)
        m = 0.5 * m + delta
        square = sum(weight * move @ move for weight, move in moves)
        x.append(x[-1] + (0.8 * m if optimiser == "momentum" else max(1, square / 2 / (delta @ delta + 1e-3)) * delta))
    assert np.abs(np.array(x) - np.array(got)).max() < 1e-12


@pytest.mark.parametrize(("name", "options"), [("scaffold", {}), ("losac", {"blocks": 2}), ("feddyn", {"alpha": 1.0})])
def test_a_server_optimiser_leaves_exact_methods_exact_without_rounds(name: str, options: dict[str, float]) -> None:
    """Where no client moves, no optimiser does."""
    one = job(DAMPED, "stacked")
    one = replace(one, algorithm=with_server(METHODS[name](**options), momentum(0.3, 0.5)))
    x = after(one, 3000).server.x
    assert float((x - torch.as_tensor(problem()._optimum)).norm()) < 1e-8


# -- where methods stop ------------------------------------------------------------------------------------------------


def periodic(seed: int, wave: int, client: int) -> Device:
    """One job every 2, 4 and 4 seconds, which end at different moments for ever: 5 steps each."""
    first = (0.0, 1.0, 0.5)[client] if wave == 0 else 0.0
    return Device(((2.0, 4.0, 4.0)[client] + first) / 5, np.inf, np.inf, 0.0)


@pytest.mark.parametrize("cohort", [1, 3])
def test_fedasync_is_its_box(cohort: int) -> None:
    """x <- (1 - a) x + a y with a = alpha s(tau), a mean of them for several replies, rho in the local steps."""
    one = replace(job(Clock(6, staleness=poly(0.5)), "stacked", cohort), algorithm=fedasync(alpha=0.6, rho=0.3))
    state = start(one)
    x = [state.server.x.numpy()]
    for t in range(60):
        plan = plan_of(one, state)
        assert plan.version is not None
        new = x[t].copy()
        for i, v, k in zip(plan.ids, plan.version, plan.steps, strict=True):
            y = x[v] + response(one, i, k, x[v], 0.1, 0.3)
            new += 0.6 * (1 + t - v) ** -0.5 / cohort * (y - x[t])
        x.append(new)
        state = advance(one, state)
        assert np.abs(state.server.x.numpy() - new).max() < 1e-12


def cycle(
    one: Job, plans: list[Plan], factor: Callable[[int], float], rate: float, mixes: bool = False, rho: float = 0.0
) -> np.ndarray:
    """The limit cycle [P, d] of one client an update, whose trace repeats with these plans: a linear system."""
    assert isinstance(one.problem, Quadratic)
    d, length = 3, len(plans)
    system, right = np.zeros((length * d, length * d)), np.zeros(length * d)
    for t, plan in enumerate(plans):  # x_{t+1} = x_t + g (A x_v + a), where D = A z + a, or (1 - g) x_t + g (x_v + D)
        (i,), (k,) = plan.ids, plan.steps
        tau = plan.round - int(plan.version[0])  # type: ignore[index]
        a, g = response(one, i, k, np.zeros(d), plan.lr, rho), rate * factor(tau)
        A = np.stack([response(one, i, k, unit, plan.lr, rho) - a for unit in np.eye(d)], 1)
        rows = slice((t + 1) % length * d, (t + 1) % length * d + d)
        now, then = slice(t * d, t * d + d), slice((t - tau) % length * d, (t - tau) % length * d + d)
        system[rows, rows] += np.eye(d)
        system[rows, now] -= (1 - g * mixes) * np.eye(d)
        system[rows, then] -= g * (A + mixes * np.eye(d))
        right[rows] += g * a
    return np.asarray(np.linalg.solve(system, right)).reshape(length, d)


def weighted(one: Job, q: np.ndarray) -> np.ndarray:
    """P(q): where sum_i q_i M_i (x - b_i) = 0."""
    a = [response(one, i, 5, np.zeros(3), 0.1) for i in range(3)]
    A = [np.stack([response(one, i, 5, unit, 0.1) - a[i] for unit in np.eye(3)], 1) for i in range(3)]
    return np.asarray(
        np.linalg.solve(-sum(q * A for q, A in zip(q, A, strict=True)), sum(q * a for q, a in zip(q, a, strict=True)))
    )


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_fedbuff_stops_at_the_wrong_point_that_is_known(engine: str) -> None:
    """In the limit cycle to 1e-9; whose mean is, to the first order in the server's step, the point that weighs
    clients by how often they reply and how stale they are, and not FedAvg's."""
    off = []
    for rate in (0.8, 0.4):
        base = job(Clock(3, staleness=poly(0.5)), engine, 1, devices=periodic, work=fixed(5))
        one = replace(base, problem=problem(3), algorithm=fedavg(server_lr=rate))
        state = after(one, int(240 / rate))
        plans = [plan_of(one, state._replace(round=state.round + k)) for k in range(4)]
        assert sorted(int(plan.ids[0]) for plan in plans) == [0, 0, 1, 2]
        wanted = cycle(one, plans, lambda tau: (1 + tau) ** -0.5, rate)
        for x in wanted:
            assert np.abs(x - state.server.x.numpy()).max() < 1e-9
            state = advance(one, state)
        taus = {0: [], 1: [], 2: []}  # type: dict[int, list[int]]
        for plan in plans:
            taus[int(plan.ids[0])].append(plan.round - int(plan.version[0]))  # type: ignore[index]
        q = np.array([sum((1 + tau) ** -0.5 for tau in taus[i]) for i in range(3)])
        off.append(np.abs(wanted.mean(0) - weighted(one, q)).max())
        assert np.abs(wanted.mean(0) - weighted(one, np.ones(3))).max() > 5 * off[-1]
    assert off[1] < 0.7 * off[0]


def test_fedasync_stops_in_the_cycle_that_is_known() -> None:
    one = job(Clock(3, staleness=hinge(10, 1)), "stacked", 1, devices=periodic, work=fixed(5))
    one = replace(one, problem=problem(3), algorithm=fedasync(alpha=0.6, rho=0.3))
    state = after(one, 520)
    plans = [plan_of(one, state._replace(round=state.round + k)) for k in range(4)]
    known = cycle(one, plans, lambda tau: 1 / (10 * max(tau - 1, 0) + 1), 0.6, mixes=True, rho=0.3)
    for x in known:
        assert np.abs(x - state.server.x.numpy()).max() < 1e-9
        state = advance(one, state)
    assert np.ptp(known, 0).max() > 1e-3


EXACT = {
    "feddyn": ({"alpha": 3.0}, poly(0.5), 0.2, 250),
    "losac": ({"blocks": 2}, poly(0.5), 0.1, 280),
    "fedvra": ({"gamma": 1.0, "a": 1.0, "d": 4.0}, None, 0.2, 400),
    "fednova_vr": ({}, None, 0.2, 250),
}


@pytest.mark.parametrize("name", tiers(EXACT, quick=["feddyn"]))
def test_methods_that_run_sums_are_exact_without_rounds(name: str) -> None:
    """As SCAFFOLD, below; fedvra and fednova_vr by replies that nothing damps."""
    options, staleness, lr, rounds = EXACT[name]
    clock = Clock(6, staleness=staleness, max_staleness=3)
    one = replace(job(clock, "stacked", 4, lr=lr, dropout=losing(0.1)), algorithm=METHODS[name](**options))  # type: ignore[arg-type]
    state = after(one, rounds)
    assert isinstance(one.problem, Quadratic)
    assert [*reasons(one)] == []
    assert (model_of(one, state) - one.problem._optimum).norm() < 1e-8


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_scaffold_reaches_the_optimum_without_rounds(engine: str) -> None:
    """Unequal times, work and data, replies that are lost, damped or refused: what enters c is never damped."""
    clock = Clock(6, staleness=poly(0.5), max_staleness=3)
    one = replace(job(clock, engine, 4, lr=0.2, dropout=losing(0.1)), algorithm=scaffold())
    state = after(one, 40)
    assert isinstance(one.problem, Quadratic)
    rows = state.store.gather(np.arange(8)).c
    assert (rows.mean(0) - state.server.c).abs().max() < 1e-13
    state = after(one, 200, state)
    assert (state.server.x - one.problem._optimum).norm() < 1e-8
    wrong = after(replace(one, algorithm=fedavg()), 60)
    assert (wrong.server.x - one.problem._optimum).norm() > 1e-3


# -- engines, moments, memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedprox"])
def test_serial_is_stacked(method: str) -> None:
    states = []
    for engine in ENGINES:
        one = job(Clock(7, staleness=poly(0.5), max_staleness=4), engine, 4, dropout=losing(0.2))
        states.append(after(replace(one, algorithm=METHODS[method]()), 40))
    a, b = states
    assert (a.server.x - b.server.x).abs().max() < 1e-12
    assert a[3:7] == b[3:7]
    assert set(a.versions) == set(b.versions) != set()


def test_what_is_saved_at_any_update_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """By a schedule that knows nothing of the updates before, while jobs are in flight."""
    clock = Clock(6, staleness=poly(0.5), max_staleness=5)

    def fresh() -> Job:
        return replace(job(clock, "stacked", 2, dropout=losing(0.2)), algorithm=scaffold())

    whole = fresh()
    save(whole, after(whole, 30), tmp_path / "whole")
    for cut in (1, 7, 12, 29):
        first, second = fresh(), fresh()
        state = after(first, cut)
        assert state.versions
        save(first, state, tmp_path / "cut")
        save(second, after(second, 30, load(second, tmp_path / "cut")), tmp_path / "end")
        assert (tmp_path / "end").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(("concurrency", "limit"), [(8, None), (8, 3), (3, None), (5, 0)])
def test_versions_that_are_kept_are_those_in_flight_and_few(concurrency: int, limit: int | None) -> None:
    """At most C - 1, and at most max_staleness; and both are reached."""
    one, state, most = job(Clock(concurrency, max_staleness=limit), cohort=1), None, 0
    state = start(one)
    for _ in range(80):
        state = advance(one, state)
        most = max(most, len(state.versions))
        assert all(0 <= version < state.round for version in state.versions)
        assert limit is None or all(state.round - version <= limit for version in state.versions)
    bound = concurrency - 1 if limit is None else min(concurrency - 1, limit)
    assert most == bound


def test_replies_that_are_lost_or_too_old_cost_what_they_cost() -> None:
    one = job(Clock(6, max_staleness=2), cohort=2, dropout=losing(0.3), work=fixed(4))
    state, lost, stale = start(one), 0, 0
    for _ in range(50):
        plan = plan_of(one, state)
        assert (plan.round - plan.version <= 2).all()  # type: ignore[operator]
        lost, stale = lost + len(plan.aside.lost), stale + len(plan.aside.stale)
        state = advance(one, state)
    assert min(lost, stale) > 5
    assert state.bytes_up == (100 + stale) * 3 * 8
    assert state.bytes_down == (100 + stale + lost) * 3 * 8
    assert 4 * (100 + stale) < state.gradient_steps < 4 * (100 + stale + lost)


def test_a_reply_that_is_left_out_leaves_the_others_damped() -> None:
    one = job(Clock(6, staleness=poly(0.5)))
    plan = plan_of(one, after(one, 9))
    assert plan.damping is not None
    rest = weights.without(plan, np.array([True, False, False]), "uniform", False)
    assert rest.w == pytest.approx(plan.damping[1:] / 2, abs=1e-15)
    assert len(set(rest.w)) == 2


def test_what_a_client_draws_is_of_its_dispatch() -> None:
    """Its orders, by which it draws batches, and its steps; its step size is that of the model that it was given."""
    one = job(Clock(6), lr_decay=0.9)
    plan = plan_of(one, after(one, 9))
    assert plan.wave is not None
    assert plan.version is not None
    assert (plan.wave != 9).any()
    for k, (i, wave, version) in enumerate(zip(plan.ids, plan.wave, plan.version, strict=True)):
        orders = orders_of(plan, k, one.algorithm)
        assert (orders.round, orders.id) == (wave, i)
        assert orders.steps == plan.steps[k] == uniform(2, 6)(1, int(wave), int(i))
        assert orders.lr == pytest.approx(0.1 * 0.9**version, rel=1e-15)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: planned(one, devices=None), "set devices"),
        (lambda one: planned(one, deadline=3.0), "leave deadline"),
        (lambda one: planned(one, sampler=sampling.by_size()), "use sampling uniform"),
        (lambda one: planned(one, clock=asynchronous(9)), "concurrency of 9"),
        (lambda one: replace(one, algorithm=fedavg(weights="unbiased")), "weighs by it"),
        (lambda one: replace(one, algorithm=METHODS["afedpd"]()), "afedpd_share"),
        (lambda one: replace(one, algorithm=METHODS["fedpaq"]()), "fedpaq with these settings"),
        (lambda one: replace(one, algorithm=METHODS["fedsmoo"]()), "fedsmoo with these settings"),
        (lambda one: replace(one, algorithm=METHODS["fedvra"]()), "staleness=none"),
        (lambda one: replace(one, algorithm=METHODS["feddyn"](weights="size")), "feddyn with these settings"),
        (lambda one: replace(one, algorithm=with_uploads(fedavg(), topk(0.5))), "fedavg with these settings"),
        (lambda one: replace(one, algorithm=with_aggregate(fedavg(), median())), "fedavg with these settings"),
    ],
)
def test_what_is_not_known_to_be_right_is_refused(change: Callable[[Job], Job], sentence: str) -> None:
    one = job(asynchronous(6))
    assert [*reasons(one)] == []
    assert any(sentence in reason for reason in reasons(change(one)))


def planned(one: Job, **changes: object) -> Job:
    assert isinstance(one.schedule, Schedule)
    return replace(one, schedule=replace(one.schedule, **changes))  # type: ignore[arg-type]


def test_a_server_waits_for_a_job_so_long_and_no_longer() -> None:
    """Jobs of client i take 1.4^i seconds a step: beyond 12 seconds they are lost, with the work done until then."""
    patient = job(Clock(6), "stacked", work=fixed(3))
    one = replace(patient, schedule=replace(patient.schedule, clock=Clock(6, timeout=12.0)))  # type: ignore[type-var]
    state, gave_up = start(one), set[int]()
    for _ in range(60):
        plan = plan_of(one, state)
        assert not {*plan.ids.tolist()} & {6, 7}  # 3 steps of 7.5 and 10.5 seconds, give or take
        gave_up |= {*plan.aside.lost}
        assert plan.aside.gradient_steps <= 2 * len(plan.aside.lost)  # a step or two of the three
        state = advance(one, state)
    assert {6, 7} <= gave_up <= {4, 5, 6, 7}


@pytest.mark.parametrize("engine", tiers(["serial", "stacked"], quick=["stacked"]))
def test_clients_that_come_and_go(engine: str) -> None:
    """SCAFFOLD reaches the optimum, and goes on from a checkpoint to the same bits."""
    clock = Clock(6, staleness=poly(0.5), slot=10.0)
    one = replace(job(clock, engine, availability=availability.markov(0.3, 0.4)), algorithm=METHODS["scaffold"]())
    assert [*reasons(one)] == []
    assert isinstance(one.problem, Quadratic)
    state = after(one, 600)
    assert (state.server.x - one.problem._optimum).norm() < 1e-8
    again = after(replace(one, schedule=replace(one.schedule)), 30, after(one, 12))  # type: ignore[type-var]
    assert torch.equal(again.server.x, after(one, 30).server.x)


def test_devices_of_the_package_drive_the_clock() -> None:
    one = job(asynchronous(5, "none", 8), devices=lognormal(1.0, jitter=0.2), dropout=losing(0.1))
    state = after(one, 20)
    assert (
        0
        < state.simulated_seconds
        < after(replace(one, schedule=replace(one.schedule, clock=None)), 20).simulated_seconds
    )  # type: ignore[type-var]


@pytest.mark.parametrize("method", ["fedavg", tiers(["fedasync"], [])[0]])
def test_python_runs_it_and_goes_on_in_the_folder_to_the_same_bytes(method: str, tmp_path: Path) -> None:
    settings = {"clock": "asynchronous(12,staleness=hinge(10,2),max_staleness=6)", "devices": "classes([1,4])"}
    common = {"model": "logreg", "clients": 20, "cohort": 4, "dtype": "float64", "settings": settings}
    fedconcord.run(method, **common, rounds=8, out=tmp_path / "whole")  # type: ignore[arg-type]
    fedconcord.run(method, **common, rounds=4, out=tmp_path / "parts")  # type: ignore[arg-type]
    fedconcord.run(resume=tmp_path / "parts", rounds=8)
    names = ("metrics.csv", "checkpoint.safetensors", "model.safetensors")
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes() for name in names)
