"""`fedconcord diagnose`: each measure against a closed form or a count by hand, and looks that change nothing."""

from __future__ import annotations

import csv
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedconcord
from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, State, advance, plan_of, start
from fedconcord.execution.rows import tensors
from fedconcord.federation.objectives import Quadratic, fednova_quadratics, quadratics
from fedconcord.federation.participation import clock
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import per_client
from fedconcord.insight.methods.surrogate import Surrogate, chi_square, surrogate
from fedconcord.interface.cli import call
from fedconcord.method.algorithms import METHODS, family
from fedconcord.method.algorithms.family_steps import step_theory
from fedconcord.method.contract import Algorithm, Facts, Inequality, Memory, Population, StepTheory, rng, tree_map
from fedconcord.method.contract.identity import Identity
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.study.runs.plan import plan_run
from fedconcord.study.settings.job import build
from fedconcord.study.settings.sources import from_nested
from fedconcord_diagnosis import course, diagnosis_page, findings, look, subject, vectors
from fedconcord_diagnosis.measures import MEASURES, numbers
from fedconcord_diagnosis.vectors import control, drift, rank_correlation, remedies

CPU = torch.device("cpu")
STEPS = [1, 2, 3, 4, 5, 9]


def job_of(algorithm: Algorithm, problem: Quadratic | None = None, **more: Any) -> Job:
    """Six clients with 1 to 9 full-gradient steps, all in every round unless the schedule says otherwise."""
    problem = quadratics(0, 6, torch.float64, CPU, dim=8, blocks=5) if problem is None else problem
    given = {"seed": 0, "cohort": 6, "lr": 0.1, "work": per_client(STEPS), "unit": "steps", "batch_size": None}
    return Job(problem, algorithm, Schedule(**(given | more)), engine=Stacked())


def after(job: Job, rounds: int) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


def looked(job: Job, rounds: int = 0) -> look.Look:
    return look.look(job, after(job, rounds), np.arange(job.problem.roster.n))


def weights_of(algorithm: Algorithm, **more: Any) -> tuple[np.ndarray, Surrogate]:
    job = job_of(algorithm, **more)
    plan = plan_of(job, start(job))
    found = surrogate(job, plan)
    assert isinstance(found, Surrogate)
    return plan.p, found


# -- surrogate weights ---------------------------------------------------------------------------------------------


def test_chi_square_by_hand() -> None:
    assert chi_square(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == pytest.approx(0.0625 / 0.25 + 0.0625 / 0.75)
    assert chi_square(np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0
    assert chi_square(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == math.inf


def test_fedavg_weighs_by_local_steps() -> None:
    p, found = weights_of(METHODS["fedavg"]())
    tau = np.array(STEPS)
    np.testing.assert_allclose(found.w, tau / tau.sum(), rtol=1e-12)
    assert found.effective == pytest.approx(float(p @ tau))


def test_fedprox_weighs_by_equation_8() -> None:
    alpha = 0.1 * 2.0
    p, found = weights_of(METHODS["fedprox"](mu=2.0, weights="size"))
    one = p * (1 - (1 - alpha) ** np.array(STEPS)) / alpha
    np.testing.assert_allclose(found.w, one / one.sum(), rtol=1e-10)
    assert found.effective == pytest.approx(one.sum())


def test_server_momentum_lengthens_the_step_and_not_the_weights() -> None:
    _, plain = weights_of(METHODS["fedavg"]())
    _, heavy = weights_of(METHODS["fedavgm"](server_momentum=0.9))
    np.testing.assert_allclose(heavy.w, plain.w, rtol=1e-6)
    assert heavy.effective == pytest.approx(10 * plain.effective, rel=1e-4)


@pytest.mark.parametrize("name", ["fednova", "scaffold", "fednova_vr", "mimesvrg", "losac", "fedpd", "fedvra"])
def test_methods_that_keep_the_weights(name: str) -> None:
    p, found = weights_of(METHODS[name]())
    assert chi_square(p, found.w) < 1e-8


def test_vrlsgd_keeps_them_with_equal_steps_alone() -> None:
    p, unequal = weights_of(METHODS["vrlsgd"]())
    assert chi_square(p, unequal.w) > 0.1
    p, equal = weights_of(METHODS["vrlsgd"](), work=per_client([4] * 6))
    assert chi_square(p, equal.w) < 1e-8


def test_what_is_not_linear_has_no_weights() -> None:
    for name in ("fedadam", "fedyogi", "fedhybrid"):
        job = job_of(METHODS[name]())
        assert isinstance(surrogate(job, plan_of(job, start(job))), str)
    job = job_of(METHODS["fedavg"]())
    lbfgs = Job(job.problem, job.algorithm, job.schedule, Solver(kind="lbfgs"))
    assert isinstance(surrogate(lbfgs, plan_of(lbfgs, start(lbfgs))), str)


def test_fedavg_stops_where_the_weights_say() -> None:
    """Lemma 1: with f_i = 1/2 ||x - e_i||^2 and a small step FedAvg tends to sum_i w_i e_i, not to the mean of e_i."""
    problem = fednova_quadratics(0, 6, torch.float64, CPU)
    job = job_of(METHODS["fedavg"](), problem, lr=0.005)
    _, found = plan_of(job, start(job)).p, surrogate(job, plan_of(job, start(job)))
    assert isinstance(found, Surrogate)
    limit = torch.as_tensor(found.w) @ problem.b_mean
    bias = float((limit - problem.b_mean.mean(0)).norm())
    assert float((after(job, 600).server.x - limit).norm()) < 0.05 * bias


# -- gradients and smoothness --------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    found = vectors.agreement(np.array([0.5, 0.5]), torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64))
    assert found.full == pytest.approx(2.5)  # of (1.5, 2)
    assert found.dissimilarity == pytest.approx(12.5 / 6.25)
    assert found.spread == pytest.approx(12.5 - 6.25)
    np.testing.assert_allclose(found.alignment, [4.5 / 7.5, 8 / 10])
    same = vectors.agreement(np.array([0.3, 0.7]), torch.ones(2, 3, dtype=torch.float64))
    assert same.dissimilarity == pytest.approx(1.0)
    assert same.spread == pytest.approx(0.0, abs=1e-30)


def test_noise_of_cohorts_is_that_of_all_cohorts() -> None:
    planted = torch.as_tensor(rng.generator(1, rng.Purpose.DATA).standard_normal((7, 3)))
    found = vectors.agreement(np.full(7, 1 / 7), planted)
    means = torch.stack([planted[list(who)].mean(0) for who in itertools.combinations(range(7), 3)])
    deviation = float((means - planted.mean(0)).square().sum(1).mean() ** 0.5)
    assert vectors.cohort_noise(found.spread, found.full, 7, 3) == pytest.approx(deviation / found.full)
    assert vectors.cohort_noise(found.spread, found.full, 7, 7) == 0


def test_curvature_is_the_largest_eigenvalue() -> None:
    problem = quadratics(3, 1, torch.float64, CPU, dim=12)
    H = problem.H_mean[0] - 2.0 * torch.outer(
        torch.eye(12, dtype=torch.float64)[0], torch.eye(12, dtype=torch.float64)[0]
    )
    largest = float(torch.linalg.eigvalsh(H).abs().max())
    found = vectors.largest_curvature(
        lambda x: 0.5 * x @ H @ x, torch.zeros(12, dtype=torch.float64), torch.ones(12, dtype=torch.float64), 500, 1e-9
    )
    assert found == pytest.approx(largest, rel=1e-5)


def test_secant_of_a_multiple_of_the_identity_is_its_curvature() -> None:
    problem = Quadratic(
        3.0 * torch.eye(4, dtype=torch.float64).expand(6, 1, 4, 4), torch.eye(6, 4, dtype=torch.float64)[:, None]
    )
    seen = looked(job_of(METHODS["fedavg"](), problem))
    moved = seen.drift.move > 0
    np.testing.assert_allclose(seen.secant[moved], 3.0, rtol=1e-10)
    assert seen.curvature == pytest.approx(3.0, rel=1e-3)


def test_noise_of_single_samples_is_exact() -> None:
    """With one block a batch, sigma_i^2 is the mean squared distance of the blocks' gradients to their mean."""
    job = job_of(METHODS["fedavg"](), batch_size=1)
    problem, x = job.problem, job.problem.init(0)
    assert isinstance(problem, Quadratic)
    each = (problem.H @ x - problem.b).reshape(6, 5, -1)
    wanted = (each - each.mean(1, keepdim=True)).square().sum(2).mean(1)
    seen = looked(job)
    assert seen.noise is not None
    np.testing.assert_allclose(seen.noise, wanted.numpy(), rtol=1e-12)
    assert looked(job_of(METHODS["fedavg"]())).noise is None


def test_search_direction_of_fedcm_varies_by_alpha_squared() -> None:
    assert looked(job_of(METHODS["fedcm"](alpha=0.25)), 2).direction == pytest.approx(0.0625)
    assert looked(job_of(METHODS["fedavg"]()), 2).direction == pytest.approx(1.0)


# -- drift ---------------------------------------------------------------------------------------------------------


def test_drift_of_k_steps_in_closed_form() -> None:
    """x_i^K - x = (I - (I - eta H_i)^K)(x_i^* - x)."""
    job = job_of(METHODS["fedavg"]())
    problem, state = job.problem, after(job, 2)
    assert isinstance(problem, Quadratic)
    x, eye = state.server.x, torch.eye(8, dtype=torch.float64)
    moves = torch.stack(
        [
            (eye - torch.linalg.matrix_power(eye - 0.1 * H, k)) @ (torch.linalg.solve(H, b) - x)
            for H, b, k in zip(problem.H_mean, problem.b_mean, STEPS, strict=True)
        ]
    )
    seen = look.look(job, state, np.arange(6))
    np.testing.assert_allclose(seen.drift.move, moves.norm(dim=1).numpy(), rtol=1e-10)
    np.testing.assert_allclose(seen.drift.away, (moves - moves.mean(0)).norm(dim=1).numpy(), rtol=1e-10)


def test_shares_of_drift_by_hand() -> None:
    found = drift(np.array([0.25, 0.25, 0.5]), torch.tensor([[2.0], [-2.0], [0.0]], dtype=torch.float64))
    np.testing.assert_allclose(found.share, [0.5, 0.5, 0.0])
    found = drift(np.array([0.5, 0.5]), torch.tensor([[3.0], [1.0]], dtype=torch.float64))
    assert (found.mean, found.ratio) == (2.0, 0.25)


def test_equal_work_removes_what_unequal_steps_make() -> None:
    """Clients with one gradient and unequal steps: all of the drift; with equal steps: none of it."""
    one, work = torch.ones(1, 3, dtype=torch.float64), np.array([1.0, 2.0, 5.0])
    moves, p = -torch.as_tensor(work)[:, None] * one, np.full(3, 1 / 3)
    assert remedies(p, moves, work, moves).equal_work == pytest.approx(1.0)
    apart = torch.eye(3, dtype=torch.float64)
    assert remedies(p, apart, np.full(3, 4.0), apart).equal_work == pytest.approx(0.0)


def test_control_variates_remove_what_the_closed_form_says() -> None:
    """f_i = 1/2 ||x - e_i||^2 and K equal steps: c_i = s (x - e_i) with s = (1 - (1 - eta)^K) / (eta K), which leaves
    (1 - s) of every client's deviation."""
    eta, K = 0.1, 5
    job = job_of(METHODS["fedavg"](), fednova_quadratics(0, 6, torch.float64, CPU), work=per_client([K] * 6))
    seen = looked(job)
    s = (1 - (1 - eta) ** K) / (eta * K)
    assert seen.remedies is not None
    assert seen.remedies.control == pytest.approx(1 - (1 - s) ** 2)
    assert seen.remedies.equal_work == pytest.approx(0.0, abs=1e-12)
    assert looked(job_of(METHODS["scaffold"]()), 3).remedies is None  # corrected already


def test_control_is_the_mean_direction() -> None:
    moves = torch.tensor([[-1.0], [3.0]], dtype=torch.float64)
    found = control(np.array([0.5, 0.5]), moves, np.array([2.0, 2.0]), 0.5)  # c_i = 1, -3
    np.testing.assert_allclose(found.numpy(), [[-2.0], [2.0]])


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1, 2, 3]), np.array([10, 100, 1000])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1, 2, 3]), np.array([3, 2, 1])) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1, 1, 2, 2]), np.array([1, 2, 1, 2])) == pytest.approx(0.0)
    assert rank_correlation(np.array([1, 1]), np.array([1, 2])) == 0


# -- what clients remember -----------------------------------------------------------------------------------------


def test_scaffolds_sum_is_the_last_models_gradient() -> None:
    """Option I, all clients: c after a round is grad F at the model before it; the look is at the model after it."""
    job = job_of(METHODS["scaffold"](option=1))
    problem, before, now = job.problem, after(job, 2), after(job, 3)
    assert isinstance(problem, Quadratic)

    def full(x: Tensor) -> Tensor:
        return problem.H_mean.mean(0) @ x - problem.b_mean.mean(0)

    seen = look.look(job, now, np.arange(6)).memory
    assert seen is not None
    wanted = (full(before.server.x) - full(now.server.x)).norm() / full(now.server.x).norm()
    assert seen.total == pytest.approx(float(wanted))
    assert seen.gap == pytest.approx(0.0, abs=1e-12)


MEMORY = ["scaffold", "fedvra", "fednova_vr", "vrlsgd", "feddyn", "fedpd", "fedhybrid", "afedpd", "losac", "fedsaga"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_what_is_remembered_is_the_gradient_at_a_fixed_point(name: str) -> None:
    """Where the method stands still, every client's memory is its gradient there, and V^t is 0."""
    options = {"feddyn": {"alpha": 1.0}, "afedpd": {"rho": 1.0}, "fedvra": {"gamma": 1.0, "a": 1.0, "d": 1.0}}
    work = per_client([4] * 6 if name in ("vrlsgd", "fedsaga") else STEPS)
    job = job_of(METHODS[name](**options.get(name, {})), work=work, lr=0.3)
    if name == "fedsaga":  # it stops at FedAvg's point, where tables are of models along the local steps
        job = job_of(METHODS[name](), work=per_client([1] * 6), batch_size=1)
    seen = looked(job, 400)
    assert seen.memory is not None
    assert seen.memory.relative < 1e-5
    assert seen.remembered is not None
    assert (seen.residual is not None) == seen.remembered.is_dual
    assert seen.remembered.is_dual == (name in ("fedvra", "feddyn", "fedpd", "fedhybrid", "afedpd"))
    if seen.residual is not None:
        assert seen.residual.value < 1e-9
        early = looked(job, 1).residual
        assert early is not None
        assert early.value > 1e-4


def test_sums_are_those_of_the_clients_for_every_method() -> None:
    """The invariants c = sum p_i c_i, h, lambda, phi: the server's sum is that of what all clients remember."""
    kept = 0
    for name, factory in METHODS.items():
        algorithm = replace(factory(), client_model=None)  # own models are judged on samples, and here are none
        seen = looked(job_of(algorithm, cohort=6 if algorithm.needs.everyone else 3, batch_size=1), 4).memory
        if seen is not None and seen.gap is not None:
            assert seen.gap < 1e-10, name
            kept += 1
    assert kept >= 9


def test_a_method_of_another_package_is_diagnosed_by_what_it_says() -> None:
    """The same method without a name, which states what its clients remember; and one that states nothing."""
    ours, method = (job_of(METHODS["afedpd"](), cohort=3) for _ in range(2))
    states = Memory("what they keep", *ours.algorithm.facts.memory[1:])  # type: ignore[index]
    theory = StepTheory([Inequality("lr <= 1", 5, 6, 2.0, 1.0)], "Nobody minds.", "Take a smaller lr.")
    facts = Facts(memory=states, theory=lambda ids, inclusion, steps, lr, smoothness: theory)
    theirs = replace(method, algorithm=replace(method.algorithm, facts=facts, identity=Identity("theirs", (), 1)))
    expected, seen = looked(ours, 3), looked(theirs, 3)
    assert expected.memory is not None
    assert seen.memory is not None
    assert (seen.memory.relative, seen.residual) == (expected.memory.relative, expected.residual)
    told = " ".join(one.text for one in findings.findings(theirs, course.diagnose(theirs, (3,))))
    assert "The sufficient conditions of theirs's theory do not hold for all clients: lr <= 1 has 2 on the left" in told
    assert "Take a smaller lr." in told
    silent = replace(theirs, algorithm=replace(theirs.algorithm, facts=Facts()))
    assert (looked(silent, 3).memory, looked(silent, 3).theory) == (None, None)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda algorithm: with_server(algorithm, momentum()),
        lambda algorithm: with_late_replies(algorithm),
        lambda algorithm: with_uploads(algorithm, quantise()),
    ],
)
def test_what_clients_remember_is_found_within_wrappers(wrapped: Callable[[Algorithm], Algorithm]) -> None:
    algorithm = METHODS["scaffold"]()
    memory = wrapped(algorithm).facts.memory
    assert memory is not None
    x, p = torch.ones(3), torch.ones(2)
    server = wrapped(algorithm).init(x, Population(2, p))
    row = wrapped(algorithm).init_client(x)
    rows = tree_map(lambda leaf: torch.stack([leaf, leaf + 1]), row)
    assert torch.equal(memory.gradients(server, rows, p, x), torch.stack([torch.zeros(3), torch.ones(3)]))
    assert torch.equal(memory.total(server), torch.zeros(3))  # type: ignore[arg-type]


def test_residual_by_hand() -> None:
    p, x = np.array([0.5, 0.5]), torch.zeros(1, dtype=torch.float64)
    column = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    found = vectors.residual(p, duals=column, models=column, x=x, gradients=-column, penalty=2.0)
    assert found.server == pytest.approx((0.5 * 3 + 0.5 * 9) ** 2)  # y + rho w = 3, 9
    assert found.local == pytest.approx(0.5 * 4 + 0.5 * 36)
    assert found.consensus == pytest.approx(0.5 * 1 + 0.5 * 9)


def test_ages_are_counted_by_hand() -> None:
    job = job_of(METHODS["scaffold"](), cohort=2)
    state, past, last = start(job), course.nothing(6), {}
    for t in range(5):
        plan = plan_of(job, state)
        past = course.extended(past, job, plan)
        state = advance(job, state)
        last |= dict.fromkeys(plan.ids.tolist(), t)
    assert past.age().tolist() == [4 - last[i] if i in last else 5 for i in range(6)]
    assert past.taken.sum() == 10
    assert len(set(past.age().tolist())) > 2


# -- FedVRA's conditions, skew, time -------------------------------------------------------------------------------


def test_conditions_at_their_boundary() -> None:
    """(a + d) lr gamma Q~ = 1 exactly for the client with most steps: it holds, and a little more does not."""
    lr, gamma, d, steps = 0.1, 0.5, 2.0, np.array([2, 4])
    a = 1 / (lr * gamma * family.q_tilde(gamma, lr, 4)) - d
    args = np.array([0, 1]), np.array([0.5, 0.5]), steps, lr, np.array([0.1, 0.1])
    found = {one.formula: one for one in step_theory(gamma, a, d, *args).conditions}
    sum_of = "(18) (a + d) lr gamma Q~ <= 1"
    assert found[sum_of].holds == 2
    assert found[sum_of].left == pytest.approx(1.0)
    more = {one.formula: one for one in step_theory(gamma, a * 1.001, d, *args).conditions}
    assert more[sum_of].holds == 1
    theory = step_theory(gamma, a, d, *args)
    assert theory.advice == f"Remark 1 would choose a = {a:.3g} and d = {d:.3g} here."
    assert theory.suggested == pytest.approx({"a": a, "d": d})
    none = step_theory(0.0, a, d, *args)
    assert none.advice.startswith("Remark 1 gives no (a, d) here: ")
    assert none.suggested is None


def test_features_between_clients() -> None:
    draw = rng.generator(5, rng.Purpose.DATA)
    x, owner = draw.standard_normal((4000, 5)), np.repeat(np.arange(20), 200)
    assert abs(course.features(x, owner, 20).share) < 0.01
    shifted = x + 2.0 * (owner % 2)[:, None]  # variance 1 within and 1 between
    assert course.features(shifted, owner, 20).share == pytest.approx(0.5, abs=0.02)
    labels = owner % 2
    assert abs(course.features(shifted, owner, 20, labels).share) < 0.01  # explained by the labels
    np.testing.assert_allclose(course.features(shifted, owner, 20).distance, 1 / math.sqrt(2), atol=0.1)


def test_time_by_hand() -> None:
    """Equal devices, full gradients: computing is steps * seconds; the rest of the round is waiting for nine steps."""
    devices = clock.equal(step=2.0, up=1e3, down=1e3, latency=0.5)
    job = job_of(METHODS["fedavg"](), devices=devices)
    past = course.extended(course.nothing(6), job, plan_of(job, start(job)))
    message = 8 * 8 / 1e3 + 0.5
    np.testing.assert_allclose(past.seconds[:, 0], message)
    np.testing.assert_allclose(past.seconds[:, 1], 2.0 * np.array(STEPS))
    np.testing.assert_allclose(past.seconds[:, 2], message)
    np.testing.assert_allclose(past.seconds[:, 3], 2.0 * (9 - np.array(STEPS)), atol=1e-12)


# -- looks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
def test_looks_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method, on mini-batches: the same server, rows and counters; and numbers for every look."""
    monkeypatch.setattr("fedconcord.insight.methods.surrogate.MOST_ROUNDS", 5)  # which is tested above
    algorithm = replace(METHODS[name](), client_model=None)  # as above
    job = job_of(algorithm, cohort=6 if algorithm.needs.everyone else 3, batch_size=1)
    plain = after(job, 3)
    found = course.diagnose(job, (0, 2, 3))
    for mine, theirs in ((found.state.server, plain.server), (rows(found.state), rows(plain))):
        flat, other = (list(leaves(tree)) for tree in (mine, theirs))
        assert len(flat) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(flat, other, strict=True))
    assert found.state[3:] == plain[3:]
    assert [one.round for one in found.looks] == [0, 2, 3]
    for one in found.looks:
        for key, value in numbers(found, one).items():
            assert value is None or math.isfinite(value) or key.endswith("chi2"), (key, value)
        assert numbers(found, one)["dissimilarity"] >= 1 - 1e-9
    assert 1 <= len(findings.verdict(findings.findings(job, found))) <= 5


def rows(state: State) -> Any:
    return state.store.gather(np.arange(6))


def leaves(tree: Any) -> Any:
    if isinstance(tree, tuple):
        for part in tree:
            yield from leaves(part)
    elif isinstance(tree, Tensor):
        yield tree


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedpd", "afedpdsam", "losac", "fednova"])
def test_engines_agree_on_a_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedconcord.insight.methods.surrogate.MOST_ROUNDS", 5)
    algorithm = METHODS[name]()
    stacked = job_of(algorithm, batch_size=1)
    serial = Job(stacked.problem, algorithm, stacked.schedule, engine=Serial())
    one, two = (course.diagnose(job, (2,)) for job in (stacked, serial))
    for key, value in numbers(one, one.looks[0]).items():
        other = numbers(two, two.looks[0])[key]
        assert (value is None) == (other is None), key
        assert value is None or value == pytest.approx(other, rel=1e-6, abs=1e-12), key


def test_many_clients_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MOST_CLIENTS", 4)
    job = job_of(METHODS["scaffold"](), batch_size=1)
    found = course.diagnose(job, (1,))
    assert len(found.ids) == 4
    assert found.looks[0].p.sum() == pytest.approx(1.0)
    assert np.array_equal(found.ids, look.chosen(job, (1,)))  # keyed: the same again


def test_looks_cost_no_more_than_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 clients of 4 steps: 8 rounds of 5 are 160 gradients, which 20 clients of one look or 10 of two come to."""
    monkeypatch.setattr(look, "FREE_WORK", 0)
    problem = quadratics(0, 60, torch.float64, CPU, dim=4)
    job = job_of(METHODS["fedavg"](), problem, cohort=5, work=per_client([4] * 60))
    assert len(look.chosen(job, (8,))) == 20
    assert len(look.chosen(job, (0, 8))) == 10
    assert len(look.chosen(job, (0, 2, 4, 8))) == look.LEAST_CLIENTS
    monkeypatch.setattr(look, "FREE_WORK", 10_000)
    assert len(look.chosen(job, (0, 8))) == 60


def test_nothing_is_said_of_a_federation_without_trouble() -> None:
    """Clients with one objective and equal steps; no sentence passes its threshold."""
    problem = Quadratic(torch.eye(4, dtype=torch.float64).expand(6, 1, 4, 4), torch.ones(6, 1, 4, dtype=torch.float64))
    job = job_of(METHODS["fedavg"](), problem, work=per_client([3] * 6))
    said = findings.findings(job, course.diagnose(job, (0, 2)))
    assert [one.text for one in said if one.weight > 0] == []
    assert findings.verdict(said)[0].startswith("Nothing stands out")


def test_few_clients_with_more_steps_are_named() -> None:
    """Three of thirty clients take 50 steps where others take one: theirs is most of the drift."""
    steps = [50] * 3 + [1] * 27
    problem = fednova_quadratics(0, 30, torch.float64, CPU)
    job = job_of(METHODS["fedavg"](), problem, cohort=30, work=per_client(steps), lr=0.01)
    found = course.diagnose(job, (0,))
    said = [one.text for one in findings.findings(job, found) if one.topic == "drift"]
    assert "comes from 3 of 30 clients (clients " in said[0]
    assert "with 50 local steps where all do 1 to 50 local steps" in said[0]
    assert found.looks[0].drift.share[:3].sum() > 0.9
    aim = [one.text for one in findings.findings(job, found) if one.topic == "aim"]
    assert "goes down another objective" in aim[0]


def test_weights_are_of_those_who_take_part_and_a_deadline_may_be_shorter() -> None:
    """FedNova weighs as it should, and clients with too many steps for the deadline are in no round."""
    devices = clock.equal(step=1.0, up=1e3, down=1e3, latency=0.5)
    job = job_of(METHODS["fednova"](), devices=devices, deadline=5.0)
    said = [one.text for one in findings.findings(job, course.diagnose(job, (3,)))]
    away = sum(2 * (8 * 8 / 1e3 + 0.5) + steps > 5 for steps in STEPS)
    assert 0 < away < 6
    [aim] = [text for text in said if "keeps the true weights" in text]
    assert aim.endswith(f"of clients that take part; {100 * away / 6:.0f} % took part in no round.")
    [times] = [text for text in said if "waiting for the slowest" in text]
    assert "a shorter deadline" in times
    free = job_of(METHODS["fednova"](), devices=devices)
    said = [one.text for one in findings.findings(free, course.diagnose(free, (3,)))]
    assert any(text.endswith("of clients that take part.") for text in said)
    assert any("a deadline (--set deadline)" in text for text in said)


def test_a_diverged_run_says_so() -> None:
    job = job_of(METHODS["fedavg"](), lr=1e200, work=per_client([9] * 6))
    found = course.diagnose(job, (0, 3))
    assert found.diverged is not None
    assert findings.verdict(findings.findings(job, found))[0].startswith("The run diverged")


def test_measures_have_their_formula_and_source() -> None:
    assert len({one.key for one in MEASURES}) == len(MEASURES)
    for one in MEASURES:
        assert all((one.title, one.formula, one.source, one.change)), one.key


# -- the command ---------------------------------------------------------------------------------------------------

SMALL = ["--data", "digits", "--clients", "12", "--cohort", "4", "--rounds", "4", "--batch-size", "20"]


@pytest.mark.slow
def test_the_command_on_digits(tmp_path: Path) -> None:
    """A run diagnosed from the shell: the page, the numbers, and the run's own model at the end."""
    run, fedconcord = tmp_path / "run", [sys.executable, "-m", "fedconcord"]
    assert call(["run", *SMALL, "--method", "scaffold", "--epochs", "by_client(1,5)", "--out", str(run)]) == 0
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    told = [*fedconcord, "diagnose", str(run), "--at", "0,4"]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "looks at 12 clients after rounds 0, 4" in done.stdout
    assert "end at the run's own model, bit for bit" in done.stdout
    assert before == {name: (run / name).read_bytes() for name in before}  # of the run nothing is touched
    saved = json.loads((run / "diagnosis" / "diagnosis.json").read_text())
    assert saved["same_model_as_run"] is True
    assert saved["looked_at"] == [0, 4]
    assert saved["surrogate"]["average"]["chi2"] > 0.05 > 1e-6 > saved["surrogate"]["method"]["chi2"]
    page = (run / "diagnose.html").read_text()
    for wanted in (
        "In words",
        "Client drift",
        "What clients remember",
        "IEEE TSP 2021",
        *saved["verdict"][0].split()[:4],
    ):
        assert wanted in page
    assert page.count("<figure") == page.count("</figure>") >= 6
    with open(run / "diagnosis" / "clients.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * 12


@pytest.mark.slow
def test_threads_are_the_runs_and_another_cause_is_named(tmp_path: Path) -> None:
    """Where a run had other threads than are usual here, its rounds are trained again with those."""
    run = tmp_path / "run"
    assert call(["run", *SMALL, "--method", "fedavg", "--out", str(run)]) == 0
    described = json.loads((run / "run.json").read_text())
    saved = described["threads"]
    here = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if here > 1 else 2)
        seen = subject.of_run(run, [4])
        assert seen.config.engine.threads == saved
        assert diagnosis_page.diagnosed(seen, tmp_path / "again").same_model is True
    finally:
        torch.set_num_threads(here)
    named = tensors.read(run / "model.safetensors")[0]
    tensors.write(run / "model.safetensors", {name: leaf + 1e-7 for name, leaf in named.items()})
    described["versions"]["torch"] = "1.0"
    (run / "run.json").write_text(json.dumps(described))
    (run / "checksums.json").unlink()
    done = subprocess.run([sys.executable, "-m", "fedconcord", "diagnose", str(run), "--at", "4"], capture_output=True)
    said = " ".join(done.stdout.decode().split())
    assert "end NOT at the run's own model, bit for bit: it was computed otherwise (torch 1.0 then and" in said
    assert "it was computed otherwise (torch 1.0 then and" in (run / "diagnose.html").read_text()


def test_the_checkpoint_gives_what_training_again_gives(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert call(["run", *SMALL, "--method", "feddyn", "--out", run]) == 0
    found = []
    for at in ([4], [3, 4]):
        seen = subject.of_run(Path(run), at)
        assert (seen.state is not None) == (at == [4])
        found.append(course.diagnose(seen.job, seen.rounds, seen.state))
        assert subject.same_model(seen, found[-1].state) is True
    assert numbers(found[0], found[0].looks[-1]) == numbers(found[1], found[1].looks[-1])
    assert findings.findings(seen.job, found[0]) == findings.findings(seen.job, found[1])


@pytest.mark.slow
def test_settings_are_diagnosed_without_a_run(tmp_path: Path) -> None:
    file, out = tmp_path / "job.toml", tmp_path / "out"
    file.write_text('data = "quadratics(dim=6)"\nmethod = "fedvra"\nclients = 8\ncohort = 4\nrounds = 6\n')
    done = fedconcord.diagnose(config=file, at=[6], out=out)
    assert done.page == out / "diagnose.html"
    assert done.same_model is None  # there is no run to compare with
    saved = json.loads((out / "diagnosis" / "diagnosis.json").read_text())
    assert saved == done.numbers
    assert saved["verdict"] == done.verdict
    assert saved["theory"]["conditions"]
    assert set(saved["theory"]["suggested"]) == {"a", "d"}
    assert "Who holds what" not in (out / "diagnose.html").read_text()  # no classes there


MISTAKES = [
    (["nothing"], "holds no run"),
    (["run", "--config", "x.toml"], "are two jobs; give one of them"),
    (["--at", "1,x"], "--at must list rounds >= 0"),
    (["--data", "digits", "--rounds", "4", "--at", "5"], "--at 5 lies beyond the last round: rounds is 4"),
    (["--data", "digits", "--engine", "wire"], "--engine stacked"),
    (["both"], "holds a comparison; diagnose one of its runs: both/fedavg/seed-0, both/fedprox/seed-0"),
    (["both/fedavg/seed-0", "--at", "3"], "has done 1 rounds"),
    (["both/fedavg/seed-0", "--lr", "0.2"], "is the run's own in"),
]


def test_mistakes_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--data", "quadratics(dim=4)", "--clients", "3", "--rounds", "1"]
    assert call(["compare", "--methods", "fedavg,fedprox", *given, "--out", "both"]) == 0
    for arguments, wanted in MISTAKES:
        capsys.readouterr()
        assert call(["diagnose", *arguments]) == 2
        told = capsys.readouterr().err.strip()
        assert wanted in told
        assert told.startswith("error: ")
        assert "\n" not in told


def test_settings_are_diagnosed_on_the_samples_that_a_run_trains_on() -> None:
    asked = from_nested({"data": "digits", "clients": 12, "cohort": 4, "rounds": 1, "model": "logreg"}, "test")
    ours, theirs = subject.of_settings([asked], [0]), plan_run(asked).config
    assert ours.config.validation == theirs.validation == 0.1  # what auto comes to
    assert ours.job.problem.roster.samples.tolist() == build(theirs).problem.roster.samples.tolist()
