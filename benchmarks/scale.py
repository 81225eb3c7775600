"""Job E over N: seconds a round and resident memory from 10^3 to 10^6 clients, every N in turn round by round.

    python benchmarks/scale.py --out scale.json --figure docs/scale.svg
    python benchmarks/scale.py --models logreg --methods scaffold --stores memory,disk --options "--threads 1 --fill"

Every N is a process of its own, so that its memory is its own. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import jobs
from turns import Contestant, interleave

HERE = Path(__file__).resolve().parent
METHODS = "fedavg,scaffold,fedadmm,fedvra,afedpd,losac"
CLIENTS = "1000,10000,100000,1000000"

Curve = dict[int, dict[str, Any]]
"""N -> the record of job E."""


def curve(model: str, method: str, store: str, sizes: list[int], args: argparse.Namespace) -> Curve:
    """One method, model and store at every N."""
    logs = Path(tempfile.mkdtemp(prefix="fedconcord-scale-"))
    fixed = ["E", "--model", model, "--method", method, "--store", store]
    fixed += ["--rounds", str(args.rounds), "--warmup", str(args.warmup)]
    command = [sys.executable, str(HERE / "jobs.py"), *fixed, *shlex.split(args.options)]
    contestants = [Contestant(str(n), [*command, "--clients", str(n)], {}, logs / f"{n}.log") for n in sizes]
    records = interleave(contestants, args.warmup + args.rounds, args.timeout)
    return {int(name): record for name, record in records.items()}


def line(model: str, method: str, found: Curve) -> str:
    """A row of the table: seconds and memory at each N, and the slowest N against the smallest."""
    failed = [f"{n}: {record['error']}" for n, record in found.items() if "error" in record]
    if failed:
        return f"| {model} | {method} | did not run: {'; '.join(failed)} |"
    seconds = [record["seconds_per_round"] for record in found.values()]
    later = (zip(one["all"], seconds[0]["all"], strict=True) for one in seconds[1:])
    ratio = max((statistics.median(a / b for a, b in pairs) for pairs in later), default=1.0)
    took = " | ".join(f"{1000 * one['median']:.1f}" for one in seconds)
    memory = " | ".join(f"{record['rss_bytes'] / 1e6:.0f}" for record in found.values())
    return f"| {model} | {method} | {took} | {ratio:.2f} | {memory} |"


def figure(path: Path, curves: dict[str, dict[str, Curve]]) -> None:
    """Time and memory against N, a column a model."""
    import matplotlib.pyplot as plt

    drawn, axes = plt.subplots(2, len(curves), figsize=(4.2 * len(curves), 6), sharex=True, squeeze=False)
    for column, (model, methods) in zip(axes.T, curves.items(), strict=True):
        for method, found in methods.items():
            ran = {n: record for n, record in found.items() if "error" not in record}
            column[0].plot(
                list(ran), [1000 * r["seconds_per_round"]["median"] for r in ran.values()], "o-", label=method
            )
            column[1].plot(list(ran), [r["rss_bytes"] / 1e6 for r in ran.values()], "o-", label=method)
        column[0].set(title=model, ylabel="ms a round", ylim=(0, None))
        column[1].set(xlabel="clients N", ylabel="resident memory [MB]", xscale="log", ylim=(0, None))
    axes[0, 0].legend(frameon=False)
    drawn.tight_layout()
    drawn.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default=CLIENTS, help="every N, smallest first, with commas between")
    parser.add_argument("--models", default="logreg,2nn")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--stores", default="memory", help="where the clients' states lie: memory, disk or both")
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them that are not measured")
    parser.add_argument("--options", default="--threads 1", help="of jobs.py, as one text")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a start or a round may take")
    parser.add_argument("--figure", type=Path, help="file for the curves")
    parser.add_argument("--out", type=Path, help="file for everything that was measured, as JSON")
    args = parser.parse_args()
    sizes, stores = [int(n) for n in args.clients.split(",")], args.stores.split(",")
    print(f"{jobs.processor()}; {args.rounds} rounds after {args.warmup}, every N in turn; {args.options}\n")
    columns = " | ".join(f"ms, N = {n:,}" for n in sizes), " | ".join(f"MB, N = {n:,}" for n in sizes)
    print(f"| model | method | {columns[0]} | slowest / first | {columns[1]} |")
    print("|---" * (3 + 2 * len(sizes)) + "|")
    curves: dict[str, dict[str, Curve]] = {}
    for model in args.models.split(","):
        for method, store in product(args.methods.split(","), stores):
            found = curve(model, method, store, sizes, args)
            name = method if len(stores) == 1 else f"{method}, {store}"
            curves.setdefault(model, {})[name] = found
            print(line(model, name, found), flush=True)
            if args.out:
                args.out.write_text(json.dumps({"processor": jobs.processor(), "curves": curves}, indent=1))
    if args.figure:
        figure(args.figure, curves)


if __name__ == "__main__":
    main()
