"""Step sizes that a rule finds: the published loops, the same on every engine, and what methods make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from test_engines import SCHEDULE, assert_same, run, small
from test_fixed_points import gap, problem
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Keyed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Client, Constant, Done, Local, Orders, Pull, Rule, Scale, Step
from fedconcord.method.step import step
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.sizes import delta, dog, normed
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.study.search.space import space_of
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from plain_step import falling
from table import TABLE, make
from tiers import tiers

CPU = torch.device("cpu")
RULES = {"delta": delta(), "dog": dog(), "normed": normed()}
WEIGHT_DECAY = 0.05


def paced(name: str) -> bool:
    return refuse(Solver(pace=delta()), make(name)) is None


PACED = [name for name in METHODS if paced(name)]
EACH = tiers(PACED, quick=("scaffold", "afedpd", "fedsmoo", "losac", "mimesvrg"))
"""What differs: a normaliser, a pull, SAM's tilt, a table, a snapshot."""


# -- the published loops, written out ----------------------------------------------------------------------------------


Direction = Callable[[int, Tensor], Tensor]


def delta_loop(direction: Direction, x: Tensor, steps: int, numbers: tuple[float, ...], limit: float) -> list[Tensor]:
    """Delta-SGD on direction(k, x): every model."""
    gamma, growth, first = numbers
    xs, size, theta, last = [x], min(first, limit), 1.0, None
    for k in range(steps):
        now = direction(k, xs[-1])
        if last is not None:
            grown = (1 + growth * theta) ** 0.5 * size
            moved, change = float((xs[-1] - xs[-2]).norm()), float((now - last).norm())
            new = min(gamma * moved / (2 * change), grown, limit)
            size, theta = new, new / size
        xs.append(xs[-1] - size * now)
        last = now
    return xs


def dog_loop(direction: Direction, x: Tensor, steps: int, first: float) -> list[Tensor]:
    """DoG on direction(k, x): every model."""
    xs, squares = [x], 0.0
    for k in range(steps):
        now = direction(k, xs[-1])
        squares += float(now.norm()) ** 2
        reach = max([first * (1 + float(x.norm())), *(float((one - x).norm()) for one in xs)])
        xs.append(xs[-1] - reach / squares**0.5 * now)
    return xs


def normed_loop(direction: Direction, x: Tensor, steps: int, first: float, bound: float) -> list[Tensor]:
    """Steps of one size, the first of them `first` long and none `bound` times longer: every model."""
    xs, size = [x], first / float(direction(0, x).norm())
    for k in range(steps):
        now = direction(k, xs[-1])
        xs.append(xs[-1] - min(size, bound * first / float(now.norm())) * now)
    return xs


@pytest.mark.parametrize("kind", RULES)
def test_the_published_loop(kind: str) -> None:
    """On all that eta multiplies: a pull, a linear term, a scale and weight decay, with mini-batches."""
    p = quadratics(0, 3, torch.float64, CPU, dim=5)
    x, anchor, linear = (
        torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2, 3)
    )
    local = Local(x, Scale(0.7), Constant(linear), Pull(0.3, anchor))
    objective, keyed, order = p.objective, Keyed(4, 2), Orders(0, 1, 12, 1.0, 4)
    held = objective.samples(1)
    batches = keyed.draw(METHODS["fedavg"](), order, len(held)).batches
    assert batches is not None
    samples = [held[torch.as_tensor(batch[batch >= 0])] for batch in batches]

    def whole(k: int, at: Tensor) -> Tensor:
        return 0.7 * objective.gradient(at, samples[k]) + WEIGHT_DECAY * at + linear + 0.3 * (at - anchor)

    limit = min(10 * 0.2, 2 / (2 * (0.3 + WEIGHT_DECAY)))
    loops = {
        "delta": lambda: delta_loop(whole, x, 12, (2.0, 0.1, 0.2), limit),
        "dog": lambda: dog_loop(whole, x, 12, 0.01),
        "normed": lambda: normed_loop(whole, x, 12, 0.4, 2.0),
    }
    xs = loops[kind]()
    assignment = Assignment(METHODS["fedavg"](), Solver(weight_decay=WEIGHT_DECAY, pace=RULES[kind]), keyed)
    done, _ = step.solve(objective, assignment, local, samples, None, held, 1.0)
    assert float((done.x - xs[-1]).norm()) < 1e-12
    assert done.step_size is not None
    assert done.step_size.shape == ()
    last = (xs[-2] - xs[-1]) / whole(11, xs[-2])
    assert torch.allclose(done.step_size.expand(5), last, rtol=1e-9)
    pairs = list(zip(xs[1:-1], xs[:-2], strict=True))
    steep = [float((whole(k + 1, b) - whole(k, a)).norm() / (b - a).norm()) for k, (b, a) in enumerate(pairs)]
    if kind == "delta":
        assert done.curvature is not None
        assert float(done.curvature) == pytest.approx(max(steep), rel=1e-9)
        assert done.power is None
    else:
        assert done.curvature is None
        assert done.power is not None
        squares = [float(whole(k, at).norm()) ** 2 for k, at in enumerate(xs[:-1])]
        assert float(done.power) == pytest.approx(sum(squares) / 12, rel=1e-9)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("name", EACH)
def test_engines_agree(name: str, kind: str) -> None:
    """The reference, the loop that makes gradients, and the short one where only `accumulate` is called."""
    schedule = replace(SCHEDULE, lr=1.0, cohort=8 if TABLE[name].everyone else 5)
    for network in ("generic", "dense"):
        job = Job(small(network), make(name), schedule, Solver(pace=RULES[kind]), Serial())
        assert_same(run(replace(job, engine=Stacked(2)), 3), run(job, 3))


def test_methods_with_rules() -> None:
    """By what they declare: those that count in lr, or prescribe their own step, are left out."""
    assert [name for name in METHODS if TABLE[name].paced] == PACED


@pytest.mark.parametrize("name", EACH)
def test_a_rule_that_never_changes_is_a_constant_step(name: str) -> None:
    """Methods that use lr beside the normaliser would differ: with a rule it is 1."""
    same = delta(gamma=1e9, growth=0.0, first=0.1)
    schedule = replace(SCHEDULE, cohort=8 if TABLE[name].everyone else 5)
    job = Job(small("dense"), make(name), schedule, engine=Stacked(None))
    by_rule = replace(job, schedule=replace(schedule, lr=1.0), solver=Solver(pace=same))
    assert_same(run(by_rule), run(job))


def test_a_method_that_is_refused_would_be_wrong() -> None:
    """The test above can fail."""
    schedule = replace(SCHEDULE, cohort=8)
    job = Job(quadratics(0, 8, torch.float64, CPU), make("fedhybrid"), schedule, engine=Stacked(None))
    same = delta(gamma=1e9, growth=0.0, first=0.1)
    forced = replace(
        job,
        algorithm=replace(job.algorithm, step=job.algorithm.step._replace(size=same)),
        schedule=replace(schedule, lr=1.0),
    )
    a, b = start(job), start(job)
    for _ in range(3):
        a, b = advance(job, a), advance(forced, b)
    assert float((a.server.x - b.server.x).norm()) > 1e-3


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("name", EACH)
def test_compiled_steps_are_as_serial_has_them(name: str, kind: str) -> None:
    schedule = replace(SCHEDULE, lr=0.5, cohort=8 if TABLE[name].everyone else 5)
    job = Job(small("dense"), make(name), schedule, Solver(pace=RULES[kind], weight_decay=0.01), Serial())
    assert_same(run(replace(job, engine=Stacked(None, 1, kernel="compiled")), 2), run(job, 2))


# -- what methods make of them -----------------------------------------------------------------------------------------


def full(name: str, rule: Rule, cohort: int = 5) -> Job:
    """Full gradients, unequal steps, absent clients."""
    schedule = Schedule(seed=1, cohort=cohort, lr=1.0, work=uniform(2, 8), unit="steps")
    return Job(problem(), make(name), schedule, Solver(pace=rule), Stacked(None))


@pytest.mark.parametrize("kind", RULES)
def test_the_normaliser_is_the_response_to_unit_gradients(kind: str) -> None:
    """A gradient more, of ones, moves x by the normaliser in the same step sizes, whatever the pull."""
    p = quadratics(0, 3, torch.float64, CPU, dim=5)
    start = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    local = Local(start, Scale(0.6), Pull(0.4, start))
    held = p.objective.samples(1)
    assignment = Assignment(replace(METHODS["scaffold"]()), Solver(pace=RULES[kind]), Keyed(4, None))
    sizes: list[float] = []
    done = None
    for steps in range(1, 7):
        done, _ = step.solve(p.objective, assignment, local, [held] * steps, None, held, 0.5)
        assert done.step_size is not None
        sizes.append(float(done.step_size))
    moved = 0.0
    for size in sizes:
        moved += 0.5 * size * (0.6 - 0.4 * moved)
    assert done is not None
    assert float(done.normaliser) * 0.5 == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("name", tiers(["scaffold", "fednova_vr", "feddyn", "afedpd"], quick=("scaffold", "afedpd")))
def test_exact_methods_stay_exact(name: str) -> None:
    """Heterogeneous quadratics, absent clients and unequal steps."""
    job = full(name, delta())
    assert gap(job, 400) < 1e-8


def test_fednova_weighs_unequal_clients_alike() -> None:
    """FedNova's limit with unequal work is near that of equal work, FedAvg's is not: sums of step sizes tell."""
    found = {}
    for name in ("fedavg", "fednova"):
        job = full(name, delta(gamma=0.02), cohort=20)
        found[name] = gap(job, 100)
    assert found["fednova"] < 0.5 * found["fedavg"]


def test_losses_in_other_units_have_the_same_iterates() -> None:
    """f -> c f after the first step: delta(first = eta / c) walks the same way."""
    p = quadratics(0, 3, torch.float64, CPU, dim=5)
    held, x = p.objective.samples(1), torch.ones(5, dtype=torch.float64)
    ends = []
    for c in (1.0, 1000.0):
        assignment = Assignment(METHODS["fedavg"](), Solver(pace=delta(first=0.05 / c, bound=1e6)), Keyed(4, None))
        done, _ = step.solve(p.objective, assignment, Local(x, Scale(c)), [held] * 15, None, held, 1.0)
        ends.append(done.x)
    assert torch.allclose(*ends, rtol=1e-10)


def along_ones(rule: Rule, slopes: list[float], first: Tensor | None = None) -> Done:
    """A client's steps from ones [5], where the gradient of step k is slopes[k] times ones."""
    p = quadratics(0, 3, torch.float64, CPU, dim=5)
    held, x, slope = p.objective.samples(1), torch.ones(5, dtype=torch.float64), iter(slopes)
    objective = replace(p.objective, gradient=lambda x, samples: next(slope) * torch.ones_like(x))
    assignment = Assignment(METHODS["fedavg"](), Solver(pace=rule), Keyed(4, None))
    return step.solve(objective, assignment, Local(x, first=first), [held] * len(slopes), None, held, 1.0)[0]


@pytest.mark.parametrize("kind", RULES)
def test_gradients_that_vanish_are_no_nan(kind: str) -> None:
    """A client at its optimum, and one whose gradient is constant: nothing to divide by."""
    for slope in (0.0, 1.0):
        done = along_ones(RULES[kind], [slope] * 200)
        assert done.x.isfinite().all()
        assert done.step_size is not None
        assert done.step_size.isfinite().all()
        if kind == "delta":
            assert float(done.step_size) == pytest.approx(2.0)  # bound times first


def test_a_batch_without_a_gradient_does_not_end_a_client() -> None:
    """Delta-SGD learns no curvature from a step of length 0, whatever the next batch's gradient."""
    assert float(along_ones(delta(), [0.0, 1.0, 1.0]).x.max()) < 1.0


def test_the_first_step_of_dog() -> None:
    """A method's where it gives one, else one `first` (1 + ||x||) long, however steep the gradient."""
    for given, length in ((None, 0.01 * (1 + 5**0.5)), (torch.tensor(0.2, dtype=torch.float64), 0.2 * 100 * 5**0.5)):
        done = along_ones(dog(0.01), [100.0], given)
        assert float((done.x - 1).norm()) == pytest.approx(length)


def test_a_method_gives_the_first_step_and_learns_the_last() -> None:
    """`Local.first`, `Done.step_size` and `Done.curvature`, a number a client, kept in its row."""
    plain = METHODS["fedavg"]()

    class Row(NamedTuple):
        pace: Tensor  # []
        curvature: Tensor  # []

    def finish(down: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        assert done.step_size is not None
        assert done.curvature is not None
        return done.x - down, Row(done.step_size, done.curvature)

    keeping = replace(
        plain,
        step=Step(size=delta()),
        init_client=lambda x: Row(x.new_tensor(0.2), x.new_tensor(0.0)),
        start=lambda x, row, client: Local(x, first=row.pace),
        finish=finish,
    )
    job = Job(small("dense"), keeping, replace(SCHEDULE, lr=1.0), engine=Serial())
    reference = run(job)
    assert_same(run(replace(job, engine=Stacked(2))), reference)
    rows = reference.store.gather(reference.store.ids())
    assert (rows.pace != 0.2).any()
    assert (rows.curvature > 0).any()


def test_a_shared_tensor_stays_on_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that all clients share, as a tensor, makes no gradients apart."""
    job = Job(small("dense"), make("fedprox"), SCHEDULE, engine=Stacked(None))
    mu = torch.tensor(0.3, dtype=torch.float64)
    shared = replace(job.algorithm, start=lambda x, row, client: Local(x, Pull(mu, x)))
    monkeypatch.setattr(step, "walk", None)
    assert_same(run(replace(job, algorithm=shared)), run(job))


# -- refusals and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "algorithm", "said"),
    [
        (Solver(kind="lbfgs"), make("fedavg"), "L-BFGS chooses its own steps, and so does a rule"),
        (Solver(momentum=0.5), make("fedavg"), "directions, which momentum mixes"),
        (Solver(step_schedule=falling(0.9)), make("fedavg"), "leave local.step_schedule out"),
        (Solver(clip_direction=1.0, clip_form="released"), make("fedavg"), "local.clip_form released clips a part"),
        (Solver(), make("mfl"), "prescribes its own local step"),
        (Solver(), make("fedhybrid"), "prescribes its own local step"),
        (Solver(), with_server(make("fedavg"), momentum(0.9, 1.0, "gradients")), "in units of one local step size"),
        (
            Solver(),
            replace(make("fedavg"), step=Step(size=dog())),
            "brings its own rule of step sizes, dog; leave local.lr out",
        ),
    ],
)
def test_refused_in_a_sentence(solver: Solver, algorithm: Algorithm, said: str) -> None:
    assert said in (refuse(solver._replace(pace=delta()), algorithm) or "")


def test_a_whole_direction_may_be_clipped() -> None:
    assert refuse(Solver(clip_direction=1.0, clip_form="whole", pace=delta()), make("fedavg")) is None


def test_clients_proximal_steps_are_refused() -> None:
    job = Job(small("dense", regulariser=l1(0.1)), make("fedavg"), SCHEDULE, Solver(pace=delta()))
    with pytest.raises(UserError, match=r"a rule gives each its own; give local.lr a number, or a method whose server"):
        start(job)


def test_a_rule_alone_means_what_it_meant() -> None:
    """Defaults are part of every result: delta's and DoG's are their papers', normed's those of `auto`."""
    assert delta() == Rule("delta", 0.2, gamma=2.0, growth=0.1, bound=10.0)
    assert dog() == Rule("dog", 0.01)
    assert normed() == Rule("normed", 0.4, bound=2.0)


def test_settings_name_a_rule() -> None:
    config = resolve_run(from_nested({"data": "quadratics", "local.lr": "dog(0.5)", "method": "fedavg"}, "test"))
    assert config.local.lr == "dog(first=0.5)"
    job = build(config)
    assert (job.solver.pace, job.schedule.plan(0, job.algorithm, job.problem.roster).lr) == (dog(0.5), 1.0)
    usual = resolve_run(from_nested({"data": "quadratics"}, "test"))
    assert (usual.local.lr, build(usual).solver.pace) == (0.1, None)
    assert space_of(config, "fedavg(local.lr=auto)", {}).places == {}
