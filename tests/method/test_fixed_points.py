"""Where methods stop on heterogeneous quadratics with partial participation and unequal steps, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chains import response_of
from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, fednova_quadratics, quadratics
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord.method.step.sizes import ByStep, delta
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.server import sgd, with_server
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from plain_step import falling
from table import TABLE, make
from tiers import tiers

CPU = torch.device("cpu")


def problem() -> Quadratic:
    found = quadratics(3, 20, torch.float64, CPU, dim=6, blocks=3, condition=4.0)
    found.sizes[:] = 1.0  # the optimum of equal weights
    found._optimum = found.optimum(np.full(20, 1 / 20))
    return found


def samples_of(i: int) -> torch.Tensor:
    return torch.arange(3 * i, 3 * i + 3)


def gap(job: Job, rounds: int) -> float:
    """Relative distance of the method's answer to the optimum."""
    state = run(job, rounds)
    assert isinstance(job.problem, Quadratic)
    x = next(iter(job.algorithm.models(state.server).values()))
    optimum = job.problem._optimum
    return float((x - optimum).norm() / optimum.norm())


def job(algorithm: Algorithm, cohort: int = 5, lr: float = 0.1) -> Job:
    schedule = Schedule(seed=1, cohort=cohort, lr=lr, work=uniform(2, 8), unit="steps")
    return Job(problem(), algorithm, schedule, engine=Stacked(None))


PARTIAL = [name for name, row in TABLE.items() if row.exact == "partial"]
FULL = [name for name, row in TABLE.items() if row.exact == "full"]


def test_every_method_has_a_row() -> None:
    assert set(TABLE) == set(METHODS)


@pytest.mark.parametrize(
    "name",
    tiers([*PARTIAL, "scaffold option 1", "losac mean", "losac gradient"], quick=("scaffold", "fedadmm")),
)
def test_reaches_the_optimum_with_absent_clients(name: str) -> None:
    extra = {"option 1": {"option": 1}, "mean": {"block_scale": "mean"}, "gradient": {"init": "gradient"}}
    name, _, variant = name.partition(" ")
    assert gap(job(make(name, **extra.get(variant, {}))), TABLE[name].rounds) < 1e-10


@pytest.mark.parametrize("name", tiers(FULL, quick=("fedpd",)))
def test_reaches_the_optimum_with_all_clients(name: str) -> None:
    this = job(make(name), cohort=20)
    if TABLE[name].equal_steps:
        assert gap(this, 500) > 1e-3
        this = replace(this, schedule=replace(this.schedule, work=lambda *key: 5))
    assert gap(this, TABLE[name].rounds) < 1e-10


@pytest.mark.parametrize(
    "name", tiers([name for name, row in TABLE.items() if row.exact == "no"], quick=("fedavg", "fedcm", "fedsam"))
)
def test_methods_that_claim_nothing_stop_elsewhere(name: str) -> None:
    """The tests above can fail: on the same job these stop far away, though every client takes part."""
    assert gap(job(make(name), cohort=20), 500) > 1e-3


EXACT = tiers([*PARTIAL, *FULL], quick=("vrlsgd", "fedhybrid", "fedadmm", "afedpd", "scaffold"))
NO_SERVER, NO_REPEATS = {"vrlsgd", "fedhybrid", "fedadmm"}, {"fedadmm", "afedpd", "afedpdsam", "auto"}


def exact(algorithm: Algorithm, name: str) -> Job:
    """A job in which the method reaches the optimum."""
    this = job(algorithm, cohort=5 if name in PARTIAL else 20)
    equal = replace(this.schedule, work=lambda *key: 5)
    return replace(this, schedule=equal) if TABLE[name].equal_steps else this


@pytest.mark.parametrize("name", EXACT)
def test_a_server_optimiser_moves_no_fixed_point_or_is_refused(name: str) -> None:
    if name in NO_SERVER:
        with pytest.raises(UserError, match=r"cannot have a server optimiser, as its .*; leave `server` out"):
            with_server(make(name), sgd(0.5))
    elif not make(name).facts.server_optimiser:
        assert gap(exact(with_server(make(name), sgd(0.5)), name), 3 * TABLE[name].rounds) < 1e-9


@pytest.mark.parametrize("name", EXACT)
def test_clients_that_are_drawn_twice_move_no_fixed_point_or_are_refused(name: str) -> None:
    this = exact(make(name), name)
    this = replace(this, schedule=replace(this.schedule, cohort=5, sampler=sampling.with_replacement()))
    if name in NO_REPEATS:
        with pytest.raises(
            UserError, match=r"may draw a client twice, .* cannot have that, as its .*; use sampling uniform"
        ):
            start(this)
    elif name in PARTIAL:
        assert gap(this, 2 * TABLE[name].rounds) < 1e-9
    elif TABLE[name].everyone:
        with pytest.raises(UserError, match="needs all 20 clients"):
            start(this)


def test_sampling_by_size_does_not_count_samples_twice_or_beside_running_sums() -> None:
    for name, options, words in (
        ("fednova", {}, "weights size would count them once more"),
        ("scaffold", {}, "running sums count clients alike"),
        ("fedavg", {}, None),
        ("fednova", {"weights": "uniform"}, None),
        ("fedavg", {"weights": "unbiased"}, None),
    ):
        this = job(METHODS[name](**options))
        this = replace(this, schedule=replace(this.schedule, sampler=sampling.by_size()))
        if words is None:
            run(this, 1)
        else:
            with pytest.raises(UserError, match=words):
                start(this)


def test_weight_decay_is_of_the_objective_or_refused() -> None:
    """Inexact ADMM divides f_i by N where its objective is `mean`; with `sum` it minimises F + decay ||x||^2 / 2."""
    decay = Solver(weight_decay=0.1)
    with pytest.raises(UserError, match=r"cannot have local\.weight_decay, as objective mean divides f_i by N"):
        start(replace(job(METHODS["fedadmm_inexact"](objective="mean")), solver=decay))
    this = replace(job(make("fedadmm_inexact")), solver=decay)
    x = run(this, 2 * TABLE["fedadmm_inexact"].rounds).server.x
    assert isinstance(this.problem, Quadratic)
    gradient = this.problem.H_mean.mean(0) @ x - this.problem.b_mean.mean(0) + 0.1 * x
    assert float(gradient.norm()) < 1e-9


@pytest.mark.parametrize("name", ["fednova", "fednova_vr"])
def test_tau_eff_tau_is_refused_where_steps_are_not_equally_long(name: str) -> None:
    """With a rule of step sizes or a schedule it would take steps longer by K over the sum of their sizes."""
    for solver, words in (
        (Solver(pace=delta(first=0.05)), "counts in units of one local step size"),
        (Solver(step_schedule=ByStep("falling", falling)), "counts steps as if all were equally long"),
    ):
        assert words in str(refuse(solver, METHODS[name](tau_eff="tau"), False))
        assert refuse(solver, METHODS[name](), False) is None


@pytest.mark.parametrize("name", [name for name in FULL if not TABLE[name].everyone])
def test_methods_that_need_all_clients_do_not_reach_it_without(name: str) -> None:
    assert gap(job(make(name)), 800) > 1e-3


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.everyone])
def test_partial_participation_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} needs all 20 clients in every round, and a cohort of 5 may leave"):
        start(job(make(name)))


@pytest.mark.slow
def test_fedadmm_with_server_step_one_keeps_a_floor() -> None:
    """grad F = rho (1 - |S| / N) (theta - theta^0) at its fixed point: biased away from the start."""
    this = job(METHODS["fedadmm"](rho=0.1, form="paper"))
    x = run(this, 3000).server.x
    assert isinstance(this.problem, Quadratic)
    gradient = this.problem.H_mean.mean(0) @ x - this.problem.b_mean.mean(0)
    predicted = 0.1 * (1 - 5 / 20) * x
    assert float((gradient - predicted).norm()) < 1e-8
    assert float((x - this.problem._optimum).norm()) > 1e-2


def test_fedadmm_with_a_rho_that_rises_is_exact() -> None:
    """Algorithm 1 with eta = |S| / N: a change of rho far from the optimum must not move its limit."""
    this = job(METHODS["fedadmm"](rho=[[0, 0.2], [40, 0.6]], form="paper", server_lr="participation"))
    assert isinstance(this.problem, Quadratic)
    halfway = run(this, 41).server.x
    assert float((halfway - this.problem._optimum).norm()) > 1e-3
    assert gap(this, 600) < 1e-10


def test_fedadmm_from_theta_is_exact_with_the_step_of_participation() -> None:
    """Algorithm 1's message from the other start: the same sum over clients, and so the same limit."""
    this = job(METHODS["fedadmm"](rho=0.3, form="paper_from_theta", server_lr="participation"))
    assert gap(this, 10) > 1e-3
    assert gap(this, 800) < 1e-10


def lemma_1(p: Quadratic, tau: np.ndarray, eta: float) -> torch.Tensor:
    """FedNova, Lemma 1 with finite eta on f_i = 1/2 ||x - e_i||^2: FedAvg's limit."""
    weight = torch.as_tensor(1 - (1 - eta) ** tau)
    return (weight[:, None] * p.b_mean).sum(0) / weight.sum()


@pytest.mark.parametrize("eta", tiers([0.05, 0.001], quick=[0.05]))
def test_fedavg_stops_at_lemma_1(eta: float) -> None:
    p = fednova_quadratics(0, 30, torch.float64, CPU)
    tau = np.random.default_rng(0).integers(1, 96, 30)
    schedule = Schedule(0, 30, eta, work=lambda seed, round, client: int(tau[client]), unit="steps")
    this = Job(p, METHODS["fedavg"](), schedule, engine=Stacked(None))
    x = run(this, 100 if eta > 0.01 else 400).server.x
    wrong = lemma_1(p, tau, eta)
    assert float((x - wrong).norm() / wrong.norm()) < 1e-6
    assert float((x - p._optimum).norm()) > 1e-3
    if eta < 0.01:  # as eta -> 0: sum tau_i e_i / sum tau_i
        limit = (torch.as_tensor(tau)[:, None] * p.b_mean).sum(0) / tau.sum()
        assert float((x - limit).norm()) < 0.1 * float((x - p._optimum).norm())


@pytest.mark.slow  # lemma 1 is checked above, and by a recipe
def test_fednova_has_no_such_bias() -> None:
    """Its limit differs from the optimum by O(eta): ten times smaller steps, about ten times closer."""
    p = fednova_quadratics(0, 30, torch.float64, CPU)
    tau = np.random.default_rng(0).integers(1, 96, 30)

    def distance(name: str, eta: float) -> float:
        schedule = Schedule(0, 30, eta, work=lambda seed, round, client: int(tau[client]), unit="steps")
        this = Job(p, METHODS[name](), schedule, engine=Stacked(None))
        return p.evaluate(run(this, int(10 / eta / 30)).server.x)["distance"]

    coarse, fine = distance("fednova", 0.01), distance("fednova", 0.001)
    assert 7 < coarse / fine < 14
    assert fine < 0.05 * distance("fedavg", 0.001)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_normaliser_is_the_response_to_unit_gradients(momentum: float, mu: float, scale: float) -> None:
    """||a_i||_1 from the solver against the closed forms of FedNova and a brute-force local loop."""
    eta, tau = 0.02, 13
    got = response_of(tau, mu, eta, momentum, scale=scale) / scale
    x = buffer = 0.0
    for _ in range(tau):
        buffer = momentum * buffer + 1.0
        x -= eta * (buffer + mu * x)
    assert got == pytest.approx(-x / eta, rel=1e-14)
    if momentum and not mu:
        assert got == pytest.approx((tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum), rel=1e-13)
    if mu and not momentum:
        assert got == pytest.approx((1 - (1 - eta * mu) ** tau) / (eta * mu), rel=1e-13)
    if mu and momentum:
        assert got == pytest.approx(60.1455, abs=1e-4)  # algorithms.md 2.4


def test_afedpd_equals_the_loop_over_all_clients() -> None:
    """The O(S d) form against the published one, which moves every absent client's dual, written out here."""
    this = job(METHODS["afedpd"](rho=0.7))
    p, rho = this.problem, 0.7
    theta = mean = p.init(0)
    duals = torch.zeros(20, p.dim, dtype=torch.float64)
    state = start(this)
    for t in range(40):
        plan = this.schedule.plan(t, this.algorithm, p.roster)
        models = []
        for i, k in zip(plan.ids, plan.steps, strict=True):
            x = theta
            for _ in range(k):
                x = x - 0.1 * (p.gradient(x, samples_of(i)) + duals[i] + rho * (x - theta))
            models.append(x)
        mean = torch.stack(models).mean(0)
        moved = mean - theta
        for i in range(20):
            duals[i] += rho * moved
        for i, x in zip(plan.ids, models, strict=True):
            duals[i] += rho * (x - theta) - rho * moved
        theta = mean + duals.mean(0) / rho
        state = advance(this, state)
    rows = state.store.gather(np.arange(20))
    assert torch.allclose(state.server.x, theta, rtol=1e-12, atol=1e-13)
    assert torch.allclose(rho * (state.server.x - state.server.mean + rows.s), duals, rtol=1e-11, atol=1e-12)


def test_server_sums_are_the_means_of_the_rows() -> None:
    """c = mean c_i (SCAFFOLD), h = mean h_i (FedDyn), beta lambda = beta mean lambda_i (FedVRA)."""
    for name, options, pair in (
        ("scaffold", {}, ("c", "c", 1.0)),
        ("feddyn", {"alpha": 0.5}, ("h", "h", 1.0)),
        ("fedvra", {"gamma": 0.5, "a": 2.0, "d": 3.0}, ("dual", "dual", 2.0)),
    ):
        this = job(METHODS[name](**options))
        state = run(this, 30)
        rows = state.store.gather(np.arange(20))
        mean = pair[2] * getattr(rows, pair[1]).mean(0)
        assert torch.allclose(getattr(state.server, pair[0]), mean, atol=1e-12), name


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_identities(engine: Serial | Stacked) -> None:
    """Methods that must agree, do, step for step, to 1e-12."""

    def path(algorithm: Algorithm, cohort: int = 5, steps: int | None = None) -> torch.Tensor:
        this = job(algorithm, cohort)
        if steps is not None:
            this = replace(this, schedule=replace(this.schedule, work=lambda *key: steps))
        return run(replace(this, engine=engine), 20).server.x

    def same(a: torch.Tensor, b: torch.Tensor) -> None:
        assert float((a - b).norm() / b.norm()) < 1e-12

    fedavg = path(METHODS["fedavg"]())
    same(path(METHODS["fedprox"](mu=0.0)), fedavg)
    same(path(METHODS["fedvra"](gamma=0.0, a=0.0, d=4.0)), fedavg)
    same(path(METHODS["fedvra"](gamma=0.7, a=0.0, d=4.0)), path(METHODS["fedprox"](mu=0.7)))
    same(path(METHODS["fedvra"](gamma=0.0, a=0.0, d="fednova")), path(METHODS["fednova"]()))
    same(path(METHODS["fedvra"](gamma=0.5, a=1.0, d=4.0)), path(METHODS["feddyn"](alpha=0.5)))
    same(path(METHODS["fednova"](), steps=4), path(METHODS["fedavg"](), steps=4))
    same(path(METHODS["scaffold"](option=1), 20, 1), path(METHODS["fedsgd"](), 20))
    same(path(METHODS["scaffold"](option=2), 20, 1), path(METHODS["fedsgd"](), 20))
    same(path(METHODS["fedadmm"](rho=0.3), 5), path_twice(engine))


def path_twice(engine: Serial | Stacked) -> torch.Tensor:
    """FedADMM's released message is twice the client's move: a server step of 2 on FedAvg's aggregate of its models."""
    base = METHODS["fedadmm"](rho=0.3)
    doubled = replace(
        base,
        finish=lambda x, row, done, client: (2 * (done.x - x), base.finish(x, row, done, client)[1]),
    )
    return run(replace(job(doubled), engine=engine), 20).server.x


def test_the_local_solver_alone() -> None:
    """Weight decay, momentum and clipping on one client against a loop written out here."""
    this = job(METHODS["fedprox"](mu=0.3), cohort=1)
    this = replace(this, solver=Solver(momentum=0.8, weight_decay=0.05, clip=0.5))
    p = this.problem
    plan = this.schedule.plan(0, this.algorithm, p.roster)
    x = start_x = p.init(0) + 0.0
    buffer = None
    for _ in range(plan.steps[0]):
        g = p.gradient(x, samples_of(plan.ids[0]))
        g = g * min(1.0, 0.5 / float(g.norm())) + 0.05 * x
        buffer = g if buffer is None else 0.8 * buffer + g
        x = x - 0.1 * (buffer + 0.3 * (x - start_x))
    for engine in (Serial(), Stacked(None)):
        got = advance(replace(this, engine=engine), start(this)).server.x
        assert torch.allclose(got, x, rtol=1e-13)


QUICK = ("fedcm", "mofedsam", "scaffold", "fednova")


@pytest.mark.parametrize("name", tiers(TABLE, QUICK))
@pytest.mark.parametrize(
    ("solver", "lr", "plain"),
    [
        (Solver(momentum=0.8), 0.01, 0.05),
        (Solver(step_schedule=falling(0.6)), 0.1, 0.05),
        (Solver(step_schedule=ByStep("up and down", lambda k: 1.0 / (1 + abs(k - 2)))), 0.1, 0.05),
        (Solver(pace=delta()), 1.0, 0.3),
    ],
    ids=["momentum", "step decay", "step schedule", "a rule"],
)
def test_steps_of_other_sizes_are_refused_or_no_worse(name: str, solver: Solver, lr: float, plain: float) -> None:
    """A method that divides a move by its local steps must know what they amount to: else it runs away where the same
    steps of one size, about as long in all, do not."""
    if refuse(solver, make(name)) is not None:
        return
    this = job(make(name), cohort=20 if TABLE[name].everyone else 5, lr=plain)
    this = replace(this, schedule=replace(this.schedule, work=lambda *key: 5))
    other = replace(this, schedule=replace(this.schedule, lr=lr), solver=solver)
    assert gap(other, 100) < max(4 * gap(this, 100), 0.6)
