"""What differential privacy costs, on digits: the figure of docs/privacy.md, and its table.

    python benchmarks/privacy.py --figure docs/privacy.png     # some minutes on two cores
    python benchmarks/privacy.py --quick                       # one seed, one budget, three rounds: whether it runs

Final test accuracy in percent, mean [lowest, highest] of three seeds, by the epsilon that all rounds together spend.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedconcord import advance, evaluate, start
from fedconcord.insight.report.figures.style import MUTED, look, panel, styled, to_files
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files

JOB = {
    "data": "digits",
    "model": "logreg",
    "clients": 200,
    "cohort": 100,
    "sampling": "poisson",
    "partition": "dirichlet(1.0)",
    "local": {"lr": 0.5},
}
LINES = {
    "fedavg": {"method": "fedavg"},
    "fedavg, server momentum 0.5": {"method": "fedavg(server=momentum(0.5))"},
    "scaffold": {"method": "scaffold"},
    "fedavg, local noise": {"method": "fedavg(privacy.kind=local)"},
}
BUDGETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

Cell = Sequence[float]
"""Accuracy in percent of each seed."""


def accuracy(given: Mapping[str, object], seeds: Sequence[int], rounds: int) -> Cell:
    """The final test accuracy in percent of each seed."""
    found = []
    for seed in seeds:
        job = build(resolve_run(from_nested(JOB | given | {"rounds": rounds, "seed": seed}, "benchmark")))
        state = start(job)
        for _ in range(rounds):
            state = advance(job, state)
        found.append(100 * evaluate(job, state)["test_accuracy"])
    return found


def drawn(plain: Cell, lines: Mapping[str, Mapping[float, Cell]]) -> Mapping[str, bytes]:
    """Accuracy against epsilon, a line a method with the range of its seeds, by suffix of the file."""
    with styled():
        fig, ax = panel(7.2, 3.4)
        for k, (name, found) in enumerate(lines.items()):
            colour, dash, marker = look(k)
            means = [fmean(cell) for cell in found.values()]
            ax.plot(list(found), means, color=colour, linestyle=dash, marker=marker, markersize=4, label=name)
            ax.fill_between(
                list(found), [*map(min, found.values())], [*map(max, found.values())], color=colour, alpha=0.15
            )
        ax.axhline(fmean(plain), color=MUTED, linewidth=0.9, linestyle=":", label="fedavg, no privacy")
        ax.set_xscale("log", base=2)
        ax.set_xticks(BUDGETS, [f"{budget:g}" for budget in BUDGETS])
        ax.set_xlabel("epsilon at delta 1e-5, of all rounds")
        ax.set_ylabel("test accuracy (%)")
        ax.set_ylim(0, 100)
        fig.legend(loc="outside right upper", fontsize=7.5, handlelength=3)
        return to_files(fig)


def text(cell: Cell) -> str:
    """A cell of the table."""
    return f"{fmean(cell):.1f} [{min(cell):.1f}, {max(cell):.1f}]"


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, one budget, three rounds")
    parser.add_argument("--figure", type=Path, help="PNG of the accuracy by epsilon")
    given = parser.parse_args()
    seeds, rounds, budgets = ([0], 3, BUDGETS[-1:]) if given.quick else ([0, 1, 2], 30, BUDGETS)
    plain = accuracy(LINES["fedavg"], seeds, rounds)
    print(f"fedavg without privacy: {text(plain)}\n")
    print(f"| accuracy by epsilon | {' | '.join(f'{e:g}' for e in budgets)} |\n|{'---|' * (len(budgets) + 1)}")
    lines: dict[str, dict[float, Cell]] = {}
    for name, method in LINES.items():
        lines[name] = {
            epsilon: accuracy(method | {"privacy": {"clip": 1.0, "epsilon": epsilon}}, seeds, rounds)
            for epsilon in budgets
        }
        print(f"| {name} | {' | '.join(map(text, lines[name].values()))} |", flush=True)
    if given.figure is not None:
        files.write_bytes(given.figure, drawn(plain, lines)["png"])


if __name__ == "__main__":
    main()
