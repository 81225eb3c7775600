"""A partition measured, from Python and by the command, against numbers worked out by hand."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.partitions.describe import describe, entropy, summary
from fedconcord.federation.partitions.mixtures import dirichlet
from fedconcord.federation.partitions.simple import iid
from fedconcord.insight.report.figures.heatmap import write_description
from fedconcord.interface.cli.main import call
from fedconcord.method.contract.rng import Purpose, generator


def made(y: np.ndarray, classes: int, **more: Any) -> Dataset:
    x = np.zeros((len(y), 1), np.float32)
    return Dataset("toy", x, y, x[:1], y[:1], classes)._replace(**more)


def test_by_hand() -> None:
    """Three clients of 4, 2 and 2 samples; two samples unused; p = (4, 3, 1) / 8."""
    y = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = describe(made(y, 3), [np.array([0, 1, 2, 4]), np.array([3, 7]), np.array([5, 6])])
    assert found.sizes.tolist() == [4, 2, 2]
    assert found.counts.tolist() == [[3, 1, 0], [1, 0, 1], [0, 2, 0]]
    assert (found.names, found.what, found.unused) == (["0", "1", "2"], "class", 2)
    assert found.entropy == pytest.approx([0.811278, 1.0, 0.0], abs=1e-6)
    assert found.distance == pytest.approx([0.25 + 0.125 + 0.125, 0.375 + 0.375, 0.5 + 0.625 + 0.125])
    said = dict(summary(found))
    assert said["clients"] == "3"
    assert said["samples"] == "8 (2 unused)"
    assert said["samples a client"] == "2 to 4, median 2, mean 2.667, stdev 1.155"
    assert said["classes a client"] == "1 to 2, median 2 of 3"
    assert said["distance to all (0 to 2)"] == "0.5 to 1.25, median 0.75, mean 0.833"


def test_entropy_and_distance_at_their_ends() -> None:
    assert entropy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])).tolist() == [0, 1, 0]
    y = np.repeat(np.arange(10), 1000)
    one_class = describe(made(y, 10), np.split(np.arange(10_000), 10))
    assert one_class.distance == pytest.approx(np.full(10, 1.8))
    assert one_class.entropy.tolist() == [0] * 10
    alike = describe(made(y, 10), [np.arange(k, 10_000, 10) for k in range(10)])
    assert alike.distance == pytest.approx(np.zeros(10), abs=1e-12)
    assert alike.entropy == pytest.approx(np.full(10, np.log2(10)))


def test_distance_grows_as_alpha_falls() -> None:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
    parts = [dirichlet(y, 50, generator(0, Purpose.PARTITION), alpha) for alpha in (100.0, 1.0, 0.1)]
    far = [describe(made(y, 10), part).distance.mean() for part in parts]
    assert far[0] < 0.4 < far[1] < 0.9 < far[2] < 1.8


def test_numbers_are_cut_at_deciles_in_their_own_unit() -> None:
    """Targets scaled by mean 100 and standard deviation 10; each tenth of the samples is a column."""
    y = np.linspace(-1, 1, 1000, dtype=np.float32)[:, None]
    found = describe(made(y, 1, target="number", unit=([100.0], [10.0])), [np.arange(500), np.arange(500, 1000)])
    assert (found.what, len(found.names)) == ("target", 10)
    assert found.names[0].startswith("90 to 9")
    assert found.names[9].endswith(" to 110")
    assert found.counts.tolist() == [[100] * 5 + [0] * 5, [0] * 5 + [100] * 5]
    few = describe(made(np.array([[1.0], [1.0], [1.0], [5.0]]), 1, target="number"), [np.arange(4)])
    assert few.names == ["1", "5"]
    assert few.counts.tolist() == [[3, 1]]


def test_labels_that_hold_together() -> None:
    y = np.array([[1, 1], [0, 0], [0, 1], [0, 0]], np.float32)
    found = describe(
        made(y, 2, target="labels", output_names=["a", "b"]), [np.array([0]), np.array([2]), np.array([1, 3])]
    )
    assert (found.what, found.names, found.sizes.tolist()) == ("label", ["a", "b"], [1, 1, 2])
    assert found.counts.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert found.entropy.tolist() == [1, 0, 0]
    assert np.isfinite(found.distance).all()


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (7, 100), (1500, 10)])
def test_files(clients: int, classes: int, tmp_path: Path) -> None:
    """From one client to more than a thousand; the table has every client, the same input the same bytes."""
    y = np.arange(clients * 20) % classes
    found = describe(made(y, classes), iid(y, clients, generator(0, Purpose.PARTITION)))
    page = write_description(tmp_path / "a", found, "toy")
    with open(tmp_path / "a" / "clients.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0][:5] == ["client", "samples", "entropy", "distance", "class 0"]
    assert len(rows) == clients + 1
    for i in (0, clients - 1):
        assert [int(v) for v in rows[1 + i][4:]] == found.counts[i].tolist()
        assert float(rows[1 + i][3]) == found.distance[i]
    assert "![" in page.read_text()
    assert (tmp_path / "a" / "partition.png").stat().st_size < 400_000
    write_description(tmp_path / "b", found, "toy")
    for name in ("partition.png", "partition.svg", "partition.pdf", "clients.csv", "partition.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_picture_shows_who_holds_what(tmp_path: Path) -> None:
    """Pixels of 1,500 clients of one class each: dark on the diagonal of the sorted clients, pale beside it."""
    from PIL import Image

    y = np.repeat(np.arange(10), 300)
    write_description(tmp_path, describe(made(y, 10), np.split(np.arange(3000), 1500)), "toy")
    grey = np.asarray(Image.open(tmp_path / "partition.png").convert("L"), float)
    tall, wide = grey.shape
    dark = grey[int(0.35 * tall) : int(0.9 * tall), int(0.1 * wide) : int(0.9 * wide)] < 90
    left, right = dark[:, : dark.shape[1] // 4], dark[:, -dark.shape[1] // 4 :]
    assert 0.05 < dark.mean() < 0.15  # a tenth of the cells
    assert np.flatnonzero(left.any(axis=1)).mean() < np.flatnonzero(right.any(axis=1)).mean() - 0.4 * len(dark)


def test_the_command(tmp_path: Path) -> None:
    given = {"data": "digits", "partition": "shards(2)", "clients": "20", "seed": "3", "set": "skew=rotate(90)"}
    options = [part for key, value in given.items() for part in (f"--{key}", value)]
    done = subprocess.run(
        [sys.executable, "-m", "fedconcord", "data", "describe", *options, "--out", str(tmp_path / "d")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "digits, shards(2), 20 clients, seed 3"
    assert lines[-1] == f"figure and tables: {tmp_path / 'd' / 'partition.md'}"
    assert "  samples                   1437" in lines
    assert "  samples a client          71 to 72, median 72, mean 71.85, stdev 0.3663" in lines
    assert {path.name for path in (tmp_path / "d").iterdir()} == {
        *("partition.md", "partition.png", "partition.svg", "partition.pdf", "clients.csv")
    }


def test_the_command_draws_what_a_run_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--data", "digits", "--partition", "dirichlet(0.3)", "--clients", "12", "--seed", "4"]
    assert call(["data", "describe", *common, "--out", str(tmp_path / "d")]) == 0
    whole = [*common, "--set", "validation=none"]  # else a share of each client's samples is set apart
    assert call(["run", *whole, "--rounds", "1", "--model", "logreg", "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert call(["data", "describe", "--data", "digits", "--out", str(tmp_path / "d")]) == 2  # what is there stays
    assert "d is there and is not empty; give another folder as out" in capsys.readouterr().err
    with open(tmp_path / "d" / "clients.csv") as one, open(tmp_path / "r" / "partition.csv") as other:
        ours, theirs = list(csv.reader(one)), list(csv.reader(other))
    assert [row[4:] for row in ours[1:]] == [row[-10:] for row in theirs[1:]]


def test_a_table_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A regression target, clients by a column and by a rule that needs no classes."""
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{100 + 10 * a:.3f},shop{i % 4}" for i, a in enumerate(rng.standard_normal(200))]
    (tmp_path / "t.csv").write_text("\n".join(["a,price,shop", *lines]))
    common = ["data", "describe", "--data", str(tmp_path / "t.csv"), "--label-column", "price"]
    common += ["--target-kind", "number", "--client-column", "shop"]
    assert call([*common, "--out", str(tmp_path / "d")]) == 0
    said = capsys.readouterr()
    assert "t.csv, natural, 4 clients, seed 0\n" in said.out
    assert "spans of the target a client" in said.out
    assert call([*common, "--partition", "quantity", "--clients", "9", "--out", str(tmp_path / "e")]) == 0
    assert "t.csv, quantity, 9 clients, seed 0\n" in capsys.readouterr().out
    header = (tmp_path / "e" / "clients.csv").read_text().splitlines()[0].split(",")
    low = float(header[4].removeprefix("target ").split(" to ")[0])
    assert 60 < low < 90  # in the price's own unit


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "quadratics"], "data quadratics brings its own clients, whose samples are not divided"),
        (["--data", "digits", "--partition", "natural"], "does not come in clients"),
        (["--data", "digits", "--partition", "dirichlet(0)"], "alpha must be a number > 0, given 0"),
        (["--data", "digits", "--clients", "many"], "clients must be an integer >= 1, given 'many'"),
        (["--data", "digits", "--clients", "5000"], "cannot divide 1437 samples over 5000 clients"),
        (["--dat", "digits"], "--data"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", "describe", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err
