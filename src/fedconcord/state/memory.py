"""Rows in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Tree, tree_unflatten
from fedconcord.state.fields import Fields, First, PerClient


class MemoryStore:
    """Client rows in memory, one growing array a field, on the device of the template.

    A client that was never scattered has no row and costs nothing. For the arguments see `Fields`.
    """

    def __init__(self, template: Tree, half: torch.dtype | None = None, first: First | None = None) -> None:
        self.template = template
        self._fields = Fields(template, half, first)
        self._rows: dict[str, Tensor] = {
            name: leaf.new_empty(0, *leaf.shape, dtype=self._fields.kept[name])
            for name, leaf in self._fields.initial.items()
        }
        self._slot, self._count = PerClient(-1), 0

    def __len__(self) -> int:
        return self._count

    def gather(self, ids: np.ndarray) -> Tree:
        """Rows of these clients, stacked: every field [S, ...]."""
        if not self._rows:
            return self.template
        slots = self._slot[ids]
        absent = slots < 0
        if absent.all():
            return tree_unflatten(self.template, self._fields.fresh(ids))
        slots[absent] = 0
        rows = self._fields.opened({name: held[_index(slots, held)] for name, held in self._rows.items()})
        return self._fields.with_fresh(rows, ids, absent)

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of these clients (distinct ids), fields [S, ...].

        Raises:
            UserError: a field has another shape or number type than the template's.
        """
        if not self._rows:
            return
        leaves = self._fields.closed(rows, len(ids))
        slots = self._slot[ids]
        absent = slots < 0
        slots[absent] = self._count + np.arange(absent.sum())
        self._slot[ids] = slots
        self._count += int(absent.sum())
        for name, leaf in leaves.items():
            held = self._rows[name]
            if len(held) < self._count:
                grown = held.new_empty(max(self._count, 2 * len(held)), *held.shape[1:])
                grown[: len(held)] = held
                self._rows[name] = held = grown
            held[_index(slots, held)] = leaf

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] have a row, [S] bool."""
        return np.asarray(self._slot[ids] >= 0)

    def ids(self) -> np.ndarray:
        """Clients that have a row, sorted."""
        return self._slot.ids()

    def export(self) -> dict[str, Tensor]:
        """All rows as named tensors: 'ids' [R] sorted and one [R, ...] a field, as they are kept."""
        ids = self.ids()
        slots = self._slot[ids]
        return {"ids": torch.as_tensor(ids)} | {
            name: held[_index(slots, held)].cpu() for name, held in self._rows.items() if len(ids)
        }

    def commit(self) -> None:
        """Nothing to do: the checkpoint holds the rows themselves."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `export`, into an empty store.

        Raises:
            UserError: the tensors are of rows on disk, or of other fields.
        """
        ids = tensors["ids"].numpy()
        if "slots" in tensors:
            raise UserError("the checkpoint was written with its rows on disk; resume with engine.store=disk")
        if len(ids):
            for name, held in self._rows.items():
                found = tensors.get(name)
                if found is None or found.dtype != held.dtype or found.shape != (len(ids), *held.shape[1:]):
                    got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                    raise UserError(
                        f"the checkpoint holds {got} for the rows' field {name!r} where this job keeps {held.dtype} "
                        f"{[len(ids), *held.shape[1:]]}; resume with the configuration that wrote it"
                    )
                self._rows[name] = found.to(held.device)
            self._slot[ids], self._count = np.arange(len(ids)), len(ids)


def _index(slots: np.ndarray, held: Tensor) -> Tensor:
    return torch.as_tensor(slots, device=held.device)
