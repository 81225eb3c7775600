"""Step sizes by local step against the equations: steps, what divides by them, and torch's own schedules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_engines import assert_same, run, small

from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import RATES, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract.code import Code
from fedconcord.method.step.sizes import ByStep, delta
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.code import with_code
from fedconcord.method.wrappers.optimisers import adamw, with_optimiser
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

N, D, LR = 4, 3, 0.05
WAVE = ByStep("wave", lambda k: 1.0 + 0.5 * math.sin(k))


def cosine_by_hand(k: int, length: int, warmup: int, floor: float) -> float:
    if k < warmup:
        return (k + 1) / warmup
    share = min((k - warmup) / (length - warmup), 1.0)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share))


SCHEDULES = {
    "cosine": (RATES["cosine"](5, floor=0.1, warmup=2), lambda k: cosine_by_hand(k, 5, 2, 0.1)),
    "linear": (RATES["linear"](4, floor=0.25), lambda k: 1 - 0.75 * min(k / 4, 1.0)),
    "warmup": (RATES["constant"](warmup=3), lambda k: min((k + 1) / 3, 1.0)),
    "step": (RATES["step"](2, 0.5), lambda k: 0.5 ** (k // 2)),
    "a factor a step": (RATES["step"](1, 0.9), lambda k: 0.9**k),
}


def job(method: str, solver: Solver, engine: Engine | None = None, **options: object) -> Job:
    """Full gradients of quadratics, clients of unequal steps."""
    problem = quadratics(3, N, torch.float64, torch.device("cpu"), dim=D, condition=4.0)
    schedule = Schedule(1, N, LR, uniform(2, 7), "steps", None)
    return Job(problem, METHODS[method](**options), schedule, solver, engine or Serial())


def equations(this: Job) -> tuple[np.ndarray, np.ndarray]:
    """H [N, d, d] and b [N, d] of the clients' gradients H x - b."""
    assert isinstance(this.problem, Quadratic)
    return this.problem.H_mean.numpy(), this.problem.b_mean.numpy()


@pytest.mark.parametrize("engine", [Serial(), Stacked(None), Wire()])
@pytest.mark.parametrize("method", ["fedavg", "fednova"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_the_schedules_size(name: str, method: str, engine: Engine) -> None:
    """x <- x - eta s(k) grad f_i(x), k from 0 in every round; FedAvg, and FedNova, whose ||a_i||_1 is the sum of s."""
    schedule, factor = SCHEDULES[name]
    this = job(method, Solver(step_schedule=ByStep(name, schedule)), engine, weights="uniform")
    H, b = equations(this)
    state, x = start(this), this.problem.init(1).numpy() + 0.0
    for t in range(3):
        plan = this.schedule.plan(t, this.algorithm, this.problem.roster)
        moves, sums = [], []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = x.copy()
            for k in range(steps):
                y = y - LR * factor(k) * (H[i] @ y - b[i])
            moves.append(y - x)
            sums.append(sum(factor(k) for k in range(steps)))
        if method == "fednova":
            moves = [np.mean(sums) * move / total for move, total in zip(moves, sums, strict=True)]
        x = x + np.mean(moves, 0)
        state = advance(this, state)
        np.testing.assert_allclose(state.server.x.numpy(), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_control_variate_divides_by_the_sum_of_the_step_sizes(name: str) -> None:
    """SCAFFOLD's option II, c_i <- c_i - c + (x - y) / (eta sum_k s(k)), which still ends in the optimum."""
    schedule, factor = SCHEDULES[name]
    this = job("scaffold", Solver(step_schedule=ByStep(name, schedule)))
    H, b = equations(this)
    state, x = start(this), this.problem.init(1).numpy() + 0.0
    c, variates = np.zeros(D), np.zeros((N, D))
    for t in range(3):
        plan = this.schedule.plan(t, this.algorithm, this.problem.roster)
        ends, new = [], variates.copy()
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = x.copy()
            for k in range(steps):
                y = y - LR * factor(k) * (H[i] @ y - b[i] + c - variates[i])
            ends.append(y)
            new[i] = variates[i] - c + (x - y) / (LR * sum(factor(k) for k in range(steps)))
        x, c, variates = np.mean(ends, 0), c + np.mean(new - variates, 0), new
        state = advance(this, state)
        np.testing.assert_allclose(state.server.x.numpy(), x, rtol=1e-12, atol=1e-12)
    for _ in range(400):
        state = advance(this, state)
    np.testing.assert_allclose(state.server.x.numpy(), np.linalg.solve(H.mean(0), b.mean(0)), rtol=1e-9, atol=1e-9)


def test_a_warm_up_of_adamw_is_torchs() -> None:
    schedule, factor = SCHEDULES["warmup"]
    this = job("fedavg", Solver(step_schedule=ByStep("warmup", schedule)), weights="uniform")
    this = replace(this, algorithm=with_optimiser(this.algorithm, adamw(second="direction")))
    H, b = equations(this)
    plan, ends = this.schedule.plan(0, this.algorithm, this.problem.roster), []
    for i, steps in zip(plan.ids, plan.steps, strict=True):
        y = this.problem.init(1).clone().requires_grad_()
        optimiser = torch.optim.AdamW([y], lr=LR, weight_decay=0.0)
        rising = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        for _ in range(steps):
            y.grad = torch.as_tensor(H[i] @ y.detach().numpy() - b[i])
            optimiser.step()
            rising.step()
        ends.append(y.detach())
    got = advance(this, start(this)).server.x
    torch.testing.assert_close(got, torch.stack(ends).mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", ["dense", "convolution"])
def test_faster_ways_take_the_same_steps(network: str) -> None:
    schedule = Schedule(7, 3, 0.1, uniform(1, 5), "steps", 4)
    this = Job(small(network), METHODS["fednova"](), schedule, Solver(step_schedule=WAVE), Serial())
    assert_same(run(replace(this, engine=Stacked(3, 2)), 3), run(this, 3))


def test_a_setting_names_it() -> None:
    nested = {"method": "fedavg", "data": "quadratics(dim=3)", "clients": 4, "cohort": 4}
    text = {"local": {"step_schedule": "cosine(5, warmup=2, floor=0.1)"}}
    solver = build(resolve_run(from_nested(nested | text, "test"))).solver
    assert solver.step_schedule is not None
    assert "cosine(rounds=5,floor=0.1,warmup=2)" in str(solver)  # both ends of a federation compare it
    assert "0x" not in str(solver)
    expected = [cosine_by_hand(k, 5, 2, 0.1) for k in range(8)]
    assert [solver.step_schedule(k) for k in range(8)] == pytest.approx(expected)
    assert build(resolve_run(from_nested(nested, "test"))).solver.step_schedule is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "a"])
def test_a_function_that_gives_no_size_is_refused(value: float) -> None:
    solver = Solver(step_schedule=ByStep("mine", lambda k: value))
    with pytest.raises(UserError, match=r"local\.step_schedule mine is .* at step 0; let it give a number > 0"):
        run(job("fedavg", solver), 1)


def test_what_sizes_its_own_steps_is_refused() -> None:
    solver, method = Solver(step_schedule=WAVE), METHODS["fedavg"]()
    assert "leave local.step_schedule out" in str(refuse(solver._replace(pace=delta()), method))
    assert "step_schedule at their defaults" in str(refuse(solver._replace(kind="lbfgs"), method))
    assert "step_schedule out" in str(refuse(solver, with_code(method, Code(lambda *one: None))))
    assert refuse(solver, with_optimiser(method, adamw())) is None
    assert "align divides a move by its steps" in str(refuse(solver, with_optimiser(method, adamw(align=0.5))))
