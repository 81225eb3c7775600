"""What busy neighbours cost: the command on a quiet machine and with a busy loop on every core, in turn.

    python benchmarks/neighbours.py [--turns 3] [--options "--threads 1"]

Seconds of a round of training (timing.csv) and of the whole command, medians over rounds and turns; their ratios, of
which 2 is a fair half of every core; and the command's peak memory. A variable of the environment reaches the command:
`OMP_WAIT_POLICY=active python benchmarks/neighbours.py` is without what the command settles.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

MNIST = "--data mnist --partition iid --clients 100 --set validation=none"
JOBS = {
    "A": f"{MNIST} --cohort 10 --model 2nn --batch-size 10 --rounds 10",
    "B": f"{MNIST} --cohort 4 --model cnn1 --batch-size 50 --rounds 3",  # fewer clients a round
    "digits": "--data digits --rounds 30",
}
LOOP = "while True: pass"


class Took(NamedTuple):
    """What one run of the command took."""

    rounds: list[float]  # seconds, the first round left out
    wall: float  # seconds
    memory: int  # bytes at the peak


def measured(job: str, options: str) -> Took:
    """One run of the command in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "fedconcord", "run", *JOBS[job].split(), "--out", str(out), *options.split()]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        if status:
            sys.exit(f"{' '.join(command)} failed")
        with (out / "timing.csv").open() as file:
            rounds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return Took(rounds[1:], wall, used.ru_maxrss * 1024)


@contextmanager
def neighbours(busy: bool) -> Iterator[None]:
    """A busy loop on every core that this process may use, or none."""
    loops = []
    for core in sorted(os.sched_getaffinity(0)) if busy else ():
        loops.append(subprocess.Popen([sys.executable, "-c", LOOP]))
        os.sched_setaffinity(loops[-1].pid, {core})
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def row(job: str, quiet: list[Took], loud: list[Took]) -> str:
    """A row of the table."""
    pairs = [[median(s for took in runs for s in took.rounds) for runs in (quiet, loud)]]
    pairs += [[median(took.wall for took in runs) for runs in (quiet, loud)]]
    cells = [cell for few, many in pairs for cell in (f"{few:.3f}", f"{many:.3f}", f"{many / few:.2f}")]
    return f"| {job} | {' | '.join(cells)} | {max(took.memory for took in quiet) / 1e6:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS), help="some of " + ", ".join(JOBS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--options", default="", help="further options of the command")
    args = parser.parse_args()
    names = args.jobs.split(",")
    if unknown := [name for name in names if name not in JOBS]:
        sys.exit(f"there is no job {unknown[0]}; known: {', '.join(JOBS)}")
    every: dict[tuple[str, bool], list[Took]] = {(name, busy): [] for name in names for busy in (False, True)}
    for _ in range(args.turns):
        for name, busy in every:
            with neighbours(busy):
                every[name, busy].append(measured(name, args.options))
    print("| job | s a round, quiet | busy | ratio | s in all, quiet | busy | ratio | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        print(row(name, every[name, False], every[name, True]))


if __name__ == "__main__":
    main()
