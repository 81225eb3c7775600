"""docs/own-data.md runs as it stands, and a second package brings a model and a metric of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, command, does, prepare, steps
from tiers import tiers

PAGE = ROOT / "docs" / "own-data.md"


@pytest.mark.slow
def test_the_page_says_what_happens(tmp_path: Path) -> None:
    prepare(tmp_path)
    done = [(step.said, does(step, tmp_path)) for step in steps(PAGE)]
    assert [said for said, _ in done if said is not None] == [found for said, found in done if said is not None]
    assert len(done) == 9  # three modules and six commands
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[0] == "row,site,progression,unseen"
    assert len(lines) == 443
    assert 25 < sum(float(line.split(",")[2]) for line in lines[1:]) / 442 < 346  # in the label's own unit


def test_the_tables_are_what_their_script_writes(tmp_path: Path) -> None:
    for script in ("make_tables.py", "make_hospitals.py"):
        subprocess.run([sys.executable, str(ROOT / "examples" / script), str(tmp_path)], check=True)
    written = sorted(tmp_path.glob("*.csv"))
    assert [path.name for path in written] == ["cancer.csv", "diabetes.csv", "diabetes_labels.csv", "hospitals.csv"]
    for path in written:
        assert path.read_text() == (ROOT / "examples" / path.name).read_text()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A second package, where Python finds it, and data from a callable."""
    folder = tmp_path / "site" / "theirs"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "def data(folder, seed, rows=120):\n"
        "    gen = np.random.default_rng(3)\n"
        "    x = gen.normal(size=(rows, 3))\n"
        "    return {'x': x, 'y': x @ [1.0, -2.0, 0.5] + 7, 'client': np.arange(rows) % 3}\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes, hidden=4):\n"
        "        super().__init__()\n"
        "        self.first, self.last = nn.Linear(shape[0], hidden), nn.Linear(hidden, classes)\n"
        "    def forward(self, x):\n"
        "        return self.last(self.first(x).tanh())\n"
        "def worst(outputs, targets):\n"
        "    return (outputs - targets).abs().max()\n"
        "worst.higher_is_better = False\n"
        "def flat(shape, classes):\n    return nn.Linear(shape[0], classes + 1)\n"
        "def number(shape, classes):\n    return 3\n"
        "def broken(shape, classes):\n    raise KeyError('width')\n"
        "def exits(shape, classes):\n    raise SystemExit(3)\n"
        "def lazy(shape, classes):\n    return nn.LazyLinear(classes)\n"
    )
    return tmp_path / "site"


@pytest.mark.slow
def test_a_second_package_brings_data_model_and_metric(package: Path, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    asked = ["--data", "theirs.parts:data(rows=90)", "--model", "theirs.parts:Net(hidden=6)", "--rounds", "3"]
    asked += ["--set", "metrics=theirs.parts:worst,r2", "--lr", "0.05", "--out", "out"]
    done = command(tmp_path, "compare", "--methods", "fedavg,scaffold", "--jobs", "2", *asked, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "final test worst" in done.stdout
    assert "Target: test worst at or below" in done.stdout  # less is better, as the function says
    header, *rows = (tmp_path / "out" / "fedavg" / "seed-0" / "metrics.csv").read_text().splitlines()
    assert header.startswith("round,test_worst,test_r2,test_loss,train_loss,")
    assert float(rows[-1].split(",")[1]) < float(rows[0].split(",")[1])


WRONG = [
    ("theirs.parts:flat", "the model answers 2 samples with (2, 2), and the data need (2, 1): one row a sample"),
    ("theirs.parts:number", "model theirs.parts:number returned int; return a torch.nn.Module"),
    ("theirs.parts:broken", "model theirs.parts:broken failed for samples of shape (3,): KeyError: 'width'"),
    ("theirs.parts:exits", "model theirs.parts:exits failed for samples of shape (3,): SystemExit: 3"),
    ("theirs.parts:lazy", "model theirs.parts:lazy has lazy layers, whose sizes are not known yet; give them their"),
    ("theirs.parts:nett", "model theirs.parts:nett: theirs.parts has no 'nett' (did you mean 'Net'?)"),
    ("theirs.gone:net", "cannot import the model theirs.gone:net: ModuleNotFoundError: No module named"),
    ("theirs.parts:Net(width=2)", "model theirs.parts:Net has no parameter 'width'; it has hidden"),
]


@pytest.mark.parametrize(
    ("model", "said"),
    tiers(WRONG, quick=WRONG[:1]),
)
def test_a_wrong_model_of_ones_own_is_one_sentence(package: Path, tmp_path: Path, model: str, said: str) -> None:
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    done = command(tmp_path, "run", "--data", "theirs.parts:data", "--model", model, "--out", "o", PYTHONPATH=path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o").exists()
