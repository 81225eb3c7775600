"""Simulated seconds to a test accuracy with rounds that wait and without, on four kinds of devices.

    python benchmarks/clocks.py clocks.jsonl     # a line a cell; what has a line is not run again; then the table

Digits, 50 clients, multinomial logistic regression, two local epochs; 25 clients at work at a time and updates of 5
replies where nobody waits, cohorts of 25 or 5 where the server does. Every method runs on every kind of devices with
each of its settings (`METHODS`) on two seeds, and with the best of them on five others: the least mean of the seconds
to the target, LIMIT where it is not reached. Evaluated after every update. A cell is the median and the range of the
five, and the median of megabytes up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from fedconcord import advance, evaluate, start
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import imports
from fedconcord.support.errors import UserError

CLIENTS, SLOW = 50, 10  # the last ten are the stragglers
TARGET, LIMIT, UPDATES = 0.9, 200.0, 1500  # test accuracy; simulated seconds; updates at most
TUNING, FRESH = (10, 11), (0, 1, 2, 3, 4)
PROFILES = ("equal", "lognormal", "classes", "stragglers")
LRS = (0.1, 0.3, 1.0, 3.0, 10.0)
WAITING = [{"cohort": cohort, "local.lr": lr} for cohort in (25, 5) for lr in LRS]
FREE = [{"cohort": 5, "clock": "asynchronous(25)", "local.lr": lr} for lr in LRS]
ADMM = "fedadmm(rho={},form=paper,server_lr=participation)"
METHODS: dict[str, list[dict[str, Any]]] = {
    "FedAvg, rounds": [{"method": "fedavg", **some} for some in WAITING],
    "SCAFFOLD, rounds": [{"method": "scaffold", **some} for some in WAITING],
    "A-FedPD, rounds": [{"method": f"afedpd(rho={rho})", **some} for rho in (0.01, 0.1) for some in WAITING],
    "FedBuff": [{"method": "fedavg", **some} for some in FREE],
    "CA2FL": [{"method": "ca2fl", **some} for some in FREE],
    "SCAFFOLD, asynchronous": [{"method": "scaffold", **some} for some in FREE],
    "A-FedPD, asynchronous": [
        {"method": f"afedpd_share(rho={rho})", **some, "clock": "asynchronous(25,staleness=none)"}
        for rho in (0.01, 0.1)
        for some in FREE
    ],
    "FedADMM, asynchronous": [
        {"method": ADMM.format(rho), **some, "clock": "asynchronous(25,staleness=none)"}
        for rho in (0.01, 0.1)
        for some in FREE
    ],
}


def stragglers(labels: np.ndarray, n_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Labels 8 and 9 at the last ten clients alone, dealt out; the others' share the rest, two labels each or so."""
    where = np.flatnonzero(labels >= 8)
    rest = np.flatnonzero(labels < 8)
    rest = rest[np.argsort(labels[rest] + 1e-3 * rng.random(len(rest)), kind="stable")]
    pieces = np.array_split(rest, 2 * (n_clients - SLOW))
    order = rng.permutation(len(pieces))
    fast = [np.concatenate([pieces[a], pieces[b]]) for a, b in zip(order[::2], order[1::2], strict=True)]
    return [*fast, *np.array_split(rng.permutation(where), SLOW)]


def federation(profile: str, folder: Path) -> dict[str, Any]:
    """Its settings of data and devices; a gradient of a typical client takes 0.05 s."""
    if profile != "stragglers":
        devices = {"equal": "equal(step=0.05)", "lognormal": "lognormal(1.0,step=0.05,jitter=0.2)"}
        return {"devices": devices.get(profile, "classes([1,4,16],step=0.05)"), "partition": "dirichlet(0.1)"}
    path = folder / "devices.csv"
    steps = [0.05 * (16 if i >= CLIENTS - SLOW else 4 if i % 2 else 1) for i in range(CLIENTS)]
    rows = [f"{i},{step},1250000,6250000,0.05" for i, step in enumerate(steps)]
    path.write_text("\n".join(["client,step,up,down,latency", *rows]) + "\n")
    imports.trust("clocks:stragglers")
    return {"devices": f"from_file({path})", "partition": "clocks:stragglers"}


def to_target(settings: dict[str, Any], seed: int) -> dict[str, float]:
    """Seconds, megabytes up and updates until a test accuracy of TARGET; LIMIT seconds where it is not reached."""
    flat = {key: value for key, value in settings.items() if not key.startswith("local.")}
    local = {"epochs": 2, "lr": settings["local.lr"]}
    common = {"data": "digits", "model": "logreg", "clients": CLIENTS, "rounds": UPDATES, "seed": seed, "local": local}
    job = build(resolve_run(from_nested({**common, "validation": "none", **flat}, "clocks.py")))
    state, is_there = start(job), False
    while state.round < UPDATES and state.simulated_seconds < LIMIT and not is_there:
        state = advance(job, state)
        is_there = evaluate(job, state)["test_accuracy"] >= TARGET
    is_there &= state.simulated_seconds < LIMIT
    seconds = state.simulated_seconds if is_there else LIMIT
    return {"seconds": seconds, "megabytes": state.bytes_up / 1e6, "updates": state.round, "reached": is_there}


def cell(method: str, profile: str, folder: Path, fresh: int) -> dict[str, Any]:
    """One method on one kind of devices, at its best."""
    there = federation(profile, folder)
    scores = [fmean(to_target({**there, **some}, seed)["seconds"] for seed in TUNING) for some in METHODS[method]]
    best = METHODS[method][int(np.argmin(scores))]
    runs = [to_target({**there, **best}, seed) for seed in FRESH[:fresh]]
    return {"method": method, "profile": profile, "best": best, "tuning": scores, "runs": runs}


def shown(cells: list[dict[str, Any]]) -> str:
    """The table: a row a method, a column a kind of devices."""

    def words(one: dict[str, Any]) -> str:
        seconds, megabytes = (sorted(run[key] for run in one["runs"]) for key in ("seconds", "megabytes"))
        missed = sum(not run["reached"] for run in one["runs"])
        if missed > len(one["runs"]) // 2:
            return f"{len(one['runs']) - missed} of {len(one['runs'])} reach it"
        high = f"{seconds[-1]:.1f}" if not missed else "never"
        return f"{median(seconds):.1f} [{seconds[0]:.1f}, {high}]; {median(megabytes):.1f}"

    at = {(one["method"], one["profile"]): words(one) for one in cells}
    lines = [f"| seconds; MB up | {' | '.join(PROFILES)} |", "|---" * (len(PROFILES) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(at.get((name, p), '') for p in PROFILES)} |" for name in METHODS]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a file of lines of JSON")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--methods", default=None, help="names, with a semicolon between them; all if none is given")
    parser.add_argument("--fresh", type=int, default=len(FRESH), help="seeds of a cell")
    args = parser.parse_args(argv)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    cells = [json.loads(line) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        for profile in args.profiles.split(","):
            for method in METHODS if args.methods is None else args.methods.split(";"):
                if any((one["method"], one["profile"]) == (method, profile) for one in cells):
                    continue
                cells.append(cell(method, profile, Path(folder), args.fresh))
                with args.out.open("a") as file:
                    file.write(json.dumps(cells[-1]) + "\n")
    print(shown(cells))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
