"""Where clients' rows live between rounds, and in which precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.rows.disk import DiskStore
from fedconcord.execution.rows.file import path_of
from fedconcord.execution.rows.memory import Fields, First, MemoryStore
from fedconcord.execution.rows.tensors import Picked
from fedconcord.method.contract import Tree

__all__ = ["DiskStore", "Fields", "First", "MemoryStore", "Storage", "Store", "exported", "look", "path_of"]


class Store(Protocol):
    """Rows by client. A client that was never scattered has none, costs nothing, and is gathered as its first row."""

    template: Tree  # the row of a client before its first round

    def __len__(self) -> int:
        """How many clients have a row."""
        ...

    def gather(self, ids: np.ndarray) -> Tree:
        """Rows of these clients, every field [S, ...], scalars [S, 1], the caller's own. Threads may ask at once."""
        ...

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of these clients (distinct ids); a field of another shape or type is refused."""
        ...

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] have a row, [S] bool."""
        ...

    def ids(self) -> np.ndarray:
        """Clients that have a row, sorted."""
        ...

    def export(self) -> dict[str, Tensor]:
        """What a checkpoint must hold for `restore` to bring back these rows."""
        ...

    def commit(self) -> None:
        """Told when what was exported last is safe on disk, before anything else is scattered."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `export`, into a store that was not used yet and owns the tensors from now on."""
        ...


def look(store: Store, ids: np.ndarray) -> Tree:
    """`store.gather`, where vectors may be `compiled.formulas` of rows in memory as they lie until the next scatter."""
    return store.look(ids) if isinstance(store, MemoryStore) else store.gather(ids)


def exported(store: Store) -> Mapping[str, Tensor | Picked]:
    """`store.export`, without a copy of rows in memory."""
    return store.picked() if isinstance(store, MemoryStore) else store.export()


@dataclass(frozen=True)
class Storage:
    """Which store a run uses.

    `rows` other than full keep floating-point fields in 2 bytes a number: the rounds compute in full precision, what is
    kept is rounded to nearest at the end of a round, with relative error up to 2^-9 (bfloat16, the range of float32) or
    2^-12 (float16, which holds 6e-5 to 65504 at that precision; larger is infinite). Exact methods with rows then stop
    short of the optimum (docs/scale.md has measured distances). Every engine rounds alike, so engines still agree,
    unless two engines' last bits fall on two sides of a tie, about one number in 10^13 in float64.
    """

    kind: Literal["memory", "disk"] = "memory"
    rows: Literal["full", "bfloat16", "float16"] = "full"
    path: Path | None = None  # of the file of rows on disk; a temporary file if none

    @property
    def half(self) -> torch.dtype | None:
        """The number type of kept rows, where it is not their own."""
        return None if self.rows == "full" else getattr(torch, self.rows)

    def row_bytes(self, template: Tree) -> int:
        """Bytes that a client's row takes."""
        return Fields(template, self.half).row_bytes

    def open(self, template: Tree, first: First | None = None, clients: int = 0) -> Store:
        """An empty store for so many clients. Rows on disk make their file when the first row is written."""
        if self.kind == "memory":
            return MemoryStore(template, self.half, first, clients)
        return DiskStore(template, self.path, self.half, first, clients)
