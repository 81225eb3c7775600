"""How much what `tune` chooses depends on seeds and on last bits: by its rule, and by the rounds to the target alone.

    python benchmarks/stability.py stability.jsonl     # a line a search; what has a line is not searched again

A-FedPD on the job of the demo, 16 trials a search, tuned with four pairs of seeds and with two kernels (torch's and the
compiled one, which differ by rounding alone); every winner then runs with five seeds that no search has seen.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from fedconcord.insight.report.search_page import write_all
from fedconcord.study import search as tuning
from fedconcord.study.runs.events import Watch
from fedconcord.study.runs.pool import carry_out
from fedconcord.study.settings.sources import from_file, from_nested

JOB = Path(__file__).parents[1] / "examples" / "demo.toml"
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
FRESH = [20, 21, 22, 23, 24]
KERNELS = ("compiled", "torch")
RULES = {"final value": None, "rounds alone": 0.9}  # the second is the arena's, which compares methods by rounds
LAST = 5  # evaluations whose mean is a final value, as in reports


def search(
    rule: str, kernel: str, seeds: Sequence[int], folder: Path, rounds: int = 60, budget: int = 16, fresh: int = 5
) -> dict[str, Any]:
    """One search, and what its winner comes to on fresh seeds."""
    job = {"methods": ["afedpd"], "baselines": [], "seeds": list(seeds), "rounds": rounds, "out": str(folder)}
    spec = tuning.SearchSpec(budget=budget, final_seeds=FRESH[:fresh], target=RULES[rule])
    plan = tuning.plan_tuning(spec, from_file(JOB), from_nested(job | {"engine": {"kernel": kernel}}, "stability"))
    outcome = carry_out(tuning.tuned(plan, 1, lambda line: None, write_all), 1, Watch())
    [method] = outcome.methods
    return {
        "rule": rule, "kernel": kernel, "seeds": list(seeds), "values": dict(method.values),
        "validation": method.score, "accuracy": [final_accuracy(run.folder) for run in outcome.runs],
    }  # fmt: skip


def final_accuracy(folder: Path) -> float:
    """The mean of a run's last evaluations, in per cent."""
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        values = [float(row["test_accuracy"]) for row in csv.DictReader(file) if row["test_accuracy"]]
    return 100 * fmean(values[-LAST:])


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A row a rule: what the winners are and what they come to."""
    rows = ["| judged by | step sizes | mean accuracy | by pair and kernel | worst seed | by kernel alone |"]
    rows.append("|---|--:|--:|--:|--:|--:|")
    for rule in RULES:
        these = [line for line in lines if line["rule"] == rule]
        rates = [line["values"]["local.lr"] for line in these]
        means = {(line["kernel"], *line["seeds"]): fmean(line["accuracy"]) for line in these}
        moved = max(abs(means["compiled", *pair] - means["torch", *pair]) for pair in PAIRS)
        worst = min(min(line["accuracy"]) for line in these)
        rows.append(
            f"| {rule} | {min(rates):.3g} to {max(rates):.3g} | {fmean(means.values()):.1f} % | "
            f"{min(means.values()):.1f} to {max(means.values()):.1f} % | {worst:.1f} % | up to {moved:.1f} points |"
        )
    return "\n".join(rows)


def main() -> None:
    """Search what has no line yet, then print the table."""
    path = Path(sys.argv[1])
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(line["rule"], line["kernel"], *line["seeds"]) for line in lines}
    for kernel, seeds, rule in product(KERNELS, PAIRS, RULES):
        if (rule, kernel, *seeds) not in known:
            with tempfile.TemporaryDirectory() as folder:
                lines.append(search(rule, kernel, seeds, Path(folder) / "search"))
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
