"""Engines agree: stacked = serial to 1e-12 in float64, whatever the chunk, the batches and the unequal steps."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedconcord.execution.engines import Serial, Stacked, chunk
from fedconcord.execution.job import Job, State, advance, resolved, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised, quadratics
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Keyed, batches, fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import (
    Drawn,
    Needs,
    Oracle,
    Regulariser,
    Step,
    in_blocks,
    products,
    rng,
    roster_of,
    tree_leaves,
)
from fedconcord.method.contract.flat import Layout
from fedconcord.method.contract.pieces import Table
from fedconcord.method.step import samples
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.sizes import ByStep, Fixed
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.step.step import minimise
from fedconcord.method.step.walk import Chain
from fedconcord.method.wrappers.tables import with_table
from fedconcord.support.errors import UserError
from plain_step import falling
from table import TABLE, batches_of, make
from tiers import tiers

NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "generic": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    ),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
}
KERNELS = ("convolution", "dense")


def small(
    network: str = "generic", dtype: torch.dtype = torch.float64, *, regulariser: Regulariser | None = None
) -> Supervised:
    """A small image problem and clients of very unequal sizes; `generic` networks have no kernel."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((120, 1, 6, 6)).astype(np.float32)
    y = draw.integers(0, 3, 120)
    data = Dataset("noise", x[:100], y[:100], x[100:], y[100:], classes=3)
    cuts = np.cumsum([3, 4, 7, 12, 20, 9, 28])
    parts = np.split(np.arange(100), cuts)

    made = Supervised(NETWORKS[network], data, parts, dtype=dtype, regulariser=regulariser)
    made.in_turn = False  # as on a GPU: models without a kernel by vmap
    return made


SCHEDULE = Schedule(seed=5, cohort=5, lr=0.1, work=uniform(1, 3), batch_size=4)


def run(job: Job, rounds: int = 4) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


def assert_same(a: State, b: State, tolerance: float = 1e-12) -> None:
    assert (a.bytes_up, a.bytes_down, a.gradient_steps) == (b.bytes_up, b.bytes_down, b.gradient_steps)
    pairs = list(zip(tree_leaves(a.server).items(), tree_leaves(b.server).items(), strict=True))
    assert a.store.ids().tolist() == b.store.ids().tolist()
    if len(a.store):
        rows = [tree_leaves(s.store.gather(s.store.ids())).items() for s in (a, b)]
        pairs += list(zip(*rows, strict=True))
    for (name, left), (_, right) in pairs:
        assert left.shape == right.shape
        assert float((left - right).abs().max()) <= tolerance * max(1.0, float(right.abs().max())), name


def assert_same_server(a: State, b: State) -> None:
    """Whatever each of them cost."""
    there = tree_leaves(a.server)
    for field, leaf in tree_leaves(b.server).items():
        assert float((there[field] - leaf).abs().max()) < 1e-12, field


@pytest.mark.parametrize("asked", [True, False])
def test_the_full_gradient_after_a_prelude_goes_to_methods_that_ask(asked: bool) -> None:
    """On every engine: `start` and `finish` have it if `needs_full_gradient` is set, with a prelude or without."""
    mime = make("mimesvrg")
    given = set[tuple[str, bool]]()

    def begin(down, row, client):
        given.add(("start", client.gradient is not None))
        local = mime.start(down, row, client)
        return local if client.gradient is None else local.starting(local.x - 0.01 * client.gradient)

    def end(down, row, done, client):
        given.add(("finish", client.gradient is not None))
        return mime.finish(down, row, done, client)

    both = replace(mime, needs=Needs(full_gradient=asked), start=begin, finish=end)
    reference = run(Job(small("dense"), both, SCHEDULE, engine=Serial()))
    for engine in (Stacked(None), Stacked(2), Stacked(2, 2)):
        assert_same(run(Job(small("dense"), both, SCHEDULE, engine=engine)), reference)
    assert given == {("start", asked), ("finish", asked)}


@pytest.mark.parametrize("name", METHODS)
def test_stacked_equals_serial(name: str) -> None:
    schedule = replace(SCHEDULE, cohort=8) if TABLE[name].everyone else SCHEDULE
    convex = quadratics(0, 8, torch.float64, torch.device("cpu"))
    job = Job(convex if name == "fedhybrid" else small(), make(name), schedule, engine=Serial())
    reference = run(job)
    for width in (None, 1, 2):
        assert_same(run(replace(job, engine=Stacked(width))), reference)


@pytest.mark.parametrize(
    ("name", "network"),
    tiers(
        [(name, network) for name in sorted(set(METHODS) - {"fedhybrid"}) for network in KERNELS],
        quick=[
            (name, network)
            for name in sorted(set(METHODS) - {"fedhybrid"})
            for network in KERNELS
            if network == "dense" or name in ("scaffold", "fedsmoo", "mimesvrg", "vrlsgd")
        ],
    ),
)
def test_kernels_and_workers_equal_serial(name: str, network: str) -> None:
    """The short loop, where it applies, on any number of threads."""
    schedule = replace(SCHEDULE, cohort=8) if TABLE[name].everyone else SCHEDULE
    job = Job(small(network), make(name), schedule, engine=Serial())
    reference = run(job)
    for engine in (Stacked(None, 1), Stacked(1, 3), Stacked(2, 2)):
        assert_same(run(replace(job, engine=engine)), reference)


def test_a_momentum_of_0_keeps_the_last_direction() -> None:
    for network in NETWORKS:
        job = Job(small(network), METHODS["mfl"](momentum=0.0), SCHEDULE, engine=Serial())
        assert_same(run(replace(job, engine=Stacked(2, 2))), run(job))


def test_bits_do_not_depend_on_who_was_first() -> None:
    """The same chunks on one, two and three threads, in float32; and the caller's number of threads is left alone."""
    job = Job(small("dense", torch.float32), make("scaffold"), replace(SCHEDULE, cohort=8))
    threads = torch.get_num_threads()
    once, *others = (run(replace(job, engine=Stacked(2, workers))) for workers in (1, 2, 3, 3))
    assert torch.get_num_threads() == threads
    for other in others:
        assert_same(other, once, 0.0)


@pytest.mark.parametrize(
    "solver",
    [
        Solver(momentum=0.9, step_schedule=falling(0.9)),
        Solver(weight_decay=0.1, clip=0.2, step_schedule=ByStep("up", lambda k: (k + 1) / 9)),
        Solver(oracle=Oracle("full")),
        Solver(oracle=Oracle("sam", 0.1)),
        Solver(oracle=Oracle("svrg"), momentum=0.5),
        Solver(tolerance=0.05),
        Solver(tolerance=0.05, weight_decay=0.3),
        Solver(momentum=0.8, step_schedule=falling(0.9), nesterov=True),
        Solver(weight_decay=0.1, clip_direction=0.2, clip_form="released"),
    ],
    ids=["momentum", "decay-clip", "full", "sam", "svrg", "tolerance", "tolerance-decay", "nesterov", "clip-direction"],
)
@pytest.mark.parametrize("name", tiers(("fednova", "fedadmm", "scaffold"), quick=("fednova",)))
def test_every_solver_setting_on_every_engine(name: str, solver: Solver) -> None:
    for network in NETWORKS:
        job = Job(small(network), METHODS[name](), SCHEDULE, solver, Serial())
        assert_same(run(replace(job, engine=Stacked(3, 2))), run(job))


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_newton_steps_on_a_network_are_refused(engine: Serial | Stacked) -> None:
    job = Job(small(), make("fedhybrid"), replace(SCHEDULE, cohort=8), engine=engine)
    with pytest.raises(UserError, match=r"client \d+'s Hessian has the negative eigenvalue"):
        run(job)


@pytest.mark.parametrize(("name", "decay"), [("fedadmm", 0.0), ("fedprox", 0.0), ("feddyn", 0.0), ("feddyn", 0.1)])
def test_lbfgs_and_tolerance(name: str, decay: float) -> None:
    """Local problems solved to a tolerance: both solvers meet it, agree, and stop early; engines agree."""
    convex = quadratics(0, 8, torch.float64, torch.device("cpu"))
    schedule = Schedule(seed=5, cohort=4, lr=0.3, work=fixed(400), unit="steps")
    found = {}
    for kind, solver in {
        "descent": Solver(tolerance=1e-12, weight_decay=decay),
        "lbfgs": Solver(kind="lbfgs", tolerance=1e-12, weight_decay=decay),
        "all": Solver(weight_decay=decay),
    }.items():
        job = Job(convex, make(name), schedule, solver, Serial())
        serial, stacked = run(job), run(replace(job, engine=Stacked(3)))
        assert_same(stacked, serial, 1e-9 if kind == "lbfgs" else 1e-12)
        found[kind] = serial
    assert float((found["lbfgs"].server.x - found["descent"].server.x).norm()) < 1e-4
    assert float((found["all"].server.x - found["descent"].server.x).norm()) < 1e-4
    assert found["lbfgs"].gradient_steps < 0.5 * found["descent"].gradient_steps


@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_lbfgs_counts_every_gradient(tolerance: float | None) -> None:
    objective, asked = small("dense").objective, list[int]()

    def loss(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        return objective.loss(x, samples)

    x = 0.1 * torch.as_tensor(np.random.default_rng(1).standard_normal(objective.dim))
    chain = Chain(x, (), Fixed(0.1), tolerance=tolerance)
    _, taken, evaluations = minimise(replace(objective, loss=loss), chain, torch.arange(12), 5)
    assert evaluations == len(asked) > taken > 1


@pytest.mark.parametrize("name", ["fednova", "scaffold"])
def test_who_stops_at_the_tolerance_says_how_many_steps_it_took(name: str) -> None:
    """The methods divide by them. A step under a tolerance takes a full gradient besides."""
    convex = quadratics(0, 8, torch.float64, torch.device("cpu"))
    schedule = Schedule(seed=5, cohort=4, lr=0.3, work=fixed(60), unit="steps")
    job = Job(convex, make(name), schedule, Solver(tolerance=1e-3), Serial())
    serial, capped = run(job, 2), run(replace(job, solver=Solver()), 2)
    assert serial.gradient_steps < 2 * capped.gradient_steps
    assert_same(run(replace(job, engine=Stacked(3)), 2), serial)


@pytest.mark.parametrize(
    ("name", "solver", "reason"),
    [
        ("scaffold", Solver(kind="lbfgs"), "L-BFGS does not have"),
        ("fedcm", Solver(kind="lbfgs"), "divides by ||a_i||_1, which L-BFGS does not have"),
        ("fedavg", Solver(nesterov=True), "set local.momentum > 0"),
        ("fedavg", Solver(kind="lbfgs", clip_direction=1.0), "leave local.clip_direction out"),
        ("fedavg", Solver(momentum=0.9, clip_direction=1.0, clip_form="released"), "without local momentum"),
        ("fednova", Solver(clip_direction=1.0), "which a clipped direction does not have"),
        ("losac", Solver(oracle=Oracle("sam", 0.1)), "cannot be sam"),
        ("mimesvrg", Solver(tolerance=1e-3), "mini-batch gradients"),
        ("losac", Solver(kind="lbfgs"), "mini-batch gradients, which neither L-BFGS"),
        ("fedsam", Solver(oracle=Oracle("svrg")), "brings its own gradient"),
        ("fedavg", Solver(kind="lbfgs", momentum=0.9), "chooses its own steps"),
        ("mfl", Solver(kind="lbfgs"), "prescribes its own local step"),
        ("fedadmm_inexact", Solver(momentum=0.9), "prescribes its own local step"),
    ],
)
def test_combinations_without_meaning_are_refused(name: str, solver: Solver, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        start(Job(small(), make(name), SCHEDULE, solver))


def test_solvers_go_with_a_regulariser_of_the_server() -> None:
    """Clients then minimise a smooth function, which L-BFGS and a tolerance ask for."""
    for solver in (Solver(kind="lbfgs"), Solver(tolerance=1e-3)):
        smooth, own = (replace(make("fedavg"), step=Step(regularise=who)) for who in ("server", "local"))
        assert refuse(solver, smooth, regularised=True) is None
        assert refuse(solver, own, regularised=False) is None
        assert "regulariser" in str(refuse(solver, own, regularised=True))


def test_unbiased_weights_under_every_sampler() -> None:
    """Over many rounds the weights w_i sum, client by client, to p_i, for every sampler that states probabilities."""
    sizes = np.array([1.0, 2, 3, 4, 10])
    for sampler in (sampling.uniform(), sampling.by_size(), sampling.bernoulli()):
        schedule = Schedule(0, 2, 0.1, sampler=sampler)
        total = np.zeros(5)
        for t in range(4000):
            plan = schedule.plan(t, METHODS["fedavg"](weights="unbiased"), roster_of(np.arange(6), sizes))
            total[plan.ids] += plan.w / 4000
        assert np.abs(total - sizes / 20).max() < 0.03


def test_fedavg_with_a_saga_table_is_fedsaga() -> None:
    """The axis and the method are one mechanism; with other methods it composes, and engines agree."""
    schedule = replace(SCHEDULE, work=uniform(2, 6), unit="steps")
    job = Job(small(), with_table(make("fedavg"), 3), schedule, engine=Serial())
    named = run(replace(job, algorithm=make("fedsaga")))
    assert float((run(job).server.x - named.server.x).abs().max()) < 1e-13
    for name in ("feddyn", "scaffold", "afedpd", "fedcm"):
        composed = replace(job, algorithm=with_table(make(name), 3))
        assert_same(run(replace(composed, engine=Stacked(2))), run(composed))
    for name in ("losac", "fedsam", "mfl", "mimesvrg"):
        with pytest.raises(UserError, match="at minibatch"):
            with_table(make(name), 3)


def test_a_method_cannot_read_the_table_that_its_steps_moved() -> None:
    """Stacked steps move a gathered table where it lies: `finish` has it of the steps alone, never for the old one."""
    method = make("fedsaga")

    def finish(x, row, done, client):
        return done.x - x, row._replace(table=row.table + 0 * done.piece(Table).table)

    job = Job(small(), replace(method, finish=finish), SCHEDULE, engine=Stacked(2))
    with pytest.raises(RuntimeError, match="must match"):
        run(job)


@pytest.mark.parametrize("name", ["feddyn", "scaffold", "afedpd", "fedcm"])
def test_a_table_of_one_block_changes_nothing(name: str) -> None:
    """g - table + mean of the table is g, beside whatever constant the method has in its direction."""
    schedule = replace(SCHEDULE, work=uniform(2, 6), unit="steps", batch_size=None)
    job = Job(small(), make(name), schedule, engine=Serial())
    tabled = run(replace(job, algorithm=with_table(make(name), 1)))
    assert_same_server(tabled, run(job))


@pytest.mark.parametrize("name", ["feddyn", "scaffold", "afedpd", "fedcm", "fedadmm_inexact"])
def test_svrg_on_full_batches_changes_nothing(name: str) -> None:
    """g(x) - g(x^t) + grad f_i(x^t) is g(x) then, beside whatever constant and scale the method has."""
    job = Job(small(), make(name), replace(SCHEDULE, batch_size=None), engine=Serial())
    corrected = run(replace(job, solver=Solver(oracle=Oracle("svrg"))))
    assert_same_server(corrected, run(job))


def test_sam_as_a_setting_is_fedsam() -> None:
    job = Job(small(), make("fedavg"), SCHEDULE, Solver(oracle=Oracle("sam", 0.3)), Serial())
    assert_same(run(job), run(Job(small(), METHODS["fedsam"](radius=0.3), SCHEDULE, engine=Serial())), 0.0)


def test_svrg_of_a_client_alone_is_mimesvrg() -> None:
    """Whose correction is the cohort's full gradient, here of one client."""
    job = Job(small(), make("fedavg"), replace(SCHEDULE, cohort=1, work=fixed(3)), engine=Serial())
    corrected = run(replace(job, solver=Solver(oracle=Oracle("svrg"))))
    mime = run(replace(job, algorithm=make("mimesvrg")))
    assert float((corrected.server.x - mime.server.x).abs().max()) < 1e-12
    assert float((corrected.server.x - run(job).server.x).abs().max()) > 1e-4


@pytest.mark.parametrize("name", ["fednova", "scaffold"])
def test_full_gradients_are_those_of_full_batches(name: str) -> None:
    """Whatever batches the steps would draw."""
    job = Job(small(), make(name), replace(SCHEDULE, work=uniform(2, 6), unit="steps"), engine=Serial())
    full = run(replace(job, solver=Solver(oracle=Oracle("full"))))
    batches = run(replace(job, schedule=replace(job.schedule, batch_size=None)))
    assert_same_server(full, batches)


def test_full_batches_and_a_long_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full gradient is summed in slices; a slice smaller than a client changes nothing."""
    job = Job(small(), METHODS["scaffold"](option=1), replace(SCHEDULE, batch_size=None), engine=Serial())
    reference = run(job)
    monkeypatch.setattr(samples, "SLICE", 8)
    assert_same(run(replace(job, engine=Stacked(None))), reference)


@pytest.mark.parametrize("engine", [Serial(), Stacked(2)])
def test_bytes_are_the_messages(engine: Serial | Stacked) -> None:
    """Vectors of d numbers: up, down, after the server's step, and x^0 to who joins after round 0."""
    d = small().dim
    plans = [SCHEDULE.plan(t, METHODS["fedavg"](), small().roster).ids for t in range(3)]
    late = len(set(np.concatenate(plans).tolist())) - 5
    assert late > 0
    for name, up, down, settled, first in (
        ("fedavg", 1, 1, 0, 0),
        ("scaffold", 2, 2, 0, 0),
        ("fedadmm", 1, 1, 0, 1),
        ("afedpd", 1, 2, 1, 0),
    ):
        state = run(Job(small(), make(name), SCHEDULE, engine=engine), rounds=3)
        assert state.bytes_up == 3 * 5 * up * d * 8, name
        assert state.bytes_down == (3 * 5 * (down + settled) + late * first) * d * 8, name
    nova = run(Job(small(), METHODS["fednova"](), SCHEDULE, engine=engine), rounds=1)
    assert nova.bytes_up == 5 * (d + 2) * 8


@pytest.mark.parametrize("engine", [Serial(), Stacked(2)])
def test_a_full_gradient_costs_its_mini_batches(engine: Serial | Stacked) -> None:
    """Clients of 3, 4, 7, 12, 20, 9, 28 and 17 samples in batches of 4, all of them in one round."""
    batches_held = 1 + 1 + 2 + 3 + 5 + 3 + 7 + 5
    schedule = replace(SCHEDULE, cohort=8, work=fixed(2), unit="steps")

    def cost(name: str, solver: Solver, **options: object) -> int:
        return run(Job(small(), make(name, **options), schedule, solver, engine), rounds=1).gradient_steps

    assert cost("fedavg", Solver()) == 16
    assert cost("fedsgd", Solver()) == batches_held
    assert cost("fedavg", Solver(oracle=Oracle("full"))) == 2 * batches_held
    assert cost("fedavg", Solver(oracle=Oracle("sam", 0.1))) == 32
    assert cost("scaffold", Solver(), option=1) == cost("mimesvrg", Solver()) - 16 == 16 + batches_held
    assert cost("fedavg", Solver(tolerance=1e-30)) == 16 + 2 * batches_held


def test_only_sampled_clients_have_rows() -> None:
    job = Job(small(), METHODS["scaffold"](), replace(SCHEDULE, cohort=2))
    state = advance(job, start(job))
    plan = job.schedule.plan(0, job.algorithm, job.problem.roster)
    assert state.store.ids().tolist() == plan.ids.tolist()


def test_draws_do_not_depend_on_the_cohort_around_a_client() -> None:
    """Client 6's batches and steps in round 3 are the same whoever else takes part."""
    p = small()
    job = Job(p, METHODS["fedavg"](), replace(SCHEDULE, cohort=8))
    everyone = job.schedule.plan(3, job.algorithm, p.roster)
    drawn = batches_of(job, everyone)
    for cohort in range(1, 8):
        fewer = replace(job, schedule=replace(SCHEDULE, cohort=cohort))
        plan = fewer.schedule.plan(3, job.algorithm, p.roster)
        for k, (i, batch) in enumerate(zip(plan.ids, batches_of(fewer, plan), strict=True)):
            assert plan.steps[k] == everyone.steps[i]
            assert batch is not None
            assert np.array_equal(batch, drawn[i])


def test_batches_visit_every_sample_once_an_epoch() -> None:
    drawn = batches(seed=0, round=2, client=9, n=10, batch_size=4, steps=7)
    assert drawn.shape == (7, 4)
    assert (drawn[2] >= 0).sum() == 2  # the short last batch
    for epoch in (drawn[:3], drawn[3:6]):
        assert sorted(epoch[epoch >= 0]) == list(range(10))
    assert not np.array_equal(drawn[:3], drawn[3:6])


def test_keys_are_independent() -> None:
    """No two keys that a run uses share a stream: first draws over seeds, purposes, rounds and clients are distinct."""
    first = {
        float(rng.generator(seed, purpose, round, client).random())
        for seed in range(3)
        for purpose in rng.Purpose
        for round in range(5)
        for client in range(20)
    }
    assert len(first) == 3 * len(rng.Purpose) * 5 * 20


def test_purposes_are_pinned() -> None:
    """No two have one number, by which they would share their draws, and none is renumbered."""
    assert " ".join(f"{name}={int(purpose)}" for name, purpose in rng.Purpose.__members__.items()) == (
        "SPLIT=1 DATA=2 PARTITION=3 INIT=4 SAMPLE=5 WORK=6 BATCH=7 COIN=8 NOISE=9 BLOCK=10 VALIDATION=11 PRIVACY=12 "
        "ROUND=13 MASK=14 CODE=15 AVAILABLE=20 TRAIT=21 DEVICE=22 DROPOUT=23 FAULT=24 TIE=25 EDGE=26 LOOK=30 HOSTILE=40"
    )


def test_a_keyed_draw_is_pinned() -> None:
    """Published results depend on these bits; a change of them must be a decision."""
    assert rng.generator(7, rng.Purpose.BATCH, 3, 11).integers(0, 10**9, 3).tolist() == [
        282982965,
        315003046,
        415082555,
    ]
    for key in (0, 0, 0, 0, 0), (2**63, 7, 3, 11, 2), (5, 40, 10**6, 2**40, 10**5):
        seed, purpose, round, client, step = key
        numpy_own = np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, step, client, round]))
        draw = rng.generator(seed, purpose, round, client, step)  # type: ignore[arg-type]
        assert draw.bit_generator.random_raw(9).tolist() == numpy_own.bit_generator.random_raw(9).tolist()


def test_blocks_of_a_client_differ_by_one_sample_at_most() -> None:
    for n, blocks in itertools.product(range(1, 14), range(1, 9)):
        members = in_blocks(np.arange(n), blocks)
        assert members.shape == (blocks, -(-n // blocks))
        parts = [part[part >= 0].tolist() for part in members]
        assert parts == [part.tolist() for part in np.array_split(np.arange(n), blocks)]


def test_batchnorm_as_torch_has_it_is_refused_by_name() -> None:
    """`Supervised` replaces it; whoever lays a model out by hand would mix its statistics."""
    with pytest.raises(UserError, match=r"layer '1' is BatchNorm1d.*torch.nn.GroupNorm\(2, 4\)"):
        Layout(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def test_broken_data_name_their_client() -> None:
    x, y = np.zeros((6, 3), np.float32), np.zeros(6, np.int64)

    def build(x: np.ndarray, y: np.ndarray) -> Supervised:
        data = Dataset("d", x, y, x[:1], y[:1], classes=2)
        return Supervised(lambda: nn.Linear(3, 2), data, [np.array([0, 1]), np.array([5, 2, 3]), np.array([4])])

    build(x, y)
    x[5] = np.nan
    with pytest.raises(UserError, match="client 1 has 1 samples with NaN"):
        build(x, y)
    x[5], y[4] = 0, 2
    with pytest.raises(UserError, match="client 2 has the label 2, outside 0 to 1"):
        build(x, y)


def test_the_start_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    p = small()
    x = p.init(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(p.init(3), x)
    assert not torch.equal(p.init(4), x)


def test_no_clock_and_no_file_chooses_the_chunk(tmp_path, monkeypatch) -> None:
    """Rounds advanced by hand and rounds of a job resolved beforehand have the same bits, however busy the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("a clock was read"))
    job = Job(small("dense", torch.float32), METHODS["scaffold"](), SCHEDULE, engine=Stacked())
    by_hand, beforehand = run(job), run(resolved(job))
    assert torch.equal(by_hand.server.x, beforehand.server.x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cohort", [0, 9])
def test_an_impossible_cohort_is_one_sentence(cohort: int) -> None:
    with pytest.raises(UserError, match=f"a cohort of {cohort} cannot be drawn from 8 clients"):
        start(Job(small(), METHODS["fedavg"](), replace(SCHEDULE, cohort=cohort)))


CHAINS: dict[str, Callable[[], nn.Sequential]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 3)),
    "two layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 8), nn.ReLU(), nn.Linear(8, 3)),
    "three layers": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(100, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)
    ),
    "one channel": lambda: nn.Sequential(
        nn.Conv2d(1, 4, (3, 2), stride=(1, 2), padding=(2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    ),
    "dilated": lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(1, 4, 3, dilation=2), nn.Flatten(), nn.Linear(144, 3)),
    "pool first": lambda: nn.Sequential(
        nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
    ),
    "pool before and after": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3),
    ),
    "softmax twice": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 3), nn.Softmax(dim=1)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "onednn", "close"),
    [
        (torch.float64, products.ONEDNN, {"rtol": 1e-12, "atol": 1e-14}),
        (torch.float32, products.ONEDNN, {"rtol": 1e-5, "atol": 2e-6}),
        (torch.float32, False, {"rtol": 1e-5, "atol": 2e-6}),
    ],
    ids=["float64", "float32", "float32 by torch"],
)
@pytest.mark.parametrize("name", CHAINS)
def test_kernels_are_the_gradient(
    name: str, numbers: torch.dtype, onednn: bool, close: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hand-written backward against autograd, with short batches and with ties, on images most of which is blank."""
    monkeypatch.setattr(products, "ONEDNN", onednn)
    draw = np.random.default_rng(0)
    x = (draw.standard_normal((40, 1, 10, 10)) * (draw.random((40, 1, 10, 10)) > 0.7)).astype(np.float32)
    y = draw.integers(0, 3, 40)
    p = Supervised(CHAINS[name], Dataset("blank", x, y, x, y, 3), [np.arange(40)], dtype=numbers)
    assert p.accumulate is not None
    at = torch.stack([p.init(seed) for seed in range(3)])
    at += 0.1 * torch.as_tensor(np.random.default_rng(1).standard_normal(at.shape), dtype=numbers)
    samples = torch.arange(12).view(3, 4)
    weight = torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0], [1, 0, 0, 0]], dtype=p.dtype)
    for held in (None, weight):
        got = p.gradients(at, samples, held)
        onto = at.clone()
        p.accumulate(onto, 0.5, -2.0, onto, samples, held)
        for s in range(3):
            kept = samples[s] if held is None else samples[s][held[s] > 0]
            expected = p.gradient(at[s], kept)
            assert torch.allclose(got[s], expected, **close)
            assert torch.allclose(onto[s], 0.5 * at[s] - 2.0 * expected, **close)
    assert torch.equal(p.x[:], torch.as_tensor(x, dtype=p.dtype))


def test_other_networks_have_no_kernel() -> None:
    class Mine(nn.ReLU):
        pass

    x, y = np.zeros((4, 1, 6, 6), np.float32), np.zeros(4, np.int64)
    for layers in (
        [nn.Flatten(), nn.Linear(36, 3), nn.Tanh()],
        [nn.Flatten(), nn.Linear(36, 4), Mine(), nn.Linear(4, 3)],
        [nn.Conv2d(1, 3, 6), nn.ReLU(), nn.Flatten()],
        [nn.Conv2d(1, 3, 6, padding_mode="circular"), nn.Flatten(), nn.Linear(3, 3)],
        [nn.Conv2d(1, 3, 1, padding="same"), nn.Flatten(), nn.Linear(108, 3)],
        [nn.Conv2d(1, 3, 3), nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(12, 3)],
        [nn.Conv2d(1, 3, 3), nn.Linear(4, 1), nn.Flatten(), nn.Linear(12, 3)],
        [nn.Conv2d(1, 3, 6, bias=False), nn.Flatten(), nn.Linear(3, 3)],
    ):
        build = lambda layers=layers: nn.Sequential(*layers)  # noqa: E731
        assert Supervised(build, Dataset("d", x, y, x, y, 3), [np.arange(4)]).accumulate is None


class Counted(NamedTuple):
    """A case of the rule: features of a linear model of 10 classes, clients, batch and torch's threads."""

    features: int
    cohort: int
    batch: int
    threads: int = 2
    dtype: torch.dtype = torch.float32


def chosen(case: Counted, chunk_given: int | str | None = "auto", workers_given: int | str = "auto") -> tuple[int, int]:
    n = case.cohort * case.batch
    x, y = np.zeros((n, case.features), np.float32), np.zeros(n, np.int64)
    data = Dataset("blank", x, y, x[:1], y[:1], 10)
    p = Supervised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(case.features, 10)),
        data,
        np.split(np.arange(n), case.cohort),
        dtype=case.dtype,
    )
    plan = replace(SCHEDULE, cohort=case.cohort).plan(0, METHODS["fedavg"](), p.roster)
    assignment = Assignment(METHODS["fedavg"](), Solver(), Keyed(0, case.batch))
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        return chunk.auto(p.objective, assignment, plan, chunk_given, workers_given)
    finally:
        torch.set_num_threads(before)


def test_the_rule_for_chunk_and_workers() -> None:
    assert chosen(Counted(2_000, 100, 10, threads=1)) == (
        50,
        1,
    )  # a model of 80 kB and as much of samples: 52 in 8 MB
    assert chosen(Counted(2_000, 100, 10)) == (50, 2)
    assert chosen(Counted(2_000, 100, 10, dtype=torch.float64)) == (25, 2)
    assert chosen(Counted(4_000, 102, 10, dtype=torch.float64)) == (13, 2)  # four chunks a worker, about equal
    assert chosen(Counted(784, 100, 5)) == (100, 1)  # too little for two
    assert chosen(Counted(64, 100, 10)) == (100, 1)
    assert chosen(Counted(784, 100, 10, threads=16)) == (34, 3)  # enough for three
    assert chosen(Counted(100_000, 10, 10)) == (1, 2)  # a model larger than the cache
    assert chosen(Counted(20_000, 3, 20, threads=16)) == (1, 3)  # a worker has a client at least


def test_what_is_given_stays() -> None:
    case = Counted(5_000, 10, 20)
    assert chosen(case) == (5, 2)
    assert chosen(case, None) == (10, 1)
    assert chosen(case, 4) == (4, 2)
    assert chosen(case, 20, 3) == (10, 3)
    assert chosen(case, "auto", 1) == (10, 1)


def test_a_model_is_built_for_its_start_and_not_in_every_round() -> None:
    """Weights that are read from files, or trained first as here, take longer than a round."""
    builds = []

    def model() -> nn.Module:
        builds.append(1)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    draw = np.random.default_rng(0)
    data = Dataset(
        "some", draw.normal(size=(20, 5)), draw.integers(0, 3, 20), np.zeros((1, 5)), np.zeros(1, np.int64), 3
    )
    problem = Supervised(model, data, [np.arange(10), np.arange(10, 20)])
    job = Job(problem, METHODS["fedavg"](), Schedule(1, 2, 0.1, batch_size=4), engine=Stacked())
    state = start(job)
    before = len(builds)
    for _ in range(3):
        state = advance(job, state)
    assert len(builds) == before <= 3
    assert torch.equal(problem.init(1), problem.init(1))
    assert not torch.equal(problem.init(1), problem.init(2))
    first = problem.init(1)
    problem.init(1).zero_()
    assert torch.equal(problem.init(1), first)


@pytest.mark.parametrize(
    ("network", "size", "threads"), [("dense", 1, 1), ("dense", 10**9, 2), ("convolution", 1, 2), ("generic", 1, 2)]
)
def test_small_products_of_dense_networks_have_one_thread(
    network: str, size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others what a sample takes is not counted."""
    noted, draw = [], Keyed.draw

    def note(draws: Keyed, *of: Any) -> Drawn:
        noted.append(torch.get_num_threads())
        return draw(draws, *of)

    monkeypatch.setattr(Keyed, "draw", note)
    monkeypatch.setattr(chunk, "AWAKE", chunk.AWAKE // size)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(Job(small(network), make("fedavg"), SCHEDULE, engine=Stacked(None, 1)), 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert noted == [threads] * SCHEDULE.cohort
