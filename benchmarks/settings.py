"""The jobs as data, and the federation that every contestant of a job trains on. NumPy alone reads what it writes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Setting(NamedTuple):
    """What a job trains."""

    data: str
    model: str
    clients: int  # N
    cohort: int  # S
    samples: int  # of a client, at most
    batch: int | None  # None: every step uses all samples of the client
    epochs: int | None  # local work a round: epochs, or
    steps: int | None  # local steps
    lr: float

    @property
    def client_steps(self) -> int:
        """Local steps of the whole cohort in a round."""
        each = self.steps or (self.epochs or 1) * (1 if self.batch is None else -(-self.samples // self.batch))
        return self.cohort * each


SETTINGS = {
    "A": Setting("mnist", "2nn", 100, 10, 600, 10, 1, None, 0.1),
    "B": Setting("mnist", "cnn1", 100, 10, 600, 50, 1, None, 0.1),
    "C": Setting("mnist", "logreg", 10_000, 100, 6, None, None, 5, 0.1),
    "E": Setting("pool", "logreg", 1_000, 100, 10, None, None, 5, 0.1),
    "L": Setting("mnist", "2nn_lora", 100, 10, 600, 10, 1, None, 0.1),
    "F-pfl": Setting("cifar10", "pfl_cnn", 1_000, 50, 50, 10, 1, None, 0.1),
    "F-resnet18": Setting("cifar10", "resnet18", 100, 10, 500, 50, 1, None, 0.1),
}
QUICK = {  # for tests and a first look: the same code on a fraction of the data
    "A": SETTINGS["A"]._replace(clients=20, cohort=4, samples=40),
    "B": SETTINGS["B"]._replace(clients=20, cohort=2, samples=20, batch=10),
    "C": SETTINGS["C"]._replace(clients=200, cohort=20),
    "E": SETTINGS["E"]._replace(clients=200, cohort=10),
    "L": SETTINGS["L"]._replace(clients=20, cohort=4, samples=40),
    "F-pfl": SETTINGS["F-pfl"]._replace(clients=20, cohort=2, samples=20),
    "F-resnet18": SETTINGS["F-resnet18"]._replace(clients=20, cohort=2, samples=4, batch=2),
}


class Federation(NamedTuple):
    """Samples of all clients, client after client: those of client i are offsets[i] .. offsets[i+1]-1."""

    x: np.ndarray  # [n, *shape] float32
    y: np.ndarray  # [n] int64
    offsets: np.ndarray  # [N + 1] int64
    test_x: np.ndarray  # [m, *shape] float32
    test_y: np.ndarray  # [m] int64

    @property
    def clients(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The samples and labels of each client."""
        ends = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
        return [(self.x[a:b], self.y[a:b]) for a, b in ends]


def save(path: Path, federation: Federation) -> None:
    """Write a federation for contestants that have an environment of their own."""
    with path.open("wb") as file:
        np.savez(file, **federation._asdict())


def load(path: Path) -> Federation:
    """The inverse of `save`."""
    with np.load(path, allow_pickle=False) as found:
        return Federation(**{name: found[name] for name in Federation._fields})


def arguments(parser: argparse.ArgumentParser | None = None) -> tuple[argparse.Namespace, Setting]:
    """The command line of a contestant: job, federation, rounds, threads; and the job's setting."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("job", choices=[*"ABC", "F-pfl"])
    parser.add_argument("--federation", help="file that peers.py wrote")
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them that are not measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a small form of the job, for tests")
    args = parser.parse_args()
    return args, (QUICK if args.quick else SETTINGS)[args.job]
