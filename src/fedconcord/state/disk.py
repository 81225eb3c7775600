"""Rows in one file, so that memory does not grow with the number of clients."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Tree, tree_unflatten
from fedconcord.state.fields import Fields, First, PerClient

PAGE = 4096  # bytes; the file's head takes one, and a row that is longer begins on one
HEAD = 24  # bytes of it that are used: the file's name, the number of commits, their CRC-32


class DiskStore:
    """Client rows in a file that grows by a row when a client takes part for the first time.

    The file is read and written a row at a time (`preadv`, `pwritev`) rather than mapped: that is as fast here
    (docs/scale.md), rows never count as this process's resident memory, and a full disk is an error that a run survives
    where a store through a mapping is killed by SIGBUS. POSIX only.

    Why a run that is killed at any moment resumes to the same bits (shadow paging, Lorie, ACM TODS 1977): rows lie in
    slots, and the table client -> slot is part of the checkpoint. A slot that the last checkpoint refers to is never
    written over: the client's first `scatter` after a checkpoint goes to another slot, and the old one is free only
    when the next checkpoint is on disk (`commit`). So at every moment the file holds all rows of the last checkpoint,
    untouched, and what a killed run wrote beyond them lies in slots that its checkpoint knows nothing of. A checkpoint
    takes 24 bytes a row and flushes what was written since the last one; rows are not copied. The file has a slot for
    each client that ever took part, and one more for each that did between two checkpoints.

    The head of the file holds a random name and the number of commits, so that a checkpoint of another file, or one
    older than slots that were freed since, is refused. The table holds each row's CRC-32 too, which `gather` verifies:
    a row that is not the one last written, be it by a flipped byte, is refused.

    Args:
        path: the file; without one a temporary file without a name.
        template, half, first: see `Fields`.
    """

    def __init__(
        self, template: Tree, path: Path | None, half: torch.dtype | None = None, first: First | None = None
    ) -> None:
        self.template, self.path = template, path
        self._fields = Fields(template, half, first)
        row = self._fields.row_bytes
        self._stride = -(-row // PAGE) * PAGE if row >= PAGE else row
        self._file: int | None = None
        self._name = self._commits = 0  # of the file; 0 while there is none
        self._slot, self._sum, self._fresh = PerClient(-1), PerClient(0), PerClient(0)
        self._free, self._stale = np.zeros(0, np.int64), [np.zeros(0, np.int64)]
        self._end = 0  # slots in the file

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
            return tree_unflatten(self.template, self._fields.fresh(ids))
        leaves = {
            name: torch.zeros(len(ids), *leaf.shape, dtype=self._fields.kept[name])
            for name, leaf in self._fields.initial.items()
        }
        known, parts = np.flatnonzero(~absent), [_bytes(leaf) for leaf in leaves.values()]
        self._move(os.preadv, parts, known, slots)
        damaged = known[_sums(parts, known) != self._sum[ids[known]]]
        if len(damaged):
            raise UserError(
                f"the row of client {ids[damaged[0]]} in {self.path or 'a temporary file'} is damaged (its checksum "
                "differs); put back the file that belongs to the checkpoint, or start the run again"
            )
        return self._fields.with_fresh(self._fields.opened(leaves), ids, absent)

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of these clients (distinct ids), fields [S, ...].

        Raises:
            UserError: a field has another shape or number type than the template's, or the disk is full.
        """
        if not self._fields.initial:
            return
        leaves = self._fields.closed(rows, len(ids))
        if self._file is None:
            self._begin()
        slots, moves = self._slot[ids], self._fresh[ids] == 0
        left = slots[moves & (slots >= 0)]
        slots[moves] = self._take(int(moves.sum()))
        everyone, parts = np.arange(len(ids)), [_bytes(leaf.cpu()) for leaf in leaves.values()]
        self._move(os.pwritev, parts, everyone, slots)
        self._slot[ids], self._sum[ids], self._fresh[ids] = slots, _sums(parts, everyone), 1
        self._stale.append(left)

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Which of these clients [S] have a row, [S] bool."""
        return np.asarray(self._slot[ids] >= 0)

    def ids(self) -> np.ndarray:
        """Clients that have a row, sorted."""
        return self._slot.ids()

    def export(self) -> dict[str, Tensor]:
        """The table: 'ids', 'slots' and 'sums' [R], and 'file' [2], what the file is; the rows are flushed."""
        if self._file is not None:
            os.fsync(self._file)
        ids = self.ids()
        file = np.array([self._name, self._commits + 1])
        table = {"ids": ids, "slots": self._slot[ids], "sums": self._sum[ids], "file": file}
        return {name: torch.as_tensor(values) for name, values in table.items()}

    def commit(self) -> None:
        """What was exported last is safe in a checkpoint: rows that only older checkpoints refer to may go."""
        self._commits += 1
        if self._file is not None:
            self._head()
        self._free = np.concatenate([self._free, *self._stale])
        self._stale, self._fresh = [np.zeros(0, np.int64)], PerClient(0)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The table that was exported, of the same file, into a store that was not used yet.

        Raises:
            UserError: the tensors are of rows in memory, or the file is missing, shorter, another one or newer.
        """
        if "slots" not in tensors:
            raise UserError("the checkpoint was written with its rows in memory; resume with engine.store=memory")
        ids, slots = tensors["ids"].numpy(), tensors["slots"].numpy()
        name, commits = tensors["file"].tolist()
        self._commits = commits
        if name == 0:  # no row was ever written
            return
        end = int(slots.max(initial=-1)) + 1
        # nothing pads the last slot, nor the head before the first row
        least = PAGE + (end - 1) * self._stride + self._fields.row_bytes if end else HEAD
        try:
            if self.path is None:
                raise FileNotFoundError(errno.ENOENT, "it was a temporary file")
            self._open(self.path, os.O_RDWR)
            assert self._file is not None
            if os.fstat(self._file).st_size < least:
                raise OSError(errno.EIO, "it is shorter than the checkpoint says")
            held, held_commits, check = np.frombuffer(os.pread(self._file, HEAD, 0), np.int64)
            if check != zlib.crc32(np.array([held, held_commits]).tobytes()):
                raise OSError(errno.EIO, "its head is damaged")
            if held != name or held_commits > commits:
                raise OSError(errno.EIO, "it belongs to another or a later checkpoint")
        except OSError as error:
            raise UserError(
                f"cannot read the clients' rows in {self.path or 'a file'} ({error.strerror}); put back the file "
                "that belongs to the checkpoint, or start the run again"
            ) from None
        self._name, self._end, self._slot[ids], self._sum[ids] = name, end, slots, tensors["sums"].numpy()
        self._free = np.setdiff1d(np.arange(end), slots)

    def _begin(self) -> None:
        """A new, empty file, whatever lay there."""
        if self.path is None:
            descriptor, name = tempfile.mkstemp(prefix="fedconcord-rows-")
            os.unlink(name)
            self._keep(descriptor)
        else:
            self._open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._name = int.from_bytes(os.urandom(7), "little") + 1  # names a file, decides no result
        self._head()

    def _open(self, path: Path, flags: int) -> None:
        self._keep(os.open(path, flags, 0o666))

    def _keep(self, descriptor: int) -> None:
        self._file = descriptor
        weakref.finalize(self, os.close, descriptor)

    def _head(self) -> None:
        assert self._file is not None
        head = np.array([self._name, self._commits]).tobytes()
        os.pwrite(self._file, head + np.int64(zlib.crc32(head)).tobytes(), 0)

    def _take(self, count: int) -> np.ndarray:
        """Slots that nothing refers to."""
        old = min(count, len(self._free))
        taken, self._free = self._free[:old], self._free[old:]
        new = np.arange(self._end, self._end + count - old)
        self._end += len(new)
        return np.concatenate([taken, new])

    def _move(
        self, transfer: Callable[..., int], parts: list[np.ndarray], which: np.ndarray, slots: np.ndarray
    ) -> None:
        """Read or write the rows `which` of parts [S, bytes] from or to their slots."""
        assert self._file is not None
        try:
            for k in which.tolist():
                moved = transfer(self._file, [part[k] for part in parts], PAGE + int(slots[k]) * self._stride)
                if moved != self._fields.row_bytes:  # the disk ended within a row
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UserError(
                f"the clients' rows cannot be kept in {self.path or 'a temporary file'} ({error.strerror}); free space "
                "or give another folder, and resume"
            ) from error


def _bytes(leaf: Tensor) -> np.ndarray:
    """The memory of a tensor [S, ...] on the CPU as [S, bytes]; not a copy where it is contiguous."""
    flat = leaf.contiguous().reshape(len(leaf), -1)
    return flat.view(torch.uint8).numpy()


def _sums(parts: list[np.ndarray], which: np.ndarray) -> np.ndarray:
    """CRC-32 of the rows `which` of parts [S, bytes]."""
    found = np.zeros(len(which), np.int64)
    for row, k in enumerate(which.tolist()):
        for part in parts:
            found[row] = zlib.crc32(part[k], int(found[row]))
    return found
