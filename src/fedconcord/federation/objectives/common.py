"""What problems are built with: one client cut out, and derivatives by torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.support.errors import UserError

P = TypeVar("P")


def alone(problem: P, place: int, samples: tuple[str, ...], clients: tuple[str, ...] = ()) -> P:
    """A shallow copy of a problem whose attributes hold one client's part, with a copy of its own samples, and of no
    others.

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


def counts_of(classes: np.ndarray, offsets: np.ndarray, outputs: int) -> np.ndarray:
    """Samples of each class [N, outputs] int64 that each client has, of the classes [n] of all."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    counts = np.zeros((len(offsets) - 1, outputs), np.int64)
    np.add.at(counts, (owner, classes), 1)
    return counts


REFUSALS = ("vmap", "functorch", "doesn't have storage")  # in what torch says of a module that it cannot batch
HESSIAN_LIMIT = 4096  # parameters


@contextmanager
def vectorised(what: str) -> Iterator[None]:
    """Around vmap of somebody else's model or loss, which `what` names.

    Raises:
        UserError: it looks at the values of a tensor, which are not there one by one.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error) for word in REFUSALS):
            raise
        raise UserError(
            f"{what} cannot be computed for several clients at once, as it branches on values, calls .item() or writes "
            "in place; use --engine serial, or write it without, as with torch.where"
        ) from error


def hessian_of(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The Hessian [d, d] of a loss at x [d].

    Raises:
        UserError: it would be too large.
    """
    if len(x) > HESSIAN_LIMIT:
        raise UserError(
            f"a Hessian of {len(x)} x {len(x)} entries is too large, the limit is {HESSIAN_LIMIT}; use a smaller model "
            "such as logreg, or a method without Newton steps"
        )
    square: Tensor = torch.autograd.functional.hessian(loss, x)  # type: ignore[no-untyped-call]
    return square
