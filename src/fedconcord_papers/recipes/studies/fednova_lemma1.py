"""FedNova, Lemma 1 and eqs. (28)-(32): the wrong point at which FedAvg and FedProx stop, in closed form and in runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, fednova_quadratics, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, rng
from fedconcord_papers.recipes.claims import holds_where
from fedconcord_papers.recipes.recipe import SizeName
from fedconcord_papers.recipes.tools import line, panels, table
from fedconcord_papers.recipes.values import Values, values

CLIENTS = 30
CPU = torch.device("cpu")
LEMMA = "FedAvg, H = I"
BIAS, ERROR = "distance of the limit (31) from the optimum", "run against (31), relative"
DEVIATION, SMALL = "largest run against (30), relative", "limit against Lemma 1's, share of its bias"


class Case(NamedTuple):
    """A run beside its closed forms."""

    name: str
    lr: float
    bias: float  # ||limit (31) - x*||, what the method must keep
    distance: np.ndarray  # [T + 1] ||x^t - x*|| of the run
    predicted: np.ndarray  # [T + 1] the same from (30)
    deviation: float  # max over t of ||x^t - (30)|| / ||limit||
    error: float  # ||x^T - limit|| / ||limit||
    small_lr: float  # ||limit - sum tau_i e_i / sum tau_i|| / ||sum tau_i e_i / sum tau_i - x*||, Lemma 1's limit


def steps() -> np.ndarray:
    """tau_i [N] uniform on 1 .. 96, kept for all rounds."""
    return rng.generator(0, rng.Purpose.WORK).integers(1, 96, CLIENTS, endpoint=True)


def moves(H: Tensor, tau: Sequence[int], lr: float, mu: float) -> Tensor:
    """K_i [N, d, d] = (I - (I - eta mu - eta H_i)^tau_i) (H_i + mu)^-1: x_i - x = K_i (e_i - H_i x), eq. (25)."""
    eye = torch.eye(H.shape[-1], dtype=H.dtype)
    pulled = H + mu * eye
    shrunk = torch.stack([torch.linalg.matrix_power(eye - lr * P, t) for P, t in zip(pulled, tau, strict=True)])
    K: Tensor = (eye - shrunk) @ torch.linalg.inv(pulled)
    return K


def case(name: str, problem: Quadratic, algorithm: Algorithm, p: np.ndarray, lr: float, mu: float) -> Case:
    """Run FedAvg or FedProx with full gradients of all clients until (30) is within 1e-13 of (31), and compare.

    Args:
        p: [N] the method's weights.
    """
    tau = steps()
    weight = torch.as_tensor(p)
    K = moves(problem.H_mean, tau.tolist(), lr, mu)
    A = torch.einsum("n,nij,njk->ik", weight, K, problem.H_mean)  # sum p_i K_i H_i
    limit = torch.linalg.solve(A, torch.einsum("n,nij,nj->i", weight, K, problem.b_mean))  # (31)
    rounds = int(np.ceil(np.log(1e-13) / np.log(float(torch.linalg.eigvals(torch.eye(problem.dim) - A).abs().max()))))
    best = problem.optimum(p)
    small = problem.optimum(p * tau / (p @ tau))  # eta -> 0: weights p_i tau_i
    schedule = Schedule(0, CLIENTS, lr, lambda seed, round, client: int(tau[client]), "steps")
    job = Job(problem, algorithm, schedule, engine=Stacked(None))
    state = start(job)
    x, eye = state.server.x, torch.eye(problem.dim, dtype=torch.float64)
    distance, predicted, deviation = [], [], 0.0
    for t in range(rounds + 1):
        if t:
            state = advance(job, state)
            x = limit + (eye - A) @ (x - limit)  # (28), so that x is (30)
        distance.append(float((state.server.x - best).norm()))
        predicted.append(float((x - best).norm()))
        deviation = max(deviation, float((state.server.x - x).norm() / limit.norm()))
    return Case(
        name,
        lr,
        float((limit - best).norm()),
        np.array(distance),
        np.array(predicted),
        deviation,
        float((state.server.x - limit).norm() / limit.norm()),
        float((limit - small).norm() / (small - best).norm()),
    )


def cases(rates: Sequence[float]) -> list[Case]:
    """Fig. 2's quadratics (H = I, Lemma 1) at falling step sizes, and quadratics of unequal curvature and weight."""
    simple = fednova_quadratics(0, CLIENTS, torch.float64, CPU)
    general = quadratics(0, CLIENTS, torch.float64, CPU, dim=10, condition=10.0)
    equal, by_size = np.full(CLIENTS, 1 / CLIENTS), general.sizes / general.sizes.sum()
    fedavg, fedprox = METHODS["fedavg"], METHODS["fedprox"]
    return [
        *(case(LEMMA, simple, fedavg(), equal, lr, 0.0) for lr in rates),
        case("FedProx, H = I", simple, fedprox(mu=1.0), equal, 0.05, 1.0),
        case("FedAvg, general H", general, fedavg(weights="size"), by_size, 0.05, 0.0),
        case("FedProx, general H", general, fedprox(mu=1.0, weights="size"), by_size, 0.05, 1.0),
    ]


def run(out: Path, size: SizeName, options: Mapping[str, Any], say: Callable[[str], None]) -> Values:
    """Runs beside their closed forms, for each of `rates` where H = I."""
    found = cases(options["rates"])
    titles = ["FedAvg, H = I (Lemma 1)", "FedProx, and unequal curvature (eq. 31)"]
    with panels(out, "fednova_lemma1", titles) as axes:
        for k, c in enumerate(found):
            ax = axes[c.name != LEMMA]
            t = np.arange(len(c.distance), dtype=np.float64)
            line(ax, k, t, c.distance, f"{c.name}, η = {c.lr:g}", linestyle="solid")
            dots = np.unique(np.geomspace(1, len(t), 14).astype(int)) - 1
            ax.plot(t[dots], c.predicted[dots], "x", color="black", markersize=5, zorder=4,
                    label="closed form: iterate (30)" if k == 0 else None)  # fmt: skip
            ax.axhline(c.bias, color="black", linewidth=0.7, linestyle=(0, (1, 2)), zorder=1,
                       label="closed form: limit (31)" if k == 0 else None)  # fmt: skip
        for ax in axes:
            ax.set(xscale="symlog", xlabel="round", ylabel="distance to the optimum", xlim=(0, None))
            ax.set_yscale("log")
    for c in found:
        say(f"{c.name}, eta {c.lr:g}: stops {c.bias:.4e} from the optimum, run - (31) {c.error:.1e}")
    rows: list[dict[str, Any]] = [
        {BIAS: c.bias, ERROR: c.error, DEVIATION: c.deviation, SMALL: c.small_lr, "case": c.name, "lr": c.lr}
        for c in found
    ]
    table(out, "fednova_lemma1", rows)
    measures = (BIAS, ERROR, DEVIATION, SMALL)
    return values((m, row["case"], f"eta {row['lr']:g}", 0, row[m]) for row in rows for m in measures)


def resolve(size: SizeName, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is run."""
    rates = ", ".join(f"{rate:g}" for rate in options["rates"])
    return [
        {"cell": LEMMA, "clients": CLIENTS, "parameters": 10, "step sizes": rates},
        {"cell": "FedProx, and unequal H and p", "clients": CLIENTS, "parameters": 10, "step sizes": "0.05"},
    ]


def below(measure: str, most: float) -> Callable[[Values], list[tuple[str, bool | None]]]:
    """Whether a measure is below a bound in every case."""

    def test(values: Values) -> list[tuple[str, bool | None]]:
        return [(f"{r.value:.1g} ({r.cell}, {r.entry})", r.value < most) for r in values.rows if r.measure == measure]

    return test


def misses(values: Values) -> list[tuple[str, bool | None]]:
    """Whether each case stops away from the optimum."""
    return [(f"{r.value:.3g} ({r.cell}, {r.entry})", r.value > 1e-3) for r in values.rows if r.measure == BIAS]


def tends(values: Values) -> list[tuple[str, bool | None]]:
    """Whether the limit comes nearer to Lemma 1's as eta falls."""
    numbers = [r.value for r in values.rows if (r.measure, r.cell) == (SMALL, LEMMA)]  # eta falls
    if len(numbers) < 2:
        return [("", None)]
    return [
        (f"{100 * numbers[0]:.3g} % of the bias to {100 * numbers[-1]:.3g} %", all(a > b for a, b in pairwise(numbers)))
    ]


CLAIMS = (
    holds_where("FedAvg and FedProx do not converge to the optimum", misses),
    holds_where("they converge to the point of eq. (31)", below(ERROR, 1e-6)),
    holds_where("every iterate is that of eq. (30)", below(DEVIATION, 1e-9)),
    holds_where("as eta falls FedAvg's limit tends to sum tau_i e_i / sum tau_i", tends),
)
