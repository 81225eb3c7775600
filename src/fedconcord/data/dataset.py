"""What every data set is to the rest of the package: arrays in memory, and a division in clients if it has one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """Samples and labels of one classification task, ready for a model (features already scaled)."""

    name: str
    train_x: np.ndarray  # [n, *shape] float32
    train_y: np.ndarray  # [n] int64, 0 .. classes-1
    test_x: np.ndarray  # [m, *shape] float32
    test_y: np.ndarray  # [m] int64
    classes: int
    natural: list[np.ndarray] | None = None  # N sorted int64 arrays of training samples, where the data come in clients

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])
