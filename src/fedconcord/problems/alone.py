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
    made = copy.copy(problem)
    given = vars(problem)
    first, last = given["offsets"][place : place + 2].tolist()

    def part(value: torch.Tensor | np.ndarray, begin: int, end: int) -> torch.Tensor | np.ndarray:
        return value[begin:end].clone() if isinstance(value, torch.Tensor) else value[begin:end].copy()

    changed = {name: part(given[name], first, last) for name in samples}
    changed |= {name: part(given[name], place, place + 1) for name in (*clients, "sizes")}
    for name in ("objective", "roster"):  # cached properties of the whole
        vars(made).pop(name, None)
    vars(made).update(changed | {"offsets": np.array([0, last - first], np.int64)})
    return made
