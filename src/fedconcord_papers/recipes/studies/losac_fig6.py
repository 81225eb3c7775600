"""LoSAC, Fig. 6: gradient matching against what client 1 sends in round 5, binary logistic regression on MNIST.

As section 5.4 says: labels <= 5 are 0, N = S = 100, M = 1, eta = 1e-4, eta_d = 1e-3, 100 iterations of gradient
descent. The paper's losses are sums over samples (algorithms.md 8.3), so on mean losses over n samples eta becomes
n eta and eta_d, whose objective is a square of gradients, n^2 eta_d. Not stated and chosen here: T = 5 local steps
(section 5.1's default), an even random split, pixels in [0, 1], labels known to the attacker, D^ ~ N(0, 1), one logit.

The paper's estimate for FedAvg, SCAFFOLD and LoSAC is "1/eta_L (x_1+ - x), essentially the averaged gradients". Drawn:
    mean       -(x+ - x) / (eta T), the averaged gradients;
    printed    (x+ - x) / eta, the letters as they stand: T times as long, and of the opposite sign;
    protocol   the reading of `fedconcord_papers.audit`, a server that subtracts the c, c_i and tables that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.execution.job import Job
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.offline import digits
from fedconcord.federation.data.pixels import MEAN, STD, mnist
from fedconcord.federation.data.published import data_folder
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.federation.partitions.simple import iid
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import rng
from fedconcord.study.statistics.stats import interval
from fedconcord_papers.audit import Attack, Audit, Curve, attacked, capture, readings
from fedconcord_papers.recipes.claims import Sign, decided, judged
from fedconcord_papers.recipes.recipe import Claim, SizeName
from fedconcord_papers.recipes.tools import line, panels, table
from fedconcord_papers.recipes.values import Finding, Values, values

CLIENTS, STEPS, ROUND, ITERATIONS = 100, 5, 5, 100
LR, ATTACK_LR = 1e-4, 1e-3  # on losses that are sums over samples
COHORT: dict[str, tuple[str, dict[str, Any], bool]] = {  # paper's name: method, options, does the paper's curve rise
    "DSGD": ("fedsgd", {}, False),
    "MimeSVRG": ("mimesvrg", {}, False),
    "FedAvg": ("fedavg", {}, True),
    "SCAFFOLD": ("scaffold", {}, True),
    "LoSAC": ("losac", {"blocks": 1}, True),
}
RISE, END = "change of the distance", "distance after the attack"
NOT_RUN = ("HAR", "ESR")  # data sets of the paper that are not at hand
MATCHED, OFF = "the same, samples matched", "error of the estimate"
TITLES = {
    "mean": "estimate −(x⁺−x)/(ηT)",
    "printed": "estimate (x⁺−x)/η, as printed",
    "protocol": "server that subtracts what it knows",
}


class OneLogit(nn.Module):
    """Binary logistic regression as two classes: logits (0, w^T z + b)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, z: Tensor) -> Tensor:
        return F.pad(self.linear(z.flatten(1)), (1, 0))


def binary(data: Dataset) -> Dataset:
    """Labels <= 5 become 0, the others 1; pixels in [0, 1]."""
    data = data.scaled()
    scale, shift = (STD, MEAN) if data.name == "mnist" else (1.0, 0.0)
    x, test = ((part * scale + shift).astype(np.float32) for part in (data.train_x, data.test_x))
    return data._replace(
        train_x=x, train_y=(data.train_y > 5).astype(np.int64), test_x=test,
        test_y=(data.test_y > 5).astype(np.int64), classes=2,
    )  # fmt: skip


def federation(data: Dataset, clients: int, seed: int) -> Supervised:
    """The samples dealt evenly at random."""
    parts = iid(data.train_y, clients, rng.generator(seed, rng.Purpose.PARTITION))
    features = int(np.prod(data.shape))
    return Supervised(lambda: OneLogit(features), data, parts, dtype=torch.float64)


def estimates(job: Job) -> tuple[Any, dict[str, Tensor]]:
    """Client 1's message of round 5, and its estimates by name; those that equal the first are left out."""
    captured = capture(job, ROUND, client=0)
    found = readings(job, captured)
    named = {"mean": found["move"]}
    if captured.gradient is None and job.algorithm.step.steps != 1:  # the others send a gradient
        named["printed"] = -float(captured.done.steps) * found["move"]
    return captured, named | {name: g for name, g in found.items() if name != "move"}


def curve_of(audit: Audit, reading: str) -> Curve:
    """The attack on one estimate."""
    return next((c for c in audit.curves if c.reading == reading), audit.curves[0])


def run(out: Path, size: SizeName, options: Mapping[str, Any], say: Callable[[str], None]) -> Values:
    """The attack on `clients` clients of `data` for each of `seeds`; the figure is of the first."""
    load = {"digits": digits, "mnist": mnist}[options["data"]]
    data = binary(load(data_folder(None), 0))
    found, rows, drawn = list[tuple[str, str, str, int, float]](), list[dict[str, Any]](), list[Audit]()
    for seed in options["seeds"]:
        audits = attacks(data, options["clients"], seed)
        drawn = drawn or audits
        for audit, reading in product(audits, TITLES):
            c = curve_of(audit, reading)
            for measure, value in (
                (RISE, c.distance[-1] - c.distance[0]),
                (END, c.distance[-1]),
                (MATCHED, c.matched[-1]),
                (OFF, c.error),
            ):
                found.append((measure, reading, audit.name, seed, value))
            rows += [
                {"seed": seed, "method": audit.name, "reading": reading, "iteration": k, "objective": o, "distance": d}
                for k, (o, d) in enumerate(zip(c.objective, c.distance, strict=True))
            ]
        ends = {audit.name: curve_of(audit, "mean").distance for audit in audits}
        say(f"seed {seed}: " + ", ".join(f"{name} {d[0]:.2f} -> {d[-1]:.2f}" for name, d in ends.items()))
    with panels(out, "losac_fig6", list(TITLES.values())) as axes:
        for ax, reading in zip(axes, TITLES, strict=True):
            for k, audit in enumerate(drawn):
                c = curve_of(audit, reading)
                line(ax, k, np.arange(len(c.distance), dtype=np.float64), np.array(c.distance), audit.name)
            ax.set(xlabel="iteration of the attack", ylabel="‖D̂ − D‖_F")
    table(out, "losac_fig6", rows)
    return values(found)


def attacks(data: Dataset, clients: int, seed: int) -> list[Audit]:
    """Every method's message of client 1 in round 5, attacked."""
    problem = federation(data, clients, seed)
    n = float(problem.offsets[1])
    attack = Attack(ITERATIONS, "gd", ATTACK_LR * n**2)
    schedule = Schedule(seed=seed, cohort=clients, lr=LR * n, work=fixed(STEPS), unit="steps")
    audits = []
    for name, (method, options, _) in COHORT.items():
        job = Job(problem, METHODS[method](**options), schedule)
        captured, guesses = estimates(job)
        audits.append(attacked(job, captured, guesses, attack, name))
    return audits


def resolve(size: SizeName, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is run."""
    clients = options["clients"]
    shared = {"data": options["data"], "clients": clients, "a round": clients, "local work": f"{STEPS} steps of full"}
    return [
        {"method": name, **shared, "rounds": ROUND, "iterations": ITERATIONS, "runs": len(options["seeds"])}
        for name in COHORT
    ]


def moves(values: Values, reading: str, method: str) -> list[float]:
    """How the distance changed by the attack, as a part of what it was before, by seed."""
    rises, ends = values.seeds(RISE, reading, method), values.seeds(END, reading, method)
    return [rises[seed] / (ends[seed] - rises[seed]) for seed in sorted(rises.keys() & ends.keys())]


def as_printed(says: str, reading: str, rising: bool) -> Claim:
    """The distance rises (falls) for those of which the paper says so."""

    def judge(values: Values) -> Finding:
        signs: list[tuple[str, Sign | None]] = []
        for name, (_, _, rises) in COHORT.items():
            if rises == rising:
                changes = moves(values, reading, name)
                mean = 100 * interval(changes).mean if changes else float("nan")
                gains = [change if rising else -change for change in changes]
                signs.append((f"{name} {mean:+.2f} % of the start", decided(gains) if gains else None))
                signs += [(name, None)] * len(NOT_RUN)
        return judged(signs)

    return Claim(says, judge)


CLAIMS = (
    as_printed("the distance falls for DSGD and MimeSVRG", "mean", False),
    as_printed("it rises for FedAvg, SCAFFOLD and LoSAC, attacked by the averaged gradients", "mean", True),
    as_printed("it rises for them, attacked by the estimate as its letters stand", "printed", True)._replace(ours=True),
    as_printed("it rises for them if the server subtracts what it knows", "protocol", True)._replace(ours=True),
)
