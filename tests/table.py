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
    mean: bool = False  # its server takes a mean and nothing else, so that robust rules may stand in for it
    private: bool = False  # differential privacy covers it
    paced: bool = True  # takes step sizes by rule: none of its own, none that it counts in
    read: bool = True  # its message gives the gradient at the server's model away, as an audit reads it


TABLE = {
    "auto": Row(paced=False, read=False),  # exact, but at a rate that long local work needs: tests/method/test_auto.py
    "fedsgd": Row(exact="full", mean=True, private=True),
    "fedavg": Row(mean=True, private=True),
    "fedavgm": Row({"server_momentum": 0.5}, mean=True, private=True),
    "fedadam": Row(mean=True, private=True),
    "fedyogi": Row(mean=True, private=True),
    "fedadagrad": Row(mean=True, private=True),
    "fedexp": Row(mean=True),
    "fedpaq": Row({"levels": 8}, mean=True, read=False),
    "fedprox": Row({"mu": 0.3}, mean=True, private=True),
    "fedsam": Row(mean=True, private=True),
    "fedcm": Row({"alpha": 0.3}, mean=True),
    "mofedsam": Row({"alpha": 0.3}, mean=True),
    "mfl": Row({"momentum": 0.5}, mean=True, private=True, paced=False),
    "fednova": Row(mean=True),
    "fednova_vr": Row(exact="partial"),
    "scaffold": Row(exact="partial", private=True),
    "vrlsgd": Row(exact="full", everyone=True, equal_steps=True, private=True),
    "fedgamma": Row({"radius": 0.1}, private=True),
    "mimesvrg": Row(exact="full"),
    "fedsaga": Row({"blocks": 3}, mean=True, private=True, read=False),
    "losac": Row({"blocks": 3}, exact="partial", rounds=2500, private=True, read=False),
    "feddyn": Row({"alpha": 0.5}, exact="partial", private=True),
    "fedspeed": Row({"alpha": 0.5}, private=True),
    "fedsmoo": Row({"alpha": 0.5}, private=True, read=False),
    "fedpd": Row({"eta": 1.5}, exact="full", everyone=True),
    "fedadmm": Row({"rho": 0.3, "server_lr": "participation", "form": "paper"}, exact="partial", private=True),
    "fedadmm_inexact": Row({"rho": 0.3}, exact="partial", private=True, paced=False),
    "fedhybrid": Row({"rho": 1.0}, exact="full", everyone=True, private=True, paced=False, read=False),
    "fedvra": Row({"gamma": 0.3, "a": 1.0, "d": 4.0}, exact="partial", private=True),
    "afedpd": Row({"rho": 1.0}, exact="partial", private=True),
    "afedpd_share": Row({"rho": 1.0}, exact="partial"),
    "afedpdsam": Row({"rho": 1.0}, private=True),
    "qffl": Row({"q": 0.5}, mean=True, paced=False),
    "afl": Row({"lambda_lr": 0.01}, everyone=True),
    "ditto": Row({"lam": 0.5}, mean=True, private=True, paced=False),
    "pfedme": Row({"lam": 1.0, "steps": 3}, mean=True, private=True, read=False),
    "perfedavg": Row({"a": 0.05}, mean=True, private=True, read=False),
    "apfl": Row({"alpha": 0.4}, mean=True, private=True, paced=False),
    "fedasync": Row(mean=True),
    "ca2fl": Row(private=True),
}


def make(name: str, **options: Any) -> Algorithm:
    """The method with its row's options, judged by the server's model: most problems here have no samples for more."""
    return replace(METHODS[name](**(TABLE[name].options | options)), client_model=None)


def batches_of(job: Job, plan: Plan) -> list[np.ndarray | None]:
    """What each client of a plan draws for itself: its batches [K, B], -1 pads, or None for all its samples."""
    n, algorithm = job.problem.roster.samples, job.algorithm
    orders = [orders_of(plan, k, algorithm) for k in range(len(plan.ids))]
    return [job.schedule.draws.draw(algorithm, order, int(n[order.id])).batches for order in orders]
