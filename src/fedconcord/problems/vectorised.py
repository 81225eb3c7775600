"""Models computed for many clients at once, by torch.func.vmap: what it cannot compute becomes a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedconcord.basis.errors import UserError

REFUSALS = ("vmap", "functorch", "doesn't have storage")  # in what torch says of a module that it cannot batch


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
