"""What a client's row is made of, and rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.rows.tensors import Picked
from fedconcord.method.contract import Tree, tree_leaves, tree_map, tree_unflatten
from fedconcord.method.step.compiled.formulas import lying, pays, renew, there
from fedconcord.support.errors import UserError

UNTOUCHED = 2**30
"""Bytes of a field that are set aside where all clients' are more than a machine gives."""

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
        self.stored_types: dict[str, torch.dtype] = {
            name: half if half is not None and leaf.is_floating_point() else leaf.dtype
            for name, leaf in self.initial.items()
        }
        self.row_bytes = sum(leaf.numel() * self.stored_types[name].itemsize for name, leaf in self.initial.items())

    def fresh(self, ids: np.ndarray) -> Tree:
        """Rows of clients before their first round, which the caller may change."""
        return tree_map(torch.clone, tree_unflatten(self.template, self.first_rows(ids)))

    def first_rows(self, ids: np.ndarray) -> dict[str, Tensor]:
        """Fields [S, ...] of clients before their first round, which may share memory."""
        if self._first is None:
            return {name: leaf.expand(len(ids), *leaf.shape) for name, leaf in self.initial.items()}
        leaves: dict[str, Tensor] = tree_leaves(self._first(ids))
        return {name: leaf.reshape(len(ids), *self.initial[name].shape) for name, leaf in leaves.items()}

    def to_stored(self, rows: Tree, count: int) -> dict[str, Tensor]:
        """Rows of a round as they are kept; a scalar field may come as [S] or [S, 1].

        Raises:
            UserError: a field is missing, or has another shape or number type than the template's.
        """
        leaves = tree_leaves(rows)
        if leaves.keys() != self.initial.keys():
            raise UserError(f"a client's row has the fields {[*leaves]} where its first row has {[*self.initial]}")
        for name, leaf in leaves.items():
            like = self.initial[name]
            if leaf.shape == (count,) and name in self._scalars:
                leaves[name] = leaf = leaf[:, None]
            if leaf.shape != (count, *like.shape) or leaf.dtype != like.dtype:
                raise UserError(
                    f"the rows' field {name!r} came as {leaf.dtype} {list(leaf.shape)} where {like.dtype} "
                    f"{[count, *like.shape]} is kept; the method's finish and settle must keep its shape and type"
                )
        types = self.stored_types  # what needs no other type stays a formula where it is one
        return {name: leaf if leaf.dtype == types[name] else leaf.to(types[name]) for name, leaf in leaves.items()}

    def from_stored(self, leaves: Mapping[str, Tensor]) -> Tree:
        """Rows that were kept, as a round computes with them."""
        return tree_unflatten(self.template, {name: leaf.to(self.initial[name]) for name, leaf in leaves.items()})

    def with_fresh(self, rows: Tree, ids: np.ndarray, absent: np.ndarray) -> Tree:
        """Gathered rows with those of the clients that have none yet (absent [S]) put in their place."""
        if not absent.any():
            return rows
        leaves, places = tree_leaves(rows), np.flatnonzero(absent)
        for name, leaf in self.first_rows(ids[absent]).items():
            leaves[name].index_copy_(0, torch.as_tensor(places, device=leaf.device), leaf)
        return rows


class PerClient:
    """One number a client in an array that grows to the largest id that was written; `fill` for all others."""

    def __init__(self, fill: int) -> None:
        self._fill, self._values = fill, np.full(0, fill, np.int64)

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        values = np.full(len(ids), self._fill, np.int64)
        inside = ids < len(self._values)
        values[inside] = self._values[ids[inside]]
        return values

    def __setitem__(self, ids: np.ndarray, values: np.ndarray | int) -> None:
        array = self._values
        if len(ids) and (largest := int(ids.max())) >= len(array):
            self._values = np.full(max(largest + 1, 2 * len(array)), self._fill, np.int64)
            self._values[: len(array)] = array
        self._values[ids] = values

    def ids(self) -> np.ndarray:
        """The clients whose number is not the fill, sorted."""
        return np.flatnonzero(self._values != self._fill)


class MemoryStore:
    """Client rows in memory, one growing array a field, on the device of the template.

    A client that was never scattered has no row and costs nothing. For the arguments see `Fields`.

    Args:
        clients: how many may come, if that is known.
    """

    def __init__(
        self, template: Tree, half: torch.dtype | None = None, first: First | None = None, clients: int = 0
    ) -> None:
        self.template, self._clients = template, clients
        self._fields = Fields(template, half, first)
        self._rows: dict[str, Tensor] = {
            name: leaf.new_empty(0, *leaf.shape, dtype=self._fields.stored_types[name])
            for name, leaf in self._fields.initial.items()
        }
        self._slot, self._count = PerClient(-1), 0

    def __len__(self) -> int:
        return self._count

    def gather(self, ids: np.ndarray) -> Tree:
        if not self._rows:
            return self.template
        slots = self._slot[ids]
        absent = slots < 0
        if absent.all():
            return self._fields.fresh(ids)
        slots[absent] = 0
        rows = self._fields.from_stored(
            {name: column.index_select(0, _index(slots, column)) for name, column in self._rows.items()}
        )
        return self._fields.with_fresh(rows, ids, absent)

    def look(self, ids: np.ndarray) -> Tree:
        """`gather`, where vectors may be `compiled.formulas` of the rows as they lie here until the next scatter."""
        stored = self._fields.stored_types
        are_here = (
            leaf.device.type == "cpu" and leaf.dtype == stored[name] for name, leaf in self._fields.initial.items()
        )
        if not all(are_here) or not pays(len(ids), self.template, self.template):
            return self.gather(ids)
        slots = self._slot[ids]
        absent = np.flatnonzero(slots < 0)
        first = self._fields.first_rows(ids[absent])
        return tree_unflatten(
            self.template, {name: lying(column, slots, first[name], absent) for name, column in self._rows.items()}
        )

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        if not self._rows:
            return
        leaves = self._fields.to_stored(rows, len(ids))
        slots = self._slot[ids]
        absent = slots < 0
        slots[absent] = self._count + np.arange(absent.sum())
        self._slot[ids] = slots
        before, self._count = self._count, self._count + int(absent.sum())
        leaves = there(leaves) if absent.any() else renew(leaves, self._rows, slots)
        for name, leaf in leaves.items():
            column = self._rows[name]
            if len(column) < self._count:
                longer = _longer(column, self._count, self._clients)
                longer[:before] = column[:before]
                self._rows[name] = column = longer
            column.index_copy_(0, _index(slots, column), leaf)

    def known(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self._slot[ids] >= 0)

    def ids(self) -> np.ndarray:
        return self._slot.ids()

    def export(self) -> dict[str, Tensor]:
        """All rows as named tensors: 'ids' [R] sorted and one [R, ...] a field, as they are kept."""
        return {name: leaf.whole() if isinstance(leaf, Picked) else leaf for name, leaf in self.picked().items()}

    def commit(self) -> None:
        """Nothing to do: the checkpoint holds the rows themselves."""

    def picked(self) -> dict[str, Tensor | Picked]:
        """As `export`, without a copy of the rows: as they lie until the next scatter."""
        ids = self.ids()
        slots = self._slot[ids]
        columns = {name: Picked(column, _index(slots, column)) for name, column in self._rows.items() if len(ids)}
        return {"ids": torch.as_tensor(ids), **columns}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `export`, into an empty store.

        Raises:
            UserError: the tensors are of rows on disk, or of other fields.
        """
        ids = tensors["ids"].numpy()
        if "slots" in tensors:
            raise UserError("the checkpoint was written with its rows on disk; resume with engine.store=disk")
        if len(ids):
            for name, column in self._rows.items():
                stored = tensors.get(name)
                if stored is None or stored.dtype != column.dtype or stored.shape != (len(ids), *column.shape[1:]):
                    got = "nothing" if stored is None else f"{stored.dtype} {list(stored.shape)}"
                    raise UserError(
                        f"the checkpoint holds {got} for the rows' field {name!r} where this job keeps {column.dtype} "
                        f"{[len(ids), *column.shape[1:]]}; resume with the configuration that wrote it"
                    )
                self._rows[name] = _longer(column, len(ids), self._clients)
                self._rows[name][: len(ids)] = stored
            self._slot[ids], self._count = np.arange(len(ids)), len(ids)


def _longer(column: Tensor, rows: int, clients: int) -> Tensor:
    """An array for so many rows and those to come, for all clients if it may be.

    On a CPU a page that was never written costs no memory, where a copy of all rows into a longer array costs the round
    in which it happens several others, and for a moment their memory once more.
    """
    few = UNTOUCHED // max(1, column.dtype.itemsize * column.shape[1:].numel())
    least = max(rows, min(2 * len(column), clients or 2 * len(column)))
    for many in (clients, min(clients, few) or few) if column.device.type == "cpu" else ():
        if many > least:
            with suppress(RuntimeError):  # more than the machine gives
                return column.new_empty(many, *column.shape[1:])
    return column.new_empty(least, *column.shape[1:])


def _index(slots: np.ndarray, column: Tensor) -> Tensor:
    return torch.as_tensor(slots, device=column.device)
