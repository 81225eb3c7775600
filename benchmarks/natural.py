"""Does federating pay where nature made the clients? Every table of `fedconcord_natural`, every method at its best.

    python benchmarks/natural.py OUT                 # hours; what is there already goes on
    python benchmarks/natural.py OUT exam,hsb82      # some of the tables
    python benchmarks/natural.py --page              # the table of docs/worth.md, of docs/arena/worth.json

Methods, clients alone and all rows in one place are tuned with equal budgets on seeds 0 and 1, judged on rows that
clients set apart, and meet with five new seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconcord.insight.report.worth import Worth, worth
from fedconcord.study.statistics.load import load_runs
from fedconcord.study.statistics.summary import summarise

VALUES = Path(__file__).parents[1] / "docs" / "arena" / "worth.json"
METHODS = ("fedavg", "scaffold", "ditto")
JOB = (
    *("--methods", ",".join(METHODS), "--baselines", "local,pooled", "--model", "logreg", "--rounds", "100"),
    *("--budget", "8", "--final-seeds", "2,3,4,5,6", "--set", "validation=0.2", "--set", "eval.every=10"),
    *("--search", "local.lr=log(0.001,1)"),
)
COHORTS = {  # a tenth of the clients, or about ten of them where they are few
    "exam": 10, "contraception": 10, "hsb82": 16, "randhie": 6, "loans": 10, "stops": 10, "star": 10,
    "movielens": 67, "chem97": 241, "insteval": 297, "flights": 8,
}  # fmt: skip
MORE = {"flights": ("--set", "local.steps=100")}  # in place of an epoch, which is 1,000 and more there


def command(name: str, out: Path) -> list[str]:
    """The command of a table."""
    data, cohort = f"fedconcord_natural:{name}", str(COHORTS[name])
    return [
        "fedconcord",
        "tune",
        "--data",
        data,
        "--cohort",
        cohort,
        *JOB,
        *MORE.get(name, ()),
        "--jobs",
        "1",
        "--out",
        str(out / name),
    ]


def measured(folder: Path) -> dict[str, Any]:
    """What came of a table."""
    found = worth(summarise(load_runs([folder / "final"])))
    assert found is not None
    assert found.alone is not None
    assert found.pooled is not None
    percent = 100 if found.metric.percent else 1
    return {
        "metric": found.metric.column,
        "clients": len(found.rows),
        "alone": percent * found.alone.mean,
        "pooled": percent * found.pooled.mean,
        "methods": {m.name: method(found, k, percent) for k, m in enumerate(found.methods)},
    }


def method(found: Worth, place: int, percent: int) -> dict[str, Any]:
    """A method beside being alone: its mean, gain with interval, and the share of clients and seeds that gain."""
    gain, ends = found.gains[place], found.gains[place].mean
    return {
        "mean": percent * found.methods[place].mean,
        "gain": [percent * one for one in (ends.mean, ends.low, ends.high)],
        "better": gain.more / gain.units,
    }


def verdict(gain: Sequence[float]) -> str:
    """Of a mean gain with its interval."""
    return "yes" if gain[1] > 0 else "no" if gain[2] < 0 else "open"


def table(values: Mapping[str, Mapping[str, Any]]) -> str:
    """A row a table, in Markdown."""
    rows = [
        "| | clients | judged by | alone | "
        + " | ".join(METHODS)
        + " | pooled | best | gain over alone | clients better | pays |",
        "|---|--:|---|--:|" + "--:|" * len(METHODS) + "--:|---|---|--:|---|",
    ]
    for name, one in values.items():
        higher = one["metric"] == "accuracy"
        best = max(METHODS, key=lambda each: (1 if higher else -1) * one["methods"][each]["mean"])
        won = one["methods"][best]
        gain, low, high = (f"{number:.3g}" for number in won["gain"])
        cells = [f"{one['methods'][each]['mean']:.4g}" for each in METHODS]
        judged = "accuracy, %" if higher else "RMSE"
        rows.append(
            f"| `{name}` | {one['clients']:,} | {judged} | {one['alone']:.4g} | {' | '.join(cells)} | "
            f"{one['pooled']:.4g} | {best} | {gain} ({low} to {high}) | {100 * won['better']:.0f} % | "
            f"{verdict(won['gain'])} |"
        )
    return "\n".join(rows)


def values_by_table() -> dict[str, Any]:
    """The values that are there, by table."""
    return json.loads(VALUES.read_text()) if VALUES.exists() else {}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] != "--page":
        out = Path(sys.argv[1])
        names = sys.argv[2].split(",") if len(sys.argv) > 2 else [*COHORTS]
        if unknown := set(names) - COHORTS.keys():
            sys.exit(f"there is no table {min(unknown)!r}; give some of {', '.join(COHORTS)}")
        for name in names:
            if not (out / name / "report.html").exists():
                more = ["--resume", str(out / name)] if (out / name / "tune.json").exists() else []
                line = ["fedconcord", "tune", *more] if more else command(name, out)
                subprocess.run([sys.executable, "-m", *line], check=True)
            values = {**values_by_table(), name: measured(out / name)}  # another process may have measured meanwhile
            VALUES.write_text(json.dumps({key: values[key] for key in COHORTS if key in values}, indent=1) + "\n")
    print(table(values_by_table()))
