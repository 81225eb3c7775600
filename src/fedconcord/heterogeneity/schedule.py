"""What is drawn for a round: the cohort, its local work, its batches and its weights. A pure function of the keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedconcord import rng
from fedconcord.core import Algorithm, Plan
from fedconcord.errors import UserError
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.sampling import Sampler, uniform
from fedconcord.heterogeneity.work import Work, batches, epoch_steps, fixed


@dataclass(frozen=True)
class Schedule:
    """Draws every round's plan from (seed, round, client), so that all methods of a comparison meet the same one.

    `work` counts `unit`s. `batch_size` None means that every step uses all samples of the client. Methods with a table
    of M blocks draw a block a step instead of a batch; an epoch is then M steps.
    """

    seed: int
    cohort: int
    lr: float
    work: Work = fixed(1)
    unit: Literal["epochs", "steps"] = "epochs"
    batch_size: int | None = None
    lr_decay: float = 1.0  # the local step size of round t is lr * lr_decay ** t
    sampler: Sampler = uniform()
    lr_drops: tuple[
        tuple[int, float], ...
    ] = ()  # (round, factor): from that round on the step size is times the factor

    def plan(self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray) -> Plan:
        """The plan of one round for clients with these sample offsets [N + 1] and sizes [N].

        Costs O(S) and the cohort's batches, whatever N is; `sizes` must be the same array every round for that.
        """
        drawn = self.sampler(self.seed, round, self.cohort, sizes)
        ids = drawn.ids
        held = (offsets[ids + 1] - offsets[ids]).tolist()
        steps = np.array([self._steps(algorithm, round, int(i), n) for i, n in zip(ids, held, strict=True)], np.int64)
        p = weights.share(algorithm.weights, sizes, ids)
        chosen, blocks = None, None
        if algorithm.blocks is not None:
            pairs = [self._blocks(algorithm, round, int(i), offsets, k) for i, k in zip(ids, steps, strict=True)]
            blocks, chosen = [block for block, _ in pairs], [samples for _, samples in pairs]
        elif self.batch_size is not None and not (algorithm.oracle is not None and algorithm.oracle.kind == "full"):
            chosen = [
                batches(self.seed, round, int(i), n, self.batch_size, k)
                for i, n, k in zip(ids, held, steps.tolist(), strict=True)
            ]
        return Plan(
            round=round,
            ids=ids,
            steps=steps,
            w=weights.cohort(algorithm.weights, p, drawn.times, drawn.inclusion),
            p=p,
            inclusion=drawn.inclusion,
            batches=chosen,
            lr=self.lr * self.lr_decay**round * math.prod(factor for first, factor in self.lr_drops if round >= first),
            seed=self.seed,
            coin=float(rng.generator(self.seed, rng.Purpose.COIN, round).random()),
            full_cost=np.array([algorithm.blocks or epoch_steps(n, self.batch_size) for n in held], np.int64),
            blocks=blocks,
        )

    def members(self, client: int, algorithm: Algorithm, offsets: np.ndarray) -> list[np.ndarray]:
        """The sample positions of each of a client's M blocks, the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """
        assert algorithm.blocks is not None
        n = int(offsets[client + 1] - offsets[client])
        if n < algorithm.blocks:
            raise UserError(
                f"client {client} has {n} samples, which cannot be cut in {algorithm.blocks} blocks; give the method "
                "fewer blocks or its clients more samples"
            )
        order = rng.generator(self.seed, rng.Purpose.BLOCK, 0, client).permutation(n)
        return np.array_split(order, algorithm.blocks)

    def _blocks(
        self, algorithm: Algorithm, round: int, client: int, offsets: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Drawn blocks [K] and their samples [K, B], -1 pads."""
        members = self.members(client, algorithm, offsets)
        padded = np.full((len(members), max(map(len, members))), -1, np.int64)
        for row, block in zip(padded, members, strict=True):
            row[: len(block)] = block
        drawn = rng.generator(self.seed, rng.Purpose.BLOCK, round + 1, client).integers(len(members), size=steps)
        return drawn, padded[drawn]

    def _steps(self, algorithm: Algorithm, round: int, client: int, n: int) -> int:
        if algorithm.steps is not None:
            return algorithm.steps
        amount = self.work(self.seed, round, client)
        if self.unit == "steps":
            return amount
        return amount * (algorithm.blocks or epoch_steps(n, self.batch_size))
