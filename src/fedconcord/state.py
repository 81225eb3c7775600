"""Where clients' rows live between rounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Tree, tree_bytes, tree_leaves, tree_unflatten


class MemoryStore:
    """Client rows in memory, one growing array a field. A client that was never scattered has no row and costs nothing.

    Args:
        template: the row of a client before its first round. A scalar field is kept as [1], so that a stacked gather
            gives [S, 1] and broadcasts against [S, d].
    """

    def __init__(self, template: Tree) -> None:
        self.template = template
        self._initial: dict[str, Tensor] = {
            name: leaf.reshape(1) if leaf.ndim == 0 else leaf for name, leaf in tree_leaves(template).items()
        }
        self._rows: dict[str, Tensor] = {name: leaf.new_empty(0, *leaf.shape) for name, leaf in self._initial.items()}
        self._slot: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slot)

    @property
    def row_bytes(self) -> int:
        """Bytes of one client's row."""
        return tree_bytes(self.template)

    def gather(self, ids: np.ndarray) -> Tree:
        """Rows of these clients, stacked: every field [S, ...]."""
        if not self._initial:
            return self.template
        slots = np.array([self._slot.get(int(i), -1) for i in ids], np.int64)
        known = torch.as_tensor(slots >= 0)
        out: dict[str, Tensor] = {}
        for name, initial in self._initial.items():
            rows = self._rows[name]
            index = torch.as_tensor(np.maximum(slots, 0), device=rows.device)
            if len(rows) == 0:
                out[name] = initial.expand(len(ids), *initial.shape).clone()
            else:
                out[name] = rows[index]
                out[name][~known.to(rows.device)] = initial
        return tree_unflatten(self.template, out)

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of these clients (distinct ids), fields [S, ...]."""
        if not self._initial:
            return
        for i in ids:
            self._slot.setdefault(int(i), len(self._slot))
        slots = np.array([self._slot[int(i)] for i in ids], np.int64)
        for name, leaf in tree_leaves(rows).items():
            self._grow(name)
            held = self._rows[name]
            held[torch.as_tensor(slots, device=held.device)] = leaf

    def _grow(self, name: str) -> None:
        held, need = self._rows[name], len(self._slot)
        if need > len(held):
            grown = held.new_empty(max(need, 2 * len(held)), *held.shape[1:])
            grown[: len(held)] = held
            self._rows[name] = grown

    def ids(self) -> np.ndarray:
        """Clients that have a row, sorted."""
        return np.array(sorted(self._slot), np.int64)

    def export(self) -> dict[str, Tensor]:
        """All rows as named tensors: 'ids' [R] sorted and one [R, ...] a field."""
        ids = self.ids()
        return {"ids": torch.as_tensor(ids)} | {
            name: leaf.cpu() for name, leaf in tree_leaves(self.gather(ids)).items() if len(ids)
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `export`."""
        ids = tensors["ids"].numpy()
        if len(ids):
            self.scatter(ids, tree_unflatten(self.template, tensors))
