"""Robust rules against attacks, on digits: the tables of docs/robust.md.

    python benchmarks/robust.py             # some minutes on two cores
    python benchmarks/robust.py --quick     # one seed, three rounds: whether it runs

A number is the mean of the final test accuracy, in percent, over the seeds; a run that diverged counts as chance, 10 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean

from fedconcord import advance, evaluate, settings, start
from fedconcord.basis.errors import UserError
from fedconcord.settings import from_nested, resolve_run

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
        job = settings.build(resolve_run(from_nested(JOB | given, "benchmark")))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, three rounds")
    quick = parser.parse_args().quick
    how = ([0], 3) if quick else ([0, 1, 2], 30)
    rules = RULES[:3] if quick else RULES
    table("IID", rules, [(a, [cell(r, a, "iid", *how) for r in rules]) for a in ATTACKS])
    table("no attack", rules, [(p, [cell(r, "none", p, *how) for r in rules]) for p in DIVISIONS])
    attacks = [(share, f"sign_flip({share},scale=5)") for share in SHARES]
    table("share, sign_flip", rules, [(f"{s:g}", [cell(r, a, "iid", *how) for r in rules]) for s, a in attacks])
    flips = "sign_flip(0.2,scale=5)"
    table(flips.replace(",", ", "), rules, [(p, [cell(r, flips, p, *how) for r in rules]) for p in DIVISIONS])


if __name__ == "__main__":
    main()
