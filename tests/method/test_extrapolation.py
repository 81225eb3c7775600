"""FedExP's server step, alone and on other methods, against its equations and its authors' loop."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_published import BLOCKS, COHORT, ENGINES, D, N, close, job, origin, plans, trajectory

from fedconcord.execution.engines import Engine, Stacked
from fedconcord.execution.job import Job, advance, model_of, start
from fedconcord.federation.objectives import Quadratic
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord.method.wrappers.privacy import with_privacy
from fedconcord.method.wrappers.robust import median, with_aggregate
from fedconcord.method.wrappers.server import extrapolation, with_server
from fedconcord.support.errors import UserError

EPS = 1e-3


def released(this: Job, eps: float, control: bool = False) -> list[np.ndarray]:
    """Divyansh03/FedExP, main.py, without its clipping and decay: its eps is ours over the clients of the round."""
    assert isinstance(this.problem, Quadratic)
    x, p = origin(this), this.problem.sizes / this.problem.sizes.sum()
    memory, want, stretched = np.zeros((N, D)), [], 0
    for plan, gradient in plans(this):
        c = p @ memory
        mean, square, weight = np.zeros(D), 0.0, 0.0
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = x
            for k in range(steps):
                y = y - plan.lr * (gradient(y, int(i), k) + (c - memory[i] if control else 0.0))
            move = y - x
            if control:
                memory[i] = (memory[i] - c) - move / (steps * plan.lr)
            mean, square, weight = mean + p[i] * move, square + p[i] * np.linalg.norm(move) ** 2, weight + p[i]
        mean, square = mean / weight, square / weight
        longer = 0.5 * square / (np.linalg.norm(mean) ** 2 + len(plan.ids) * eps)
        stretched += longer > 1
        x = x + max(1.0, longer) * mean
        want.append(x)
    assert 0 < stretched < len(want)  # both sides of the maximum were met
    return want


@pytest.mark.parametrize("engine", ENGINES)
def test_fedexp_is_its_authors(engine: Engine) -> None:
    """Weights by size in both means; the answer is the mean of the last two models."""
    this = job(METHODS["fedexp"](eps=COHORT * EPS, weights="size"))
    want = released(this, EPS)
    close(trajectory(this, engine), want)
    this = replace(this, engine=engine)
    state = start(this)
    assert torch.equal(model_of(this, state), state.server.x)
    answers = []
    for _ in want:
        state = advance(this, state)
        answers.append(model_of(this, state).numpy())
    close(np.stack(answers), [(a + b) / 2 for a, b in zip([origin(this), *want], want, strict=False)])


@pytest.mark.parametrize("engine", ENGINES)
def test_scaffold_exp_is_its_authors(engine: Engine) -> None:
    scaffold = METHODS["scaffold"](weights="size")
    this = job(with_server(scaffold, extrapolation(COHORT * EPS)))
    close(trajectory(this, engine), released(this, EPS, control=True))


def test_uniform_weights_are_algorithm_1() -> None:
    """eta_g = max(1, sum ||Delta_i||^2 / (2 M (||Delta||^2 + eps)))."""
    this = job(METHODS["fedexp"](eps=EPS))
    x, want = origin(this), []
    for plan, gradient in plans(this):
        moves = np.zeros((COHORT, D))
        for k, (i, steps) in enumerate(zip(plan.ids, plan.steps, strict=True)):
            for step in range(steps):
                moves[k] -= plan.lr * gradient(x + moves[k], int(i), step)
        mean = moves.mean(0)
        x = x + max(1.0, (moves**2).sum() / (2 * COHORT * (mean @ mean + EPS))) * mean
        want.append(x)
    close(trajectory(this, Stacked(None)), want)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "feddyn"])
def test_identical_clients_are_not_extrapolated(method: str) -> None:
    """Their moves agree: the ratio is at most a half, and every model is the method's own, bit for bit."""

    def alike(algorithm: Algorithm) -> np.ndarray:
        this = job(algorithm, everyone=True)
        problem = this.problem
        assert isinstance(problem, Quadratic)
        H, b = problem.H[:BLOCKS].expand(N, -1, -1, -1), problem.b[:BLOCKS].expand(N, -1, -1)
        one = Quadratic(H, b, np.ones(N), problem.x0)
        schedule = replace(this.schedule, work=fixed(4), batch_size=None)
        return trajectory(replace(this, problem=one, schedule=schedule), Stacked(None))

    plain, longer = alike(METHODS[method]()), alike(with_server(METHODS[method](), extrapolation()))
    assert np.array_equal(plain, longer)
    assert np.ptp(plain, axis=0).min() > 1e-3


def test_a_server_step_of_the_methods_own_is_refused() -> None:
    """The rule's denominator is the method's step, so that half of it would be twice as long as FedExP's."""
    with pytest.raises(UserError, match="extrapolation finds the server's step; leave the method's server_lr at 1"):
        with_server(METHODS["fedavg"](server_lr=0.5), extrapolation())


def test_one_client_is_fedavg() -> None:
    paths = []
    for algorithm in METHODS["fedavg"](), METHODS["fedexp"]():
        this = job(algorithm)
        paths.append(trajectory(replace(this, schedule=replace(this.schedule, cohort=1)), Stacked(None)))
    assert np.array_equal(*paths)


def test_orthogonal_moves_of_many_clients_are_stretched_by_half_their_number() -> None:
    """Pythagoras: mean ||Delta_i||^2 / (2 ||Delta||^2) = M / 2 where f_i = (x_i - 1)^2 / 2, of coordinate i alone."""
    H = torch.eye(D, dtype=torch.float64)[:, None, :, None] * torch.eye(D, dtype=torch.float64)[:, None, None, :]
    problem = Quadratic(H, torch.eye(D, dtype=torch.float64)[:, None], np.ones(D), torch.zeros(D, dtype=torch.float64))
    first = []
    for algorithm in METHODS["fedavg"](), METHODS["fedexp"](eps=1e-12):
        this = job(algorithm)
        schedule = replace(this.schedule, cohort=D, work=fixed(1), batch_size=None)
        first.append(trajectory(replace(this, problem=problem, schedule=schedule), Stacked(None), 1)[0])
    assert first[1] == pytest.approx(D / 2 * first[0], rel=1e-6)


def test_a_method_that_answers_with_another_model_keeps_it() -> None:
    this = job(with_server(METHODS["afedpd"](), extrapolation()))
    state = advance(this, start(this))
    assert torch.equal(model_of(this, state), state.server.inner.mean)
    assert list(this.algorithm.models(state.server)) == ["mean", "server"]


@pytest.mark.parametrize(
    ("wrapped", "what"),
    [
        (lambda: with_privacy(METHODS["fedavg"](), 1.0, 1.0, "central", COHORT), "private"),
        (lambda: with_aggregate(METHODS["fedavg"](), median()), "aggregated by a robust rule"),
    ],
)
def test_lengths_do_not_go_beside_what_is_protected(wrapped: Callable[[], Algorithm], what: str) -> None:
    with pytest.raises(UserError, match=f"extrapolation has clients send .* beside messages that are {what}"):
        with_server(wrapped(), extrapolation())
