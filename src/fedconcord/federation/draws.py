"""What a client draws by itself from its orders: the samples of its local steps, keyed by (seed, round, client)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.core import Algorithm, Drawn, Orders, rng
from fedconcord.federation.work import batches


class Keyed(NamedTuple):
    """Mini-batches by epochs of fresh permutations; methods with a table of M blocks draw a block a step instead.

    `batch_size` None means that every step uses all samples of the client.
    """

    seed: int
    batch_size: int | None

    def draw(self, algorithm: Algorithm, orders: Orders, n: int) -> Drawn:
        """The samples of every local step of a client that holds n."""
        if algorithm.step.blocks is not None:
            members = self.members(algorithm, orders.id, n)
            padded = np.full((len(members), max(map(len, members))), -1, np.int64)
            for row, block in zip(padded, members, strict=True):
                row[: len(block)] = block
            generator = rng.generator(self.seed, rng.Purpose.BLOCK, orders.round + 1, orders.id)
            drawn = generator.integers(len(members), size=orders.steps)
            return Drawn(padded[drawn], drawn)
        if self.batch_size is None or (algorithm.step.oracle is not None and algorithm.step.oracle.kind == "full"):
            return Drawn(None)
        return Drawn(batches(self.seed, orders.round, orders.id, n, self.batch_size, orders.steps))

    def members(self, algorithm: Algorithm, client: int, n: int) -> list[np.ndarray]:
        """The sample positions of each of a client's M blocks, the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """
        assert algorithm.step.blocks is not None
        if n < algorithm.step.blocks:
            raise UserError(
                f"client {client} has {n} samples, which cannot be cut in {algorithm.step.blocks} blocks; give the "
                "method fewer blocks or its clients more samples"
            )
        order = rng.generator(self.seed, rng.Purpose.BLOCK, 0, client).permutation(n)
        return np.array_split(order, algorithm.step.blocks)

    def width(self, algorithm: Algorithm, n: int) -> int:
        """The most samples in one step of a client that holds n."""
        if algorithm.step.blocks is not None:
            return -(-n // algorithm.step.blocks)
        return n if self.batch_size is None else min(self.batch_size, n)

    def full_cost(self, algorithm: Algorithm, n: np.ndarray) -> np.ndarray:
        """Mini-batches [S] in a full gradient of clients that hold n [S] samples."""
        if algorithm.step.blocks is not None:
            return np.full(len(n), algorithm.step.blocks, np.int64)
        return np.ones(len(n), np.int64) if self.batch_size is None else -(-n // self.batch_size)
