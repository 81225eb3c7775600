"""Rows in a file, so that memory does not grow with the number of clients."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.rows import file
from fedconcord.execution.rows.memory import Fields, First, PerClient
from fedconcord.method.contract import Tree
from fedconcord.support.errors import UserError

BATCH = 2**26  # bytes of rows that are taken over from another file at once


class DiskStore:
    """Client rows in a file that grows by a row when a client takes part for the first time.

    The file is read and written a row at a time (`preadv`, `pwritev`) rather than mapped: that is as fast here
    (docs/scale.md), rows never count as this process's resident memory, and a full disk is an error that a run survives
    where a store through a mapping is killed by SIGBUS. One that would outgrow the memory is kept out of the system's
    cache (`file.Passing`). POSIX only.

    Why a run that is killed at any moment resumes to the same bits (shadow paging, Lorie, ACM TODS 1977): rows lie in
    slots, and the table client -> slot is part of the checkpoint. A slot that the last checkpoint refers to is never
    written over: the client's first `scatter` after a checkpoint goes to another slot, and the old one is free only
    when the next checkpoint is on disk (`commit`). So at every moment the file holds all rows of the last checkpoint,
    untouched, and what a killed run wrote beyond them lies in slots that its checkpoint knows nothing of. A checkpoint
    takes 32 bytes a row and flushes what was written since the last one; rows are not copied. The file has a slot for
    each client that ever took part, and one more for each that did between two checkpoints.

    The head of the file holds a random name and the number of commits, so that a checkpoint of another file, or one
    older than slots that were freed since, is refused. The table holds each row's CRC-32 too, which `gather` verifies:
    a row that is not the one last written, be it by a flipped byte, is refused.

    Of several processes each has a file of its own, under a name that says how many they are (`file.path_of`). Another
    number of them takes the rows over into new files; the old ones are read alone, and go with the first checkpoint
    that refers to the new ones. Until then the old number of processes may go on instead.

    Args:
        path: the file; without one a temporary file without a name.
        template, half, first: see `Fields`.
        clients: how many there are, if it is known: so many rows may the file come to hold.
    """

    def __init__(
        self,
        template: Tree,
        path: Path | None,
        half: torch.dtype | None = None,
        first: First | None = None,
        clients: int = 0,
    ) -> None:
        self.template, self.path = template, path
        self._fields = Fields(template, half, first)
        self._row = self._fields.row_bytes
        self._passing = file.outgrows(clients * file.stride_of(self._row))
        self._file: file.RowFile | None = None
        self._commits = 0
        self._slot, self._sum, self._fresh = PerClient(-1), PerClient(0), PerClient(0)
        self._free, self._stale = np.zeros(0, np.int64), [np.zeros(0, np.int64)]
        self._end = 0  # slots in the file
        self._swept = False  # no file of another number of processes is left

    def __len__(self) -> int:
        return len(self.ids())

    def gather(self, ids: np.ndarray) -> Tree:
        """Rows of these clients, stacked: every field [S, ...].

        Raises:
            UserError: the file cannot be read, or a row is not what was written.
        """
        if not self._fields.initial:
            return self.template
        slots = self._slot[ids]
        absent = slots < 0
        if absent.all():
            return self._fields.fresh(ids)
        leaves = self._empty(len(ids))
        parts = [_bytes(leaf) for leaf in leaves.values()]
        assert self._file is not None
        _read(self._file, parts, np.flatnonzero(~absent), ids, slots, self._sum[ids])
        return self._fields.with_fresh(self._fields.from_stored(leaves), ids, absent)

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of these clients (distinct ids), fields [S, ...].

        Raises:
            UserError: a field has another shape or number type than the template's, or the disk is full.
        """
        if self._fields.initial:
            leaves = self._fields.to_stored(rows, len(ids))
            self._write(ids, [_bytes(leaf.cpu()) for leaf in leaves.values()])

    def known(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self._slot[ids] >= 0)

    def ids(self) -> np.ndarray:
        return self._slot.ids()

    def export(self) -> dict[str, Tensor]:
        """The table [R]: 'ids', 'slots', 'sums', and 'files', in which file the row is; the rows are flushed."""
        ids, mark = self.ids(), 0
        if self._file is not None:
            self._file.flush()
            mark = self._file.mark(self._commits + 1)
        table = {"ids": ids, "slots": self._slot[ids], "sums": self._sum[ids], "files": np.full(len(ids), mark)}
        return {name: torch.as_tensor(values) for name, values in table.items()}

    def commit(self) -> None:
        """What was exported last is safe in a checkpoint: rows that only older checkpoints refer to may go."""
        self._commits += 1
        if self._file is not None:
            self._file.commit(self._commits)
        self._free = np.concatenate([self._free, *self._stale])
        self._stale, self._fresh = [np.zeros(0, np.int64)], PerClient(0)
        if not self._swept and self.path is not None:
            for other in file.others(self.path):
                other.unlink(missing_ok=True)
        self._swept = True

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The table that was exported, or what belongs to these clients of several, into a store that was not used yet.

        Raises:
            UserError: the tensors are of rows in memory, a file is missing, shorter, another one or newer, or what
                another number of processes wrote cannot be taken over; what the checkpoint refers to stays as it is.
        """
        if "slots" not in tensors:
            raise UserError("the checkpoint was written with its rows in memory; resume with engine.store=memory")
        if "files" not in tensors:
            raise UserError("the checkpoint was written by an earlier version; resume with it, or start the run again")
        ids, slots, sums, marks = (tensors[name].numpy() for name in ("ids", "slots", "sums", "files"))
        if len(ids) and self.path is None:
            raise UserError("the checkpoint's rows were in a temporary file, which is gone; start the run again")
        others = list[tuple[file.RowFile, np.ndarray]]()
        for mark in np.unique(marks).tolist():
            rows = np.flatnonzero(marks == mark)
            assert self.path is not None
            other = file.open_existing(self.path, self._row, self._passing, mark, int(slots[rows].max()) + 1)
            if other.path != self.path:
                others.append((other, rows))
                continue
            self._file, self._commits, self._end = other, other.commits, int(slots[rows].max()) + 1
            self._slot[ids[rows]], self._sum[ids[rows]] = slots[rows], sums[rows]
            self._free = np.setdiff1d(np.arange(self._end), slots[rows])
        begins = self._file is None
        try:
            for other, rows in others:
                self._take_over(other, ids[rows], slots[rows], sums[rows])
        except UserError:
            if begins and self._file is not None and self.path is not None:
                self.path.unlink()  # it may have filled the disk
            raise

    def _take_over(self, other: file.RowFile, ids: np.ndarray, slots: np.ndarray, sums: np.ndarray) -> None:
        """Rows of another file into this store's own."""
        for batch in np.array_split(np.arange(len(ids)), 1 + len(ids) * self._row // BATCH):
            parts = [_bytes(leaf) for leaf in self._empty(len(batch)).values()]
            _read(other, parts, np.arange(len(batch)), ids[batch], slots[batch], sums[batch])
            self._write(ids[batch], parts)

    def _empty(self, count: int) -> dict[str, Tensor]:
        """Room for so many rows as they are kept."""
        return {
            name: torch.empty(count, *leaf.shape, dtype=self._fields.stored_types[name])
            for name, leaf in self._fields.initial.items()
        }

    def _write(self, ids: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        if self._file is None:
            self._file = file.create(self.path, self._row, self._passing, self._commits)
        slots, moves = self._slot[ids], self._fresh[ids] == 0
        old_slots = slots[moves & (slots >= 0)]
        slots[moves] = self._take(int(moves.sum()))
        self._file.write(parts, slots)
        self._slot[ids], self._sum[ids], self._fresh[ids] = slots, _sums(parts, np.arange(len(ids))), 1
        self._stale.append(old_slots)

    def _take(self, count: int) -> np.ndarray:
        """Slots that nothing refers to."""
        old = min(count, len(self._free))
        others, self._free = self._free[:old], self._free[old:]
        new = np.arange(self._end, self._end + count - old)
        self._end += len(new)
        return np.concatenate([others, new])


def _read(
    source: file.RowFile,
    parts: Sequence[np.ndarray],
    which: np.ndarray,
    ids: np.ndarray,
    slots: np.ndarray,
    sums: np.ndarray,
) -> None:
    """The rows `which` of clients [S] into parts [S, bytes].

    Raises:
        UserError: the file cannot be read, or a row is not what was written.
    """
    source.read(parts, which, slots)
    damaged = which[_sums(parts, which) != sums[which]]
    if len(damaged):
        raise UserError(
            f"the row of client {ids[damaged[0]]} in {source.path or 'a temporary file'} is damaged (its checksum "
            "differs); put back the file that belongs to the checkpoint, or start the run again"
        )


def _bytes(leaf: Tensor) -> np.ndarray:
    """The memory of a tensor [S, ...] on the CPU as [S, bytes]; not a copy where it is contiguous."""
    flat = leaf.contiguous().reshape(len(leaf), -1)
    return flat.view(torch.uint8).numpy()


def _sums(parts: Sequence[np.ndarray], which: np.ndarray) -> np.ndarray:
    """CRC-32 of the rows `which` of parts [S, bytes]."""
    crc = np.zeros(len(which), np.int64)
    for row, k in enumerate(which.tolist()):
        for part in parts:
            crc[row] = zlib.crc32(part[k], int(crc[row]))
    return crc
