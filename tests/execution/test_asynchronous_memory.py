"""CA2FL, FedADMM and A-FedPD without rounds against their equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_asynchronous import after, job, problem, response

from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.objectives import Quadratic
from fedconcord.federation.participation.clock import Device
from fedconcord.federation.participation.dropout import fixed as losing
from fedconcord.federation.participation.events import Clock, Staleness, hinge, poly
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms.afedpd import afedpd, afedpd_share
from fedconcord.method.algorithms.ca2fl import ca2fl
from fedconcord.method.algorithms.fedadmm import fedadmm
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Algorithm
from tiers import tiers

LR = 0.1


def own_steps(seed: int, wave: int, client: int) -> int:
    """1 to 5 local steps, the same at every reply."""
    return 1 + client % 5


def by_size(method: str, clock: Clock | None, engine: str = "stacked", **changes: object) -> Job:
    """Clients of unequal weights, times and steps."""
    where = problem()
    where.sizes[:] = np.arange(1.0, 9.0)
    where._optimum = where.optimum(where.sizes / where.sizes.sum())
    algorithm = {"ca2fl": ca2fl, "fedavg": fedavg}[method](weights="size")
    return replace(job(clock, engine, **{"work": own_steps, **changes}), algorithm=algorithm, problem=where)  # type: ignore[arg-type]


def fedavg_point(one: Job, steps: list[int]) -> np.ndarray:
    """Where sum_i p_i D_i(x) = 0, with D_i the affine move of client i."""
    p = one.problem.roster.sizes / one.problem.roster.sizes.sum()
    a = [response(one, i, k, np.zeros(3), LR) for i, k in enumerate(steps)]
    A = [np.stack([response(one, i, k, unit, LR) - a[i] for unit in np.eye(3)], 1) for i, k in enumerate(steps)]
    left, right = sum(w * some for w, some in zip(p, A, strict=True)), sum(w * v for w, v in zip(p, a, strict=True))
    return np.asarray(np.linalg.solve(-left, right))


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("clock", [None, Clock(6, staleness=poly(0.5), max_staleness=4)])
def test_it_is_its_box(engine: str, clock: Clock | None) -> None:
    """All h_i kept at the server, as in the paper; h their mean at every update, damped or refused as replies are."""
    one = by_size("ca2fl", clock, engine, dropout=losing(0.2))
    state, p = start(one), np.arange(1.0, 9.0) / 36
    x, h, past = state.server.x.numpy(), np.zeros((8, 3)), {}
    for t in range(40):
        plan, past[t] = plan_of(one, state), x
        versions = [t] * len(plan.ids) if plan.version is None else plan.version.tolist()
        moves = [response(one, i, k, past[v], LR) for i, k, v in zip(plan.ids, plan.steps, versions, strict=True)]
        factor = [1.0 if clock is None else (1 + t - v) ** -0.5 for v in versions]
        w = p[plan.ids] / p[plan.ids].sum() * factor
        x = x + p @ h + w @ (np.array(moves) - h[plan.ids])
        h[plan.ids] = moves
        state = advance(one, state)
        assert np.abs(state.server.x.numpy() - x).max() < 1e-12
        assert np.abs(state.server.h.numpy() - p @ h).max() < 1e-13
        assert np.abs(state.store.gather(np.arange(8)).h.numpy() - h).max() < 1e-12


@pytest.mark.parametrize("staleness", tiers([None, poly(0.5), hinge(10, 1)], quick=[]))
def test_it_stops_at_fedavgs_point_whoever_replies(staleness: Staleness | None) -> None:
    """To 1e-8 with jobs of 1 to 11 seconds a step, lost, damped and refused; FedBuff stops far from there."""
    clock = Clock(6, staleness=staleness, max_staleness=10)
    one = by_size("ca2fl", clock, dropout=losing(0.1))
    assert [*reasons(one)] == []
    wanted = fedavg_point(one, [own_steps(0, 0, i) for i in range(8)])
    assert np.abs(after(one, 600).server.x.numpy() - wanted).max() < 1e-8
    assert np.abs(after(by_size("fedavg", clock), 100).server.x.numpy() - wanted).max() > 1e-3
    assert isinstance(one.problem, Quadratic)
    assert np.abs(one.problem._optimum.numpy() - wanted).max() > 1e-3


@pytest.mark.parametrize("clock", [None, pytest.param(Clock(8, staleness=poly(0.5)), marks=pytest.mark.slow)])
def test_one_step_a_client_reaches_the_optimum(clock: Clock | None) -> None:
    """In rounds it is SAGA over clients then."""
    one = by_size("ca2fl", clock, work=fixed(1))
    assert isinstance(one.problem, Quadratic)
    assert (after(one, 800).server.x - one.problem._optimum).norm() < 1e-8


def test_all_in_a_round_are_fedavg() -> None:
    runs = [after(by_size(name, None, cohort=8), 10).server.x for name in ("ca2fl", "fedavg")]
    assert (runs[0] - runs[1]).abs().max() < 1e-14


# -- FedADMM ---------------------------------------------------------------------------------------------------------


def admm(form: str, clock: Clock | None, engine: str = "stacked", rho: object = 0.6, **changes: object) -> Job:
    """Clients of equal weights, 1.4^i seconds a step, 2 to 6 steps."""
    algorithm = fedadmm(rho=rho, form=form, server_lr="participation")  # type: ignore[arg-type]
    return replace(job(clock, engine, **{"lr": 0.2, **changes}), algorithm=algorithm)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("form", ["paper", "paper_from_theta"])
def test_fedadmms_model_is_the_mean_of_what_clients_sent(form: str, engine: str) -> None:
    """theta = mean (w_i + y_i / rho) at every update, and w_i, y_i from the box, with rho changing on the way."""
    one = admm(form, Clock(6, max_staleness=5), engine, rho=[[0, 0.4], [12, 0.8]], dropout=losing(0.2))
    one.problem.x0[:] = torch.tensor([1.0, -2.0, 0.5])  # type: ignore[attr-defined]
    state = start(one)
    w, y, sent, past = np.tile(state.server.x.numpy(), (8, 1)), np.zeros((8, 3)), np.zeros((8, 3)), {}
    for t in range(30):
        plan, past[t] = plan_of(one, state), state.server.x.numpy()
        assert plan.version is not None
        for i, k, v in zip(plan.ids, plan.steps, plan.version, strict=True):
            rho, z = 0.4 if v < 12 else 0.8, past[v]
            H, b = one.problem.H_mean[i].numpy(), one.problem.b_mean[i].numpy()  # type: ignore[attr-defined]
            at = w[i] if form == "paper" else z
            for _ in range(k):
                at = at - 0.2 * (H @ at - b + y[i] + rho * (at - z))
            w[i], y[i] = at, y[i] + rho * (at - z)
            sent[i] = y[i] / rho
        state = advance(one, state)
        assert np.abs(state.server.x.numpy() - (w + sent).mean(0)).max() < 1e-12
        rows = state.store.gather(np.arange(8))
        assert max(np.abs(rows.w.numpy() - w).max(), np.abs(rows.y.numpy() - y).max()) < 1e-12


@pytest.mark.parametrize(
    ("form", "concurrency", "cohort", "rho"),
    tiers(
        [(f, *case) for f in ("paper", "paper_from_theta") for case in ((6, 4, 0.6), (8, 3, 1.5), (8, 2, 1.0))],
        quick=[("paper", 6, 4, 0.6)],
    ),
)
def test_fedadmm_reaches_the_optimum_without_rounds(form: str, concurrency: int, cohort: int, rho: float) -> None:
    """To 1e-8, with replies that are lost and refused."""
    one = admm(form, Clock(concurrency, max_staleness=20), rho=rho, cohort=cohort, dropout=losing(0.1))
    assert [*reasons(one)] == []
    assert isinstance(one.problem, Quadratic)
    assert (after(one, 2400 // cohort).server.x - one.problem._optimum).norm() < 1e-8


@pytest.mark.parametrize(
    ("algorithm", "staleness", "sentence"),
    [
        (fedadmm(), None, "fedadmm with these settings"),
        (fedadmm(form="paper"), None, "fedadmm with these settings"),
        (fedadmm(form="paper", server_lr="participation"), poly(0.5), "staleness=none"),
    ],
)
def test_fedadmm_that_would_be_biased_is_refused(
    algorithm: Algorithm, staleness: Staleness | None, sentence: str
) -> None:
    one = replace(job(Clock(6, staleness=staleness)), algorithm=algorithm)
    assert any(sentence in reason for reason in reasons(one))


def test_a_client_that_begins_later_is_sent_the_first_model_and_waits_for_it() -> None:
    """A vector more to each of them, but to the first one of all, at a second a vector."""

    def slow(seed: int, wave: int, client: int) -> Device:
        return Device(1.0, 1e9, 24.0, 0.0)  # 3 numbers of 8 bytes: a second a vector

    one, known, begun = admm("paper", Clock(1), devices=slow, work=fixed(4), cohort=1), set[int](), 0
    state = start(one)
    for t in range(12):
        plan = plan_of(one, state)
        new = {*plan.ids.tolist()} - known
        assert plan.aside.newcomers == (len(new) if t else 0)
        assert plan.seconds == pytest.approx(5 + plan.aside.newcomers, abs=1e-6)
        known, begun = known | new, begun + plan.aside.newcomers
        state = advance(one, state)
    assert 3 < begun == len(known) - 1
    assert state.bytes_down == 24 * (12 + begun)


# -- A-FedPD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("clock", [None, Clock(6, max_staleness=4)])
def test_absent_duals_move_with_their_share_of_the_common_move(clock: Clock | None, weights: str, engine: str) -> None:
    """All duals lambda_i / rho written out, N of them: those that reply move by their own D_i, the others by kappa
    times the cohort's mean move, kappa = K / N; the model is the cohort's mean model and the mean of all duals."""
    rho = 0.6
    algorithm = afedpd_share(rho, weights)  # type: ignore[arg-type]
    where = problem()
    where.sizes[:] = np.arange(1.0, 9.0)
    one = replace(job(clock, engine, dropout=losing(0.2)), algorithm=algorithm, problem=where)
    p = np.arange(1.0, 9.0) / 36 if weights == "size" else np.full(8, 1 / 8)
    state, duals, common, x = start(one), np.zeros((8, 3)), np.zeros(3), np.zeros(3)
    past: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for t in range(40):
        plan, past[t] = plan_of(one, state), (x, common)
        versions = [t] * len(plan.ids) if plan.version is None else plan.version.tolist()
        moves = []
        for i, steps, version in zip(plan.ids, plan.steps, versions, strict=True):
            z, then = past[version]  # it solves with the common part that it was sent, and its own
            y = z.copy()
            for _ in range(steps):
                gradient = where.H_mean[i].numpy() @ y - where.b_mean[i].numpy()
                y = y - LR * (gradient + rho * (then + duals[i] - common) + rho * (y - z))
            moves.append(y - z)
        w = p[plan.ids] / p[plan.ids].sum()
        move = w @ np.array(moves)
        kappa = len(plan.ids) / 8
        absent = np.setdiff1d(np.arange(8), plan.ids)
        duals[absent] += kappa * move
        duals[plan.ids] += moves
        common = common + kappa * move
        x = x + move + p @ duals
        state = advance(one, state)
        assert np.abs(state.server.x.numpy() - x).max() < 1e-12
        assert np.abs(algorithm.models(state.server)["mean"].numpy() - (x - p @ duals)).max() < 1e-12
        assert np.abs(state.store.gather(np.arange(8)).s.numpy() - (duals - common)).max() < 1e-12


@pytest.mark.parametrize(
    ("concurrency", "cohort"), tiers([(4, 1), (4, 2), (8, 3)], quick=[]), ids=lambda number: f"{number}"
)
def test_a_share_is_stable_where_the_whole_move_need_not_be(concurrency: int, cohort: int) -> None:
    """The optimum to 1e-8 whoever replies how often; the paper's form refuses the clock with what to write."""
    one = job(Clock(concurrency, max_staleness=10), "stacked", cohort, dropout=losing(0.1))
    shared, paper = (replace(one, algorithm=method(1.25)) for method in (afedpd_share, afedpd))  # type: ignore[arg-type]
    assert [*reasons(shared)] == []
    assert isinstance(one.problem, Quadratic)
    assert (after(shared, 1500).server.x - one.problem._optimum).norm() < 1e-8
    assert any("afedpd_share" in reason for reason in reasons(paper))
    if cohort == 1:  # all the same, without the refusal
        phases = paper.algorithm.phases._replace(asynchronous="undamped")
        paper = replace(paper, algorithm=replace(paper.algorithm, phases=phases))
        assert (after(paper, 600).server.x - one.problem._optimum).norm() > 1e6


def test_with_everyone_in_a_share_is_the_papers_form() -> None:
    runs = [
        after(replace(job(None, "stacked", 8), algorithm=method(0.6)), 20).server.x for method in (afedpd, afedpd_share)
    ]
    assert (runs[0] - runs[1]).abs().max() < 1e-13
