"""A long run: what the process holds must not grow with its rounds.

PYTHONPATH=src python tests/hostile/rounds.py --rounds 10000
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
from pathlib import Path

import fedconcord

SETTINGS = {"engine.store": "disk", "checkpoint.every": 0.2, "eval.every": 100}
GROWTH = 300  # bytes a round that memory may grow by: tables are written as a whole


class Watch(fedconcord.Callback):
    """Memory and handles of the process at every tenth part of the run."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, list[tuple[int, int, int]]()

    def row(self, run: fedconcord.Run, row: fedconcord.Row) -> None:
        """Look."""
        if row.round % self.every == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.seen.append((row.round, pages * resource.getpagesize(), len(os.listdir("/proc/self/fd"))))


def main() -> int:
    """Print what was held, and whether it grew after the first tenth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10000)
    rounds, watch = parser.parse_args().rounds, Watch(parser.parse_args().rounds // 10)
    given = {"data": "quadratics(dim=4)", "clients": 20, "cohort": 5, "upload": "topk(0.5)"}
    with tempfile.TemporaryDirectory() as folder:
        fedconcord.run("scaffold", **given, rounds=rounds, settings=SETTINGS, callbacks=[watch], out=f"{folder}/run")
    for round, memory, handles in watch.seen:
        print(f"| {round} | {memory / 2**20:.1f} | {handles} |")
    (_, first, handles), (_, last, after) = watch.seen[1], watch.seen[-1]
    return int(after != handles or last - first > GROWTH * rounds)


if __name__ == "__main__":
    sys.exit(main())
