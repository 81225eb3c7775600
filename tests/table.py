"""One row a method: how the tests run it and what it claims. A registered method without a row fails the suite."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedconcord.execution.job import Job
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Plan, orders_of


class Row(NamedTuple):
    options: dict[str, Any] = {}  # noqa: RUF012
    exact: Literal["partial", "full", "no"] = "no"  # reaches the optimum: with absent clients, with all, or not
    everyone: bool = False  # refuses absent clients
    equal_steps: bool = False  # exact only when all clients take the same number of steps
    rounds: int = 1500  # to the optimum


TABLE = {
    "auto": Row(),  # exact, but at a rate that long local work needs: tests/method/test_auto.py
    "fedsgd": Row(exact="full"),
    "fedavg": Row(),
    "fedavgm": Row({"server_momentum": 0.5}),
    "fedadam": Row(),
    "fedyogi": Row(),
    "fedadagrad": Row(),
    "fedexp": Row(),
    "fedpaq": Row({"levels": 8}),
    "fedprox": Row({"mu": 0.3}),
    "fedsam": Row(),
    "fedcm": Row({"alpha": 0.3}),
    "mofedsam": Row({"alpha": 0.3}),
    "mfl": Row({"momentum": 0.5}),
    "fednova": Row(),
    "fednova_vr": Row(exact="partial"),
    "scaffold": Row(exact="partial"),
    "vrlsgd": Row(exact="full", everyone=True, equal_steps=True),
    "fedgamma": Row({"radius": 0.1}),
    "mimesvrg": Row(exact="full"),
    "fedsaga": Row({"blocks": 3}),
    "losac": Row({"blocks": 3}, exact="partial", rounds=2500),
    "feddyn": Row({"alpha": 0.5}, exact="partial"),
    "fedspeed": Row({"alpha": 0.5}),
    "fedsmoo": Row({"alpha": 0.5}),
    "fedpd": Row({"eta": 1.5}, exact="full", everyone=True),
    "fedadmm": Row({"rho": 0.3, "server_lr": "participation", "form": "paper"}, exact="partial"),
    "fedadmm_inexact": Row({"rho": 0.3}, exact="partial"),
    "fedhybrid": Row({"rho": 1.0}, exact="full", everyone=True),
    "fedvra": Row({"gamma": 0.3, "a": 1.0, "d": 4.0}, exact="partial"),
    "afedpd": Row({"rho": 1.0}, exact="partial"),
    "afedpdsam": Row({"rho": 1.0}),
    "qffl": Row({"q": 0.5}),
    "afl": Row({"lambda_lr": 0.01}, everyone=True),
    "ditto": Row({"lam": 0.5}),
    "pfedme": Row({"lam": 1.0, "steps": 3}),
    "perfedavg": Row({"a": 0.05}),
    "fedasync": Row(),
}


def make(name: str, **options: Any) -> Algorithm:
    """The method with its row's options, judged by the server's model: most problems here have no samples for more."""
    return replace(METHODS[name](**(TABLE[name].options | options)), client_model=None)


def batches_of(job: Job, plan: Plan) -> list[np.ndarray | None]:
    """What each client of a plan draws for itself: its batches [K, B], -1 pads, or None for all its samples."""
    n, algorithm = job.problem.roster.samples, job.algorithm
    orders = [orders_of(plan, k, algorithm) for k in range(len(plan.ids))]
    return [job.schedule.draws.draw(algorithm, order, int(n[order.id])).batches for order in orders]
