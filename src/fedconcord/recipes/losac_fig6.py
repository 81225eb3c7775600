"""LoSAC, Fig. 6: gradient matching against what client 1 sends in round 5, binary logistic regression on MNIST.

As section 5.4 says: labels <= 5 are 0, N = S = 100, M = 1, eta = 1e-4, eta_d = 1e-3, 100 iterations of gradient
descent. The paper's losses are sums over samples (algorithms.md 8.3), so on mean losses over n samples eta becomes
n eta and eta_d, whose objective is a square of gradients, n^2 eta_d. Not stated and chosen here: T = 5 local steps
(section 5.1's default), an even random split, pixels in [0, 1], labels known to the attacker, D^ ~ N(0, 1), one logit.

The paper's estimate for FedAvg, SCAFFOLD and LoSAC is "1/eta_L (x_1+ - x), essentially the averaged gradients". Drawn:
    mean       -(x+ - x) / (eta T), the averaged gradients;
    printed    (x+ - x) / eta, the letters as they stand: T times as long, and of the opposite sign;
    protocol   the reading of `fedconcord.analysis.audit`, a server that subtracts the c, c_i and tables that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.algorithms import METHODS
from fedconcord.analysis.audit import Attack, Audit, Curve, attacked, capture, readings, summary
from fedconcord.basis import files
from fedconcord.core import rng
from fedconcord.data import Dataset, data_folder
from fedconcord.data.digits import digits
from fedconcord.data.mnist import MEAN, STD, mnist
from fedconcord.federation.partitions import iid
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import fixed
from fedconcord.jobs import Job
from fedconcord.problems import Supervised
from fedconcord.recipes.tools import line, panels, table

CLIENTS, STEPS, ROUND, ITERATIONS = 100, 5, 5, 100
LR, ATTACK_LR = 1e-4, 1e-3  # on losses that are sums over samples
COHORT: dict[str, tuple[str, dict[str, Any], bool]] = {  # paper's name: method, options, does the paper's curve rise
    "DSGD": ("fedsgd", {}, False),
    "MimeSVRG": ("mimesvrg", {}, False),
    "FedAvg": ("fedavg", {}, True),
    "SCAFFOLD": ("scaffold", {}, True),
    "LoSAC": ("losac", {"blocks": 1}, True),
}
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


def federation(data: Dataset, clients: int, seed: int = 0) -> Supervised:
    """The samples dealt evenly at random."""
    parts = iid(data.train_y, clients, rng.generator(seed, rng.Purpose.PARTITION))
    features = int(np.prod(data.shape))
    return Supervised(lambda: OneLogit(features), data, parts, dtype=torch.float64)


def estimates(job: Job) -> tuple[Any, dict[str, Tensor]]:
    """Client 1's message of round 5, and its estimates by name; those that equal the first are left out."""
    seen = capture(job, ROUND, client=0)
    found = readings(job, seen)
    named = {"mean": found["move"]}
    if seen.gradient is None and job.algorithm.steps != 1:  # the others send a gradient
        named["printed"] = -float(seen.done.steps) * found["move"]
    return seen, named | {name: g for name, g in found.items() if name != "move"}


def curve_of(audit: Audit, reading: str) -> Curve:
    """The attack on one estimate."""
    return next((c for c in audit.curves if c.reading == reading), audit.curves[0])


def run(out: Path, quick: bool, say: Callable[[str], None]) -> None:
    data = binary(digits(Path(), 0) if quick else mnist(data_folder(None), 0))
    clients = 20 if quick else CLIENTS
    problem = federation(data, clients)
    n = float(problem.offsets[1])
    attack = Attack(ITERATIONS, "gd", ATTACK_LR * n**2)
    schedule = Schedule(seed=0, cohort=clients, lr=LR * n, work=fixed(STEPS), unit="steps")
    say(f"{data.name}: {clients} clients of {n:.0f} samples; on mean losses eta {schedule.lr:g}, eta_d {attack.lr:g}")
    audits: list[Audit] = []
    for name, (method, options, _) in COHORT.items():
        job = Job(problem, METHODS[method](**options), schedule)
        seen, guesses = estimates(job)
        audits.append(attacked(job, seen, guesses, attack, name))
        for c in audits[-1].curves:
            say(
                f"{name}, {c.reading}: gradient error {100 * c.error:.3g} %, ||D^ - D|| {c.distance[0]:.2f} -> "
                f"{c.distance[-1]:.2f}, matched {c.matched[0]:.2f} -> {c.matched[-1]:.2f}"
            )
    blank, random = audits[0].blank, audits[0].random
    say(f"without any message: the mean test image {blank:.2f}, fresh noise (matched) {random:.2f}")
    with panels(out, "losac_fig6", list(TITLES.values())) as axes:
        for ax, reading in zip(axes, TITLES, strict=True):
            for k, audit in enumerate(audits):
                c = curve_of(audit, reading)
                line(ax, k, np.arange(len(c.distance), dtype=np.float64), np.array(c.distance), audit.name)
            ax.set(xlabel="iteration of the attack", ylabel="‖D̂ − D‖_F")
    table(
        out,
        "losac_fig6",
        [
            {"method": a.name, "reading": c.reading, "gradient_error": c.error, "iteration": k, "objective": o,
             "distance": d, "matched": m}
            for a in audits for c in a.curves
            for k, (o, d, m) in enumerate(zip(c.objective, c.distance, c.matched, strict=True))
        ],
    )  # fmt: skip
    files.write_text(out / "losac_fig6.md", summary(audits, attack))
    say("paper: the distance falls for DSGD and MimeSVRG and rises for FedAvg, SCAFFOLD and LoSAC")
    for reading in TITLES:
        ends = {a.name: curve_of(a, reading).distance for a in audits}
        rises = {name: distance[-1] > distance[0] for name, distance in ends.items()}
        same = sum(rises[name] == rising for name, (_, _, rising) in COHORT.items())
        words = ", ".join(f"{name} {'rises' if up else 'falls'}" for name, up in rises.items())
        say(f"ours, {reading}: {words}; {same} of {len(COHORT)} as in the paper")
