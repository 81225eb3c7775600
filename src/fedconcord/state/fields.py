"""What a client's row is made of, and the arrays that a store keeps a client in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Tree, tree_leaves, tree_unflatten

First = Callable[[np.ndarray], Tree]
"""ids [S] -> rows of these clients before their first round, fields [S, ...]."""


class Fields:
    """The fields of a row: their names, shapes and number types, in the rounds and between them.

    Args:
        template: the row of a client before its first round. A scalar field is kept as [1], so that a stacked gather
            gives [S, 1] and broadcasts against [S, d].
        half: number type of the floating-point fields between rounds; their own if none.
        first: the rows of clients before their first round, where they differ by client; the template if none.
    """

    def __init__(self, template: Tree, half: torch.dtype | None = None, first: First | None = None) -> None:
        self.template, self._first = template, first
        self.initial: dict[str, Tensor] = {
            name: leaf.reshape(1) if leaf.ndim == 0 else leaf for name, leaf in tree_leaves(template).items()
        }
        self._scalars = {name for name, leaf in tree_leaves(template).items() if leaf.ndim == 0}
        self.kept: dict[str, torch.dtype] = {
            name: half if half is not None and leaf.is_floating_point() else leaf.dtype
            for name, leaf in self.initial.items()
        }
        self.row_bytes = sum(leaf.numel() * self.kept[name].itemsize for name, leaf in self.initial.items())

    def fresh(self, ids: np.ndarray) -> dict[str, Tensor]:
        """Rows [S, ...] of clients before their first round."""
        if self._first is None:
            return {name: leaf.expand(len(ids), *leaf.shape).clone() for name, leaf in self.initial.items()}
        found: dict[str, Tensor] = tree_leaves(self._first(ids))
        return {name: leaf.reshape(len(ids), *self.initial[name].shape) for name, leaf in found.items()}

    def closed(self, rows: Tree, count: int) -> dict[str, Tensor]:
        """Rows of a round as they are kept; a scalar field may come as [S] or [S, 1].

        Raises:
            UserError: a field is missing, or has another shape or number type than the template's.
        """
        found = tree_leaves(rows)
        if found.keys() != self.initial.keys():
            raise UserError(f"a client's row has the fields {[*found]} where its first row has {[*self.initial]}")
        for name, leaf in found.items():
            like = self.initial[name]
            if leaf.shape == (count,) and name in self._scalars:
                found[name] = leaf = leaf[:, None]
            if leaf.shape != (count, *like.shape) or leaf.dtype != like.dtype:
                raise UserError(
                    f"the rows' field {name!r} came as {leaf.dtype} {list(leaf.shape)} where {like.dtype} "
                    f"{[count, *like.shape]} is kept; the method's finish and settle must keep its shape and type"
                )
        return {name: leaf.to(self.kept[name]) for name, leaf in found.items()}

    def opened(self, leaves: Mapping[str, Tensor]) -> Tree:
        """Rows that were kept, as a round computes with them."""
        return tree_unflatten(self.template, {name: leaf.to(self.initial[name]) for name, leaf in leaves.items()})

    def with_fresh(self, rows: Tree, ids: np.ndarray, absent: np.ndarray) -> Tree:
        """Gathered rows with those of the clients that have none yet (absent [S]) put in their place."""
        if not absent.any():
            return rows
        leaves = tree_leaves(rows)
        for name, leaf in self.fresh(ids[absent]).items():
            leaves[name][torch.as_tensor(absent, device=leaf.device)] = leaf
        return rows


class PerClient:
    """One number a client in an array that grows to the largest id that was written; `fill` for all others."""

    def __init__(self, fill: int) -> None:
        self._fill, self._values = fill, np.full(0, fill, np.int64)

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        found = np.full(len(ids), self._fill, np.int64)
        inside = ids < len(self._values)
        found[inside] = self._values[ids[inside]]
        return found

    def __setitem__(self, ids: np.ndarray, values: np.ndarray | int) -> None:
        held = self._values
        if len(ids) and (largest := int(ids.max())) >= len(held):
            self._values = np.full(max(largest + 1, 2 * len(held)), self._fill, np.int64)
            self._values[: len(held)] = held
        self._values[ids] = values

    def ids(self) -> np.ndarray:
        """The clients whose number is not the fill, sorted."""
        return np.flatnonzero(self._values != self._fill)
