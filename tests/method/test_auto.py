"""The method with nothing to tune: what it computes, that its fixed point is exact, and what it does not depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms.auto import EPS, GROW, KEPT, LEAST, LENGTH, LONGEST, SHRINK, C, R, auto
from fedconcord.method.contract import Objective, Plan
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

CPU = torch.device("cpu")


def problem() -> Quadratic:
    return quadratics(7, 8, torch.float64, CPU, dim=4, condition=4.0)


def job(cohort: int, low: int, high: int, of: Quadratic | None = None, duals: Literal["own", "common"] = "own") -> Job:
    schedule = Schedule(7, cohort, 1.0, uniform(low, high), "steps", None)
    return Job(of or problem(), auto(duals), schedule, engine=Stacked())


def written_out(objective: Objective, plans: list[Plan], x: torch.Tensor, n: int, own: bool) -> torch.Tensor:
    """The method on full gradients, with one dual a client that all move in every round, present or not."""
    duals = torch.zeros(n, len(x), dtype=x.dtype)
    mean = answer = x
    square = rho = eta = 0.0
    factor = 1.0
    for t, plan in enumerate(plans):
        ends, squares = {}, []
        for i, count in zip(plan.ids.tolist(), plan.steps.tolist(), strict=True):
            y, size = x, eta
            mine = []
            for k in range(count):
                d = objective.gradient(y, objective.samples(i)) + duals[i] + rho * (y - x)
                mine.append(float(d.norm()) ** 2)
                size = LENGTH / float(d.norm()) if t == 0 and k == 0 else size
                y = y - min(size, LONGEST * LENGTH / float(d.norm())) * d
            ends[i] = y
            squares.append(sum(mine) / count)
        mean = torch.stack(list(ends.values())).mean(0)
        power = sum(squares) / len(squares)
        work = float(plan.steps.mean())
        old, common = rho, duals.mean(0)  # own parts of all clients add up to nothing
        if t:
            reach = (1 - (1 - rho * eta) ** work) / rho  # the sum of eta (1 - rho eta)^k over k < work
            g = (x - mean) / reach - common
            cosine = float(torch.dot(g, common) / (g.norm() * common.norm()))
            factor = min(max(factor * math.exp(-(SHRINK if cosine > 0 else GROW) * cosine), LEAST), 1.0)
        square = square + EPS * power if t else power
        answer = KEPT * answer + (1 - KEPT) * mean if t else mean
        eta = factor * LENGTH / square**0.5
        rho = max(C / work, R) / eta
        for i in range(n):
            duals[i] += (old if t else rho) * ((ends.get(i, mean) if own else mean) - x)
        x = mean + duals.mean(0) / rho
    return answer


@pytest.mark.parametrize("duals", ["own", "common"])
def test_it_is_the_method_written_out(duals: Literal["own", "common"]) -> None:
    """Absent clients, unequal work, eight rounds; with the duals of absent clients really moved."""
    one, plans = job(3, 1, 4, duals=duals), []
    state = start(one)
    x0 = state.server.x
    for _ in range(8):
        plans.append(plan_of(one, state))
        state = advance(one, state)
    found = written_out(one.problem.objective, plans, x0, 8, duals == "own")
    assert torch.allclose(state.server.answer, found, rtol=0, atol=1e-12)
    assert (len(state.store.ids()) > 0) == (duals == "own")


def test_its_constants_are_those_that_were_chosen() -> None:
    """What docs/auto.md says of it was measured with these; others are another version of the method."""
    assert (LENGTH, LONGEST * LENGTH, EPS, C, R, KEPT) == (0.7, 0.8, 0.02, 0.07, 0.01, 0.3)
    assert (GROW, SHRINK, LEAST) == (0.1, 0.3, 0.5)


def gap(one: Job, of: Quadratic, rounds: int) -> float:
    state = start(one)
    for _ in range(rounds):
        state = advance(one, state)
    best = torch.as_tensor(of.optimum(torch.full((8,), 1 / 8, dtype=torch.float64)))
    return float((state.server.answer - best).norm())


@pytest.mark.slow
@pytest.mark.parametrize(("cohort", "rounds"), [(8, 2300), (5, 2600)], ids=["all", "some"])
def test_it_reaches_the_optimum(cohort: int, rounds: int) -> None:
    """Heterogeneous quadratics, unequal work, all clients or some; FedAvg's limit is elsewhere."""
    of = problem()
    assert gap(job(cohort, 20, 100, of), of, rounds) < 1e-8


class Steeper:
    """A problem whose gradients are so many times as large; its optimum stays."""

    def __init__(self, of: Quadratic, factor: float) -> None:
        def gradients(*given: Any) -> torch.Tensor:
            return factor * of.objective.gradients(*given)

        self.objective = replace(of.objective, gradients=gradients, accumulate=None)
        self.roster, self.evaluator, self.init = of.roster, of.evaluator, of.init


def test_losses_in_other_units_have_the_same_iterates() -> None:
    answers = []
    for factor in (1.0, 1000.0):
        one = replace(job(3, 1, 4), problem=Steeper(problem(), factor))
        state = start(one)
        for _ in range(10):
            state = advance(one, state)
        answers.append(state.server.answer)
    assert torch.allclose(*answers, rtol=1e-9)


def test_no_gradient_at_first_is_nothing_to_divide_by() -> None:
    """Clients that are all at an optimum of their own at first: the method begins with the first gradient."""
    of = problem()
    flat = job(8, 20, 60, Steeper(of, 0.0))
    state = start(flat)
    for one in (flat, flat, job(8, 20, 60, of), job(8, 20, 60, of)):
        before = state.server.answer
        state = advance(one, state)
        assert torch.equal(state.server.answer, before) == (one is flat)
    assert state.server.answer.isfinite().all()


@pytest.mark.slow
def test_steps_that_are_too_long_are_shortened() -> None:
    """Gradients 30 times as large from round 3 on, so that steps are past 2 / L: it comes back to the optimum."""
    of = problem()
    mild = job(8, 20, 60, of)
    hard = replace(mild, problem=Steeper(of, 30.0))
    state = start(mild)
    for _ in range(3):
        state = advance(mild, state)
    before = float(state.server.first)
    for _ in range(1000):
        state = advance(hard, state)
    best = torch.as_tensor(of.optimum(torch.full((8,), 1 / 8, dtype=torch.float64)))
    assert float(state.server.first) < before / 5
    assert float((state.server.answer - best).norm()) < 1e-3


def resolved(**more: Any) -> Config:
    given = {"data": "digits", "clients": 20, "cohort": 5, "rounds": 2, "method": "auto", **more}
    return resolve_run(from_nested(given, "test"))


def test_a_step_size_beside_it_is_refused() -> None:
    with pytest.raises(UserError, match="finds its own step"):
        build(resolved(local={"lr": 0.1}))
