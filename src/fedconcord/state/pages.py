"""What a file of rows that outgrows the memory leaves in the system's cache of pages: next to nothing."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import numpy as np

PAGE = 4096  # bytes
SHARE = 4  # the part of the memory that a file may fill when it is full grown and still be left to the system
WRITTEN = 2**28  # bytes after which rows that were handed to the disk are taken to be there


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
