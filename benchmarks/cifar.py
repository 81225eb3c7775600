"""The table of docs/tutorials/cifar.md from the folders of its commands: values by seed into benchmarks/cifar.json, the
table to the screen.

    python benchmarks/cifar.py FOLDER

FOLDER holds `batch-sgd`, `batch-adamw`, `batch-muon`, `group-sgd`, `group-adamw` and `group-muon`, as the page's
commands write them; where a cell was tuned again beyond the edge of its grid, `ext-batch-muon-fedavg` and so on are
read instead.
"""

import argparse
import csv
import itertools
import json
from pathlib import Path
from statistics import fmean, stdev

PLACE = Path(__file__).with_suffix(".json")
NORMS, STEPS, METHODS = ("batch", "group"), ("sgd", "adamw", "muon"), ("fedavg", "scaffold", "afedpd")
QUANTILE = 2.776  # of Student's t with four degrees of freedom, two-sided, 95 %


def cell(root: Path, norm: str, steps: str, method: str) -> dict[str, object]:
    again = root / f"ext-{norm}-{steps}-{method}"
    runs = (again if again.is_dir() else root / f"{norm}-{steps}") / "final" / method
    accuracy = {}
    for seed in range(1, 6):
        with (runs / f"seed-{seed}" / "metrics.csv").open(newline="") as file:
            accuracy[str(seed)] = float(list(csv.DictReader(file))[-1]["test_accuracy"])
    lr = json.loads((runs / "seed-1" / "run.json").read_text())["config"]["local"]["lr"]
    return {"norm": norm, "optimiser": steps, "method": method, "lr": lr, "accuracy": accuracy}


def shown(one: dict) -> str:
    values = [100 * value for value in one["accuracy"].values()]
    return f"{fmean(values):.1f} ± {QUANTILE * stdev(values) / len(values) ** 0.5:.1f}, {one['lr']:g}"


def main(root: Path) -> None:
    cells = [cell(root, *names) for names in itertools.product(NORMS, STEPS, METHODS)]
    PLACE.write_text("[\n" + ",\n".join(json.dumps(one) for one in cells) + "\n]\n")
    print("| normalisation | steps | FedAvg | SCAFFOLD | A-FedPD |\n|---|---|--:|--:|--:|")
    for row in zip(*[iter(cells)] * 3, strict=True):
        norm = "BatchNorm" if row[0]["norm"] == "batch" else "GroupNorm"
        steps = {"sgd": "plain", "adamw": "AdamW", "muon": "Muon"}[str(row[0]["optimiser"])]
        print(f"| {norm} | {steps} | {' | '.join(map(shown, row))} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    try:
        main(parser.parse_args().folder)
    except FileNotFoundError as missing:
        parser.error(f"{missing.filename} is missing; give the folder of the page's commands, with seeds 1 to 5")
