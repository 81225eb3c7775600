"""One client cut out of a problem: a copy of its own samples, and of no others."""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy as np
import torch

P = TypeVar("P")


def alone(problem: P, place: int, samples: tuple[str, ...], clients: tuple[str, ...] = ()) -> P:
    """A shallow copy of a problem whose attributes hold one client's part.

    Args:
        samples: names of tensors, one entry a sample, beside `offsets` and `sizes`.
        clients: names of tensors or arrays, one entry a client.
    """
    whole = vars(problem)
    first, last = whole["offsets"][place : place + 2].tolist()

    def part(value: torch.Tensor | np.ndarray, begin: int, end: int) -> torch.Tensor | np.ndarray:
        return value[begin:end].clone() if isinstance(value, torch.Tensor) else value[begin:end].copy()

    parts = {name: part(whole[name], first, last) for name in samples}
    parts |= {name: part(whole[name], place, place + 1) for name in (*clients, "sizes")}
    client = copy.copy(problem)
    for name in ("objective", "roster"):  # cached properties of the whole
        vars(client).pop(name, None)
    vars(client).update(parts | {"offsets": np.array([0, last - first], np.int64)})
    return client
