"""Derivatives by torch: for many clients at once, and Hessians; what torch cannot compute becomes a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedconcord.basis.errors import UserError

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
