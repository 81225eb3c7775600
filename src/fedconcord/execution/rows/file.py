"""One file of rows: slots of one size behind a head that says which file it is; and what it leaves in memory."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedconcord.support.errors import UserError, reason

PAGE = 4096  # bytes
SHARE = 4  # the part of the memory that a file may fill when it is full grown and still be left to the system
WRITTEN = 2**28  # bytes after which rows that were handed to the disk are taken to be there
HEAD = 24  # bytes of the first page that are used: the file's name, the number of commits, their CRC-32
COMMITS = 2**32  # a mark is name * COMMITS + commits
NAMED = re.compile(r"rows(?:-\d+-of-(\d+))?\.bin")


def path_of(folder: Path, rank: int = 0, size: int = 1) -> Path:
    """The file in which one of several processes keeps the rows of its clients."""
    return folder / ("rows.bin" if size == 1 else f"rows-{rank}-of-{size}.bin")


def others(path: Path) -> list[Path]:
    """The files beside it that another number of processes wrote; none beside a file with a name of its own."""
    name_here = NAMED.fullmatch(path.name)
    if name_here is None:
        return []
    beside = ((other, NAMED.fullmatch(other.name)) for other in sorted(path.parent.glob("rows*.bin")))
    return [other for other, name in beside if name is not None and name[1] != name_here[1]]


class RowFile:
    """A file of rows that is open. The first page is its head, slot k begins behind it at k strides.

    A row that is a page or longer begins on one and is written to the end of its last one, so that the system never
    reads a page to write a part of it.

    Args:
        descriptor: of the file, closed with this object.
        path: None: a temporary file without a name.
        row: bytes of a row.
        passing: the file is too large for the system's cache of pages.
        name, commits: as they are in the head.
    """

    def __init__(
        self, descriptor: int, path: Path | None, row: int, passing: bool, name: int = 0, commits: int = 0
    ) -> None:
        self.path, self._file, self._row = path, descriptor, row
        self.stride = stride_of(row)
        self._pad = bytes(self.stride - row)
        self._passing = Passing(self.stride) if passing else None
        self.name, self.commits = name, commits
        weakref.finalize(self, os.close, descriptor)

    def mark(self, commits: int) -> int:
        """This file after so many commits, as one number."""
        return self.name * COMMITS + commits

    def commit(self, commits: int) -> None:
        """Write the head."""
        self.commits = commits
        head = np.array([self.name, commits]).tobytes()
        os.pwrite(self._file, head + np.int64(zlib.crc32(head)).tobytes(), 0)

    def flush(self) -> None:
        """Whatever was written is on the disk after this."""
        os.fsync(self._file)

    def read(self, parts: Sequence[np.ndarray], which: np.ndarray, slots: np.ndarray) -> None:
        """Read the rows `which` of parts [S, bytes], which lie in slots [S].

        Raises:
            UserError: the file cannot be read.
        """
        if self._passing is not None:
            self._passing.wanted(self._file, slots[which])
        self._move(os.preadv, parts, which, slots, ())
        if self._passing is not None:
            self._passing.read(self._file, slots[which])

    def write(self, parts: Sequence[np.ndarray], slots: np.ndarray) -> None:
        """Write the rows of parts [S, bytes] to slots [S].

        Raises:
            UserError: the disk is full, or the file cannot be written.
        """
        self._move(os.pwritev, parts, np.arange(len(slots)), slots, (self._pad,) if self._pad else ())
        if self._passing is not None:
            self._passing.written(self._file, slots)

    def _move(
        self,
        transfer: Callable[..., int],
        parts: Sequence[np.ndarray],
        which: np.ndarray,
        slots: np.ndarray,
        behind: tuple[bytes, ...],
    ) -> None:
        whole = self._row + sum(map(len, behind))
        try:
            for k in which.tolist():
                moved = transfer(self._file, [*(part[k] for part in parts), *behind], _offset(slots[k], self.stride))
                if moved != whole:  # the disk ended within a row
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise cannot_keep(self.path, error) from error


def stride_of(row: int) -> int:
    """Bytes from one slot to the next."""
    return -(-row // PAGE) * PAGE if row >= PAGE else row


def create(path: Path | None, row: int, passing: bool, commits: int) -> RowFile:
    """A new, empty file, whatever lay there.

    Raises:
        UserError: it cannot be made.
    """
    try:
        if path is None:
            descriptor, temporary = tempfile.mkstemp(prefix="fedconcord-rows-")
            os.unlink(temporary)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        name = int.from_bytes(os.urandom(4), "little") % (2**31 - 1) + 1  # names a file, decides no result
        file = RowFile(descriptor, path, row, passing, name)
        file.commit(commits)
    except OSError as error:
        raise cannot_keep(path, error) from error
    return file


def open_existing(path: Path, row: int, passing: bool, mark: int, slots: int) -> RowFile:
    """The file that a checkpoint refers to by its mark, at this path or one beside it of another number of processes.

    Args:
        slots: how many of them the checkpoint knows, none of which may be missing.

    Raises:
        UserError: it is missing, shorter, or newer.
    """
    beside, reason_of = others(path), dict[Path, str]()
    for candidate in [path, *beside] if path.exists() or not beside else beside:
        try:
            return _open(candidate, row, passing, mark, slots)
        except OSError as error:
            reason_of[candidate] = reason(error)
    reasons = "; ".join(f"{candidate}: {text}" for candidate, text in reason_of.items())
    raise UserError(
        f"cannot read the clients' rows ({reasons}); put back the file that belongs to the checkpoint, or start the "
        "run again"
    )


def _open(path: Path, row: int, passing: bool, mark: int, slots: int) -> RowFile:
    descriptor = os.open(path, os.O_RDWR)
    try:
        # nothing pads the last slot where rows are short, nor the head before the first row
        least = _offset(slots - 1, stride_of(row)) + row if slots else HEAD
        if os.fstat(descriptor).st_size < least:
            raise OSError(errno.EIO, "it is shorter than the checkpoint says")
        name, commits, check = np.frombuffer(os.pread(descriptor, HEAD, 0), np.int64).tolist()
        if check != zlib.crc32(np.array([name, commits]).tobytes()):
            raise OSError(errno.EIO, "its head is damaged")
        length, wanted_commits = divmod(mark, COMMITS)
        if name != length or commits > wanted_commits:
            raise OSError(errno.EIO, "it belongs to another or a later checkpoint")
    except OSError:
        os.close(descriptor)
        raise
    return RowFile(descriptor, path, row, passing, name, wanted_commits)


def cannot_keep(path: Path | None, error: OSError) -> UserError:
    """The sentence for rows that cannot be written."""
    return UserError(
        f"the clients' rows cannot be kept in {path or 'a temporary file'} ({reason(error)}); free space or give "
        "another folder, and resume"
    )


def _offset(slot: int, stride: int) -> int:
    return PAGE + int(slot) * stride


# -- the cache of pages ----------------------------------------------------------------------------------------------


def outgrows(size: int) -> bool:
    """Whether a file of so many bytes is too large for the system's cache: its rows are not there when they are read.

    Where there is no way to tell the system (macOS, Windows) none is.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    return size * SHARE > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Passing:
    """The pages of a file that is too large to be cached, row by row of `stride` bytes behind a head of one page.

    Left alone the system would let the file take all memory that is free, and begin to write when a tenth of it waits:
    a page that is taken anew then costs up to ten times what one costs that comes round again (docs/scale.md). So rows
    are handed to the disk when they are written, and their pages given back when they have arrived or were read. No
    byte depends on any of this.
    """

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._waiting, self._bytes = deque[np.ndarray](), 0

    def wanted(self, file: int, slots: np.ndarray) -> None:
        """These slots are about to be read: the disk may fetch them side by side."""
        self._tell(file, slots, os.POSIX_FADV_WILLNEED)

    def read(self, file: int, slots: np.ndarray) -> None:
        """These slots were read."""
        self._tell(file, slots, os.POSIX_FADV_DONTNEED)

    def written(self, file: int, slots: np.ndarray) -> None:
        """These slots were written: told to drop pages Linux begins to write them, and told again it drops them."""
        self._tell(file, slots, os.POSIX_FADV_DONTNEED)
        self._waiting.append(slots)
        self._bytes += len(slots) * self._stride
        while self._bytes > WRITTEN:
            there = self._waiting.popleft()
            self._bytes -= len(there) * self._stride
            self._tell(file, there, os.POSIX_FADV_DONTNEED)

    def _tell(self, file: int, slots: np.ndarray, what: int) -> None:
        for begin, end in self._pages(slots):
            os.posix_fadvise(file, begin, end - begin, what)

    def _pages(self, slots: np.ndarray) -> Iterator[tuple[int, int]]:
        """The bytes of these slots in whole pages, neighbours together."""
        if not len(slots):
            return
        ordered = np.sort(slots)
        for run in np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1):
            begin, end = PAGE + int(run[0]) * self._stride, PAGE + (int(run[-1]) + 1) * self._stride
            yield begin // PAGE * PAGE, -(-end // PAGE) * PAGE
