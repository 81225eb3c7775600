"""Job G: the command itself, from the shell to the prompt, at defaults; prints a table of where the time went.

    python benchmarks/command.py --rounds 20

`fedconcord run --method fedavg --rounds 20` in a process of its own for jobs A and B (MNIST, 100 clients, 10 a round,
2nn with batches of 10 and cnn1 with batches of 50), for cnn2 on CIFAR-10 (100 clients, 10 a round, batches of 50)
and for digits with nothing else said. The parts are those of the run's seconds.json; `end` is what is left to the
prompt. Of several repeats, jobs in turn, the one that took least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOBS = {
    "A": "--data mnist --clients 100 --cohort 10 --model 2nn --partition iid --batch-size 10",
    "B": "--data mnist --clients 100 --cohort 10 --model cnn1 --partition iid --batch-size 50",
    "cnn2": "--data cifar10 --clients 100 --cohort 10 --model cnn2 --partition iid --batch-size 50",
    "digits": "--data digits",
}
PARTS = ("start", "load", "compile", "train", "evaluate", "write", "end")


def measured(job: str, args: argparse.Namespace) -> dict[str, Any]:
    """One run of the command."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "fedconcord", "run", "--method", "fedavg", *JOBS[job].split()]
        command += ["--set", "validation=none"]
        command += ["--rounds", str(args.rounds), "--out", str(out), *args.options.split()]
        before, began = os.times(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - began, os.times()
        seconds: dict[str, float] = json.loads((out / "seconds.json").read_text())
        evaluation = json.loads((out / "run.json").read_text())["evaluation"]
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    seconds["end"] = wall - sum(seconds.values())
    return {"wall": wall, "processor": processor, "seconds": seconds, "evaluation": evaluation}


def table(found: dict[str, dict[str, Any]]) -> str:
    """A row a job, in Markdown."""
    out = [f"| job | wall | {' | '.join(PARTS)} | training's share |", "|---" * (len(PARTS) + 3) + "|"]
    for job, one in found.items():
        cells = " | ".join(f"{one['seconds'][part]:.2f}" for part in PARTS)
        out.append(f"| {job} | {one['wall']:.2f} | {cells} | {one['seconds']['train'] / one['wall']:.0%} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", default=",".join(JOBS), help="some of " + ", ".join(JOBS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--options", default="", help="further options of the command")
    parser.add_argument("--out", type=Path, help="JSON of all repeats")
    args = parser.parse_args()
    names = args.jobs.split(",")
    if unknown := [name for name in names if name not in JOBS]:
        sys.exit(f"there is no job {unknown[0]}; known: {', '.join(JOBS)}")
    every: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(args.repeat):
        for name in names:
            every[name].append(measured(name, args))
    print(table({name: min(runs, key=lambda run: run["wall"]) for name, runs in every.items()}))
    if args.out is not None:
        args.out.write_text(json.dumps(every))


if __name__ == "__main__":
    main()
