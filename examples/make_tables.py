"""Writes the tables of docs/own-data.md from data that ship with scikit-learn.

The measurements are real; the sites are not: the data sets name none, so a rule divides the patients, which makes
the sites differ. cancer.csv: quartiles of the mean texture of the cells. diabetes.csv: the patient's age in bands. The
labels of diabetes_labels.csv are thresholds: progression above its median 140.5, mean blood pressure from 100 on,
blood sugar (s6) from 100 on; the columns that they are made from are left out.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes

BANDS = ((0, 36, "under-36"), (36, 46, "36-45"), (46, 54, "46-53"), (54, 61, "54-60"), (61, 200, "over-60"))


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main(folder: Path) -> None:
    cancer = load_breast_cancer()
    texture = cancer.data[:, 1]
    quartile = np.searchsorted(np.quantile(texture, [0.25, 0.5, 0.75]), texture)
    names = [name.removeprefix("mean ").replace(" ", "_") for name in cancer.feature_names[:10]]
    write(
        folder / "cancer.csv",
        ["site", *names, "diagnosis"],
        (
            [f"hospital-{'ABCD'[q]}", *row[:10], cancer.target_names[y]]
            for q, row, y in zip(quartile, cancer.data.tolist(), cancer.target, strict=True)
        ),
    )
    diabetes = load_diabetes(scaled=False)
    rows = list(zip(diabetes.data.tolist(), diabetes.target.tolist(), strict=True))
    site = [next(name for low, high, name in BANDS if low <= row[0] < high) for row, _ in rows]
    write(
        folder / "diabetes.csv",
        ["site", *diabetes.feature_names, "progression"],
        ([s, *row, y] for s, (row, y) in zip(site, rows, strict=True)),
    )
    kept = [k for k, name in enumerate(diabetes.feature_names) if name not in ("bp", "s6")]
    write(
        folder / "diabetes_labels.csv",
        ["site", *(diabetes.feature_names[k] for k in kept), "progressing", "hypertensive", "high_glucose"],
        (
            [s, *(row[k] for k in kept), int(y > 140.5), int(row[3] >= 100), int(row[9] >= 100)]
            for s, (row, y) in zip(site, rows, strict=True)
        ),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
