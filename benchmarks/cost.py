"""What each method costs over FedAvg: time, messages, states and memory on the jobs A, B, C and L of docs/speed.md.

    python benchmarks/cost.py               measure all, write cost.json and print the table of docs/cost.md
    python benchmarks/cost.py --only C,L    these jobs alone, beside what the file has; "memory" is one of them
    python benchmarks/cost.py --table       the table of the file

Times are medians of rounds in turn within one process (`jobs.py D`), each divided by a round of the FedAvg that does
the same local steps. Memory is the peak of a process of its own that runs job A, less FedAvg's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedconcord import METHODS
from fedconcord.support import files

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "src" / "fedconcord" / "insight" / "advice" / "cost.json"  # where `advise` has it
ROUNDS = {"A": 20, "B": 3, "C": 40, "L": 4}  # measured rounds of each job
HEAD = "| method | A | B | C | LoRA | gradients | down | up | client keeps | server keeps | MB on A |"


def jobs(*words: str) -> Any:
    """What `jobs.py` says of a job."""
    command = [sys.executable, str(HERE / "jobs.py"), *words, "--threads", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:  # it has said why
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def times(job: str, quick: list[str]) -> dict[str, Any]:
    """Each method's cost on a job; a text says why a method has none."""
    record = jobs(
        "D",
        "--on",
        job,
        "--rounds",
        "2" if quick else str(ROUNDS[job]),
        "--warmup",
        "1" if job in "BL" else "2",
        *quick,
    )
    names = ("ratio", "gradient_ratio", "down", "up", "row", "server")
    rows = {name: {k: round(one[k], 3) for k in names} for name, one in record["methods"].items() if "," not in name}
    return {**rows, **record["refused"]}


def memory(methods: list[str], quick: list[str]) -> dict[str, float]:
    """Peak memory of job A [MB] over FedAvg's, of methods that may leave clients out."""
    peaks = {}
    for name in ["fedavg", *(name for name in methods if not METHODS[name]().needs.everyone)]:
        record = jobs("A", "--method", name, "--rounds", "5", "--warmup", "0", *quick)
        peaks[name] = record["peak_rss_bytes"] / 1e6
        print(f"{name}: {peaks[name]:.0f} MB", file=sys.stderr, flush=True)
    return {name: round(peak - peaks["fedavg"]) for name, peak in peaks.items() if name != "fedavg"}


def table(results: dict[str, Any]) -> list[str]:
    """Rows by time on job A; a hyphen where a method does not run there."""
    first = {name: one for name, one in results.get("A", {}).items() if not isinstance(one, str)}
    memory = results.get("memory", {})
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for name, one in sorted(first.items(), key=lambda pair: float(pair[1]["ratio"])):
        ratios = [results.get(job, {}).get(name) for job in ROUNDS]
        cells = [f"{r['ratio']:.2f}" if isinstance(r, dict) else "-" for r in ratios]
        cells += [f"{one[key]:.3g}" for key in ("gradient_ratio", "down", "up", "row", "server")]
        cells.append(f"{memory[name]:+.0f}" if name in memory else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join([*ROUNDS, "memory"]), help="jobs, separated by commas")
    parser.add_argument("--table", action="store_true", help="print the table of the results that are there")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--quick", action="store_true", help="a small form of the jobs, for tests")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - {*ROUNDS, "memory"}:
        parser.error(f"unknown job {min(unknown)!r}; known: {', '.join([*ROUNDS, 'memory'])}")
    if args.table and not args.out.exists():
        parser.error(f"there is no file {args.out}; measure first, without --table")
    quick = ["--quick"] * args.quick
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if not args.table:
        for job in args.only.split(","):
            print(f"measuring {job}", file=sys.stderr, flush=True)
            names = [name for name in METHODS if isinstance(results.get("A", {}).get(name), dict)]
            results[job] = memory(names, quick) if job == "memory" else times(job, quick)
            files.write_text(args.out, json.dumps(results, indent=1) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
