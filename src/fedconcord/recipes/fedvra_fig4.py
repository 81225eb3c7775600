"""FedVRA, Fig. 4: semi-supervised MNIST, 90 % of each client's labels removed, FedVRA-U against four baselines.

Wang et al., AAAI 2023, section 5.2. The paper plots curves and prints no number of them; it states neither the model
("as in Wang et al. 2021b"; FedCPSL, of the same task, uses FedDyn's perceptron, our 2nn), nor alpha_p, alpha_r, nor the
steps on the pseudo-labels: ours are `problems.semi`'s defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedconcord.algorithms import METHODS
from fedconcord.core import Algorithm, rng
from fedconcord.data import DATASETS, data_folder
from fedconcord.engines import Stacked
from fedconcord.federation.labels import labelled
from fedconcord.federation.partitions import PARTITIONS
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import fixed, uniform
from fedconcord.jobs import Job, train
from fedconcord.models import MODELS
from fedconcord.problems.semi import SemiSupervised, semi
from fedconcord.recipes.tools import line, panels, table

ALGORITHMS: dict[str, Algorithm] = {
    "FedVRA-U": METHODS["fedvra"](gamma=0.5, a=5.0, d=15.0),
    "FedAvg": METHODS["fedavg"](),
    "FedProx": METHODS["fedprox"](mu=0.1),
    "SCAFFOLD": METHODS["scaffold"](),
    "FedDyn": METHODS["feddyn"](alpha=0.1),
}
FRACTION = 0.1  # of the labels are kept


class Case(NamedTuple):
    title: str
    partition: str
    low: int  # local epochs, from
    high: int  # to


CASES = {
    "iid": Case("IID", "iid", 2, 2),
    "non-iid": Case("Non-IID", "dirichlet", 2, 2),
    "non-iid-hlu": Case("Non-IID, 1 to 5 epochs", "dirichlet", 1, 5),
}


class Size(NamedTuple):
    """How much of the experiment is done."""

    data: str
    clients: int
    cohort: int
    lr: float
    batch: int
    rounds: int
    every: int  # rounds between evaluations
    cases: Sequence[str]
    seeds: Sequence[int]


PAPER = Size("mnist", 100, 10, 0.01, 50, 500, 5, tuple(CASES), range(5))
DEFAULT = PAPER._replace(rounds=100, cases=("non-iid", "non-iid-hlu"), seeds=(0,))
QUICK = Size("digits", 20, 5, 0.05, 20, 40, 2, ("non-iid",), (0,))


def clients(size: Size, case: Case, seed: int) -> SemiSupervised:
    """The clients of one case: their samples, and which of them keep a label, keyed by the seed."""
    data = DATASETS[size.data](data_folder(None), seed)
    draw = rng.generator(seed, rng.Purpose.PARTITION)
    parts = PARTITIONS[case.partition](data.train_y, size.clients, draw)
    masks = labelled(parts, seed, fraction=FRACTION)
    return semi(
        lambda: MODELS["2nn"](data.shape, data.classes), data, parts, masks, torch.float32, torch.device("cpu"), 2000
    )


class Curve(NamedTuple):
    """A run by evaluated round."""

    round: np.ndarray  # [P]
    accuracy: np.ndarray  # [P] test
    pseudo: np.ndarray  # [P] of the likeliest class on hidden labels


def curve(job: Job, size: Size) -> Curve:
    """One run; a method that diverges stays at its last finite round."""
    rows = []
    for row in train(job, size.rounds, eval_every=size.every):
        if row.metrics is None:
            continue
        if not np.isfinite(row.metrics["train_loss"]):
            break
        rows.append((row.round, row.metrics["test_accuracy"], row.metrics["pseudo_accuracy"]))
    return Curve(*np.array(rows, np.float64).T)


def late(found: Sequence[Curve], size: Size) -> float:
    """Mean test accuracy of the last tenth of the rounds, over the seeds; what diverged before has no value."""
    values = [c.accuracy[c.round > 0.9 * size.rounds] for c in found]
    return float(np.mean([v.mean() for v in values])) if all(len(v) for v in values) else float("nan")


def experiment(out: Path, size: Size, say: Callable[[str], None]) -> None:
    """All runs of a size, the figure `fedvra_fig4` and its table."""
    rows, drawn = [], {}
    for name in size.cases:
        case = CASES[name]
        found: dict[str, list[Curve]] = {method: [] for method in ALGORITHMS}
        for seed in size.seeds:
            problem = clients(size, case, seed)
            if seed == size.seeds[0]:
                total = int(problem.sizes.sum())
                kept = total - int(problem.unlabelled.sum())
                say(f"{case.title}: {size.clients} clients, {kept} of {total} samples keep their label")
            work = fixed(case.low) if case.low == case.high else uniform(case.low, case.high)
            schedule = Schedule(seed, size.cohort, size.lr, work, batch_size=size.batch)
            for method, algorithm in ALGORITHMS.items():
                found[method].append(curve(Job(problem, algorithm, schedule, engine=Stacked(None)), size))
        for method, curves in found.items():
            score, last = late(curves, size), curves[0]
            say(f"  {method:9s} test accuracy {score:7.2%}, pseudo-labels right {last.pseudo[-1]:7.2%}")
            rows += [
                {
                    "case": name,
                    "method": method,
                    "seed": seed,
                    "round": int(r),
                    "test_accuracy": a,
                    "pseudo_accuracy": p,
                }
                for seed, c in zip(size.seeds, curves, strict=True)
                for r, a, p in zip(c.round, c.accuracy, c.pseudo, strict=True)
            ]
        scores = {method: late(curves, size) for method, curves in found.items()}
        order = sorted(scores, key=lambda method: -np.nan_to_num(scores[method], nan=-1.0))
        say(f"  order: {', '.join(order)} (paper: FedVRA-U first in every case, SCAFFOLD before the other three)")
        drawn[name] = found
    with panels(out, "fedvra_fig4", [CASES[name].title for name in size.cases]) as axes:
        for ax, found in zip(axes, drawn.values(), strict=True):
            for k, (method, curves) in enumerate(found.items()):
                shortest = min(len(c.round) for c in curves)
                mean = np.mean([c.accuracy[:shortest] for c in curves], axis=0)
                line(ax, k, curves[0].round[:shortest], 100 * mean, method)
            ax.set_xlabel("round")
            ax.set_ylabel("test accuracy, %")
    table(out, "fedvra_fig4", rows)


def run(out: Path, quick: bool, say: Callable[[str], None]) -> None:
    """Digits with 20 clients if quick, else MNIST with 100; `experiment(out, PAPER, say)` is the paper's full size."""
    experiment(out, QUICK if quick else DEFAULT, say)
