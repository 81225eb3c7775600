"""Why rows on disk are read and written, not mapped: three ways to keep rows in a sparse file, round by round in turn.

    python benchmarks/mapped.py

A round reads and writes the rows of 100 of 20,000 random clients, 31,400 bytes each (logistic regression on MNIST in
float32). `mapped, advised` gives its pages back after every round (MADV_DONTNEED). Prints Markdown.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

ROW, STRIDE, CLIENTS, COHORT, ROUNDS = 31_400, 32_768, 20_000, 100, 100


class Written:
    """preadv and pwritev, a row at a time."""

    def __init__(self, file: int) -> None:
        self.file = file

    def round(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Read these clients' rows [S, bytes], then write new ones."""
        held = np.empty_like(rows)
        for row, i in zip(held, ids.tolist(), strict=True):
            os.preadv(self.file, [row], i * STRIDE)
        for row, i in zip(rows, ids.tolist(), strict=True):
            os.pwritev(self.file, [row], i * STRIDE)
        return held


class Mapped:
    """A shared mapping of the whole file."""

    def __init__(self, file: int, advise: bool) -> None:
        self.map, self.advise = mmap.mmap(file, CLIENTS * STRIDE), advise
        self.rows = np.frombuffer(self.map, np.uint8).reshape(CLIENTS, STRIDE)

    def round(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Read these clients' rows [S, bytes], then write new ones."""
        held: np.ndarray = self.rows[ids, :ROW]
        self.rows[ids, :ROW] = rows
        if self.advise:
            self.map.madvise(mmap.MADV_DONTNEED)
        return held


def resident() -> int:
    """Resident memory of this process [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = [os.open(Path(folder) / str(k), os.O_RDWR | os.O_CREAT) for k in range(3)]
        for file in files:
            os.ftruncate(file, CLIENTS * STRIDE)
        ways = {"read and written": Written(files[0]), "mapped": Mapped(files[1], False)}
        ways["mapped, advised"] = Mapped(files[2], True)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        memory = dict.fromkeys(ways, 0)
        for _ in range(ROUNDS):
            ids = draw.choice(CLIENTS, COHORT, replace=False)
            rows = draw.integers(256, size=(COHORT, ROW), dtype=np.uint8)
            for name, way in ways.items():
                before, begun = resident(), time.perf_counter()
                way.round(ids, rows)
                seconds[name].append(time.perf_counter() - begun)
                memory[name] += resident() - before
    print(f"| way | ms a round | 90 % below | resident memory after {ROUNDS} rounds |\n|---|---|---|---|")
    for name, took in seconds.items():
        high = statistics.quantiles(took, n=10)[-1]
        print(f"| {name} | {1e3 * statistics.median(took):.2f} | {1e3 * high:.2f} | +{memory[name] / 1e6:.0f} MB |")


if __name__ == "__main__":
    main()
