"""What is drawn for a round: the cohort, its local work, its batches and its weights. A pure function of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedconcord import rng
from fedconcord.core import Algorithm, Plan
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.work import Work, batches, epoch_steps, fixed


@dataclass(frozen=True)
class Schedule:
    """Draws every round's plan from (seed, round, client), so that all methods of a comparison meet the same one.

    `work` counts `unit`s. `batch_size` None means that every step uses all samples of the client.
    """

    seed: int
    cohort: int
    lr: float
    work: Work = fixed(1)
    unit: Literal["epochs", "steps"] = "epochs"
    batch_size: int | None = None
    lr_decay: float = 1.0  # the local step size of round t is lr * lr_decay ** t

    def plan(self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray) -> Plan:
        """The plan of one round for clients with these sample offsets [N + 1] and sizes [N]."""
        n = len(sizes)
        draw = rng.generator(self.seed, rng.Purpose.SAMPLE, round)
        ids = np.sort(draw.choice(n, self.cohort, replace=False)).astype(np.int64)
        held = (offsets[ids + 1] - offsets[ids]).tolist()
        steps = [self._steps(algorithm, round, int(i), k) for i, k in zip(ids, held, strict=True)]
        full = self.batch_size is None or (algorithm.oracle is not None and algorithm.oracle.kind == "full")
        p = weights.objective(algorithm.weights, sizes)
        return Plan(
            round=round,
            ids=ids,
            steps=np.array(steps, np.int64),
            w=weights.cohort(algorithm.weights, p, ids),
            p=p[ids],
            batches=None
            if full
            else [
                batches(self.seed, round, int(i), k, self.batch_size or k, s)
                for i, k, s in zip(ids, held, steps, strict=True)
            ],
            lr=self.lr * self.lr_decay**round,
        )

    def _steps(self, algorithm: Algorithm, round: int, client: int, n: int) -> int:
        if algorithm.steps is not None:
            return algorithm.steps
        amount = self.work(self.seed, round, client)
        return amount if self.unit == "steps" else amount * epoch_steps(n, self.batch_size)
