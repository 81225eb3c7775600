"""Robust rules against attacks, on digits: the tables and the figure of docs/robust.md.

    python benchmarks/robust.py             # some minutes on two cores
    python benchmarks/robust.py --quick     # one seed, three rounds: whether it runs
    python benchmarks/robust.py --figure docs/robust.png     # accuracy by the share of attackers alone, drawn

A number is the mean of the final test accuracy, in percent, over the seeds; a run that diverged counts as chance, 10 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedconcord import advance, evaluate, start
from fedconcord.insight.report.figures.style import look, panel, styled, to_files
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files
from fedconcord.support.errors import UserError

JOB = {
    "data": "digits",
    "model": "logreg",
    "clients": 20,
    "cohort": 20,
    "validation": "none",
    "local": {"lr": 0.1, "epochs": 2},
}
RULES = ("mean", "trimmed_mean(0.2)", "median", "geometric_median", "krum(4)", "multi_krum(4)", "norm_clip(0.5)")
RULES += ("centred_clip(0.5)",)
ATTACKS = ("none", "sign_flip(0.2,scale=5)", "same_value(0.2)", "gaussian(0.2)", "label_flip(0.2)", "ipm(0.2,scale=2)")
ATTACKS += ("alie(0.2,deviations=1.5)", "nan(0.2)")
DIVISIONS = ("iid", "dirichlet(0.5)", "dirichlet(0.1)")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def accuracy(rule: str, attack: str, partition: str, seeds: Sequence[int], rounds: int) -> float:
    """The mean final test accuracy in percent."""
    found = []
    for seed in seeds:
        given = {"method": f"fedavg(aggregate={rule})", "hostile": attack, "partition": partition, "seed": seed}
        job = build(resolve_run(from_nested(JOB | given, "benchmark")))
        state = start(job)
        for _ in range(rounds):
            state = advance(job, state)
        measured = evaluate(job, state)
        finite = measured["test_loss"] == measured["test_loss"]
        found.append(100 * measured["test_accuracy"] if finite else 10.0)
    return fmean(found)


def cell(rule: str, attack: str, partition: str, seeds: Sequence[int], rounds: int) -> str:
    """A cell of a table."""
    try:
        return f"{accuracy(rule, attack, partition, seeds, rounds):.1f}"
    except UserError:
        return "refused"


def table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """A table in Markdown."""
    print(f"| {title} | {' | '.join(f'`{name}`' for name in columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, cells in rows:
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    print()


def shares(rules: Sequence[str], seeds: Sequence[int], rounds: int) -> list[tuple[str, Sequence[str]]]:
    """The rows of the table by share of clients whose sign is flipped."""
    attacks = [(share, f"sign_flip({share},scale=5)") for share in SHARES]
    return [(f"{s:g}", [cell(r, a, "iid", seeds, rounds) for r in rules]) for s, a in attacks]


def drawn(rules: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Mapping[str, bytes]:
    """Accuracy against the share of attackers, a line a rule, by suffix of the file."""
    with styled():
        fig, ax = panel(7.2, 3.4)
        for k, rule in enumerate(rules):
            colour, dash, marker = look(k)
            kept = [(100 * float(share), float(cells[k])) for share, cells in rows if cells[k] != "refused"]
            ax.plot(*zip(*kept, strict=True), color=colour, linestyle=dash, marker=marker, markersize=4, label=rule)
        ax.set_xlabel("hostile clients (%), sign_flip with scale 5")
        ax.set_ylabel("test accuracy (%)")
        ax.set_ylim(0, 100)
        fig.legend(loc="outside right upper", fontsize=7.5, handlelength=3)
        return to_files(fig)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, three rounds")
    parser.add_argument("--figure", type=Path, help="PNG of the accuracy by share; no other table is measured")
    given = parser.parse_args()
    quick = given.quick
    how = ([0], 3) if quick else ([0, 1, 2], 30)
    rules = RULES[:3] if quick else RULES
    if given.figure is not None:
        rows = shares(rules, *how)
        table("share, sign_flip", rules, rows)
        files.write_bytes(given.figure, drawn(rules, rows)["png"])
        return
    table("IID", rules, [(a, [cell(r, a, "iid", *how) for r in rules]) for a in ATTACKS])
    table("no attack", rules, [(p, [cell(r, "none", p, *how) for r in rules]) for p in DIVISIONS])
    table("share, sign_flip", rules, shares(rules, *how))
    flips = "sign_flip(0.2,scale=5)"
    table(flips.replace(",", ", "), rules, [(p, [cell(r, flips, p, *how) for r in rules]) for p in DIVISIONS])


if __name__ == "__main__":
    main()
