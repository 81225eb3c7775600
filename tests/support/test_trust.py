"""Folders of results that somebody else made: no name in one is imported unless the user names it or vouches for it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedconcord
from fedconcord.interface.cli import call
from fedconcord.support import imports, sums
from fedconcord.support.errors import UserError
from fedconcord_flower.app import PACKAGE

JOB = ["--data", "digits", "--model", "logreg", "--clients", "5", "--cohort", "2", "--rounds", "1"]
EVIL = """
from pathlib import Path
Path("marker").write_text("this code ran")
from torch import nn
def net(shape, classes):
    Path("called").write_text("this code ran")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a comparison, a search that was just begun, and inputs, all honest."""
    place = tmp_path_factory.mktemp("made")
    assert call(["run", "--method", "fedavg", *JOB, "--out", str(place / "run")]) == 0
    assert call(["compare", "--methods", "fedavg", *JOB, "--out", str(place / "compare")]) == 0
    (place / "tune").mkdir()
    config = json.loads((place / "compare" / "compare.json").read_text())["config"]
    asked = {"budget": 2, "search": [], "grid": None, "final_seeds": [2], "target": None}
    (place / "tune" / "tune.json").write_text(json.dumps({"format": 1, "settings": config, "asked": asked}))
    np.save(place / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with a module of the stranger's; it is the current directory."""
    monkeypatch.setattr(imports, "_NAMED", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copytree(made, tmp_path / "theirs")
    (tmp_path / "theirs" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path / "theirs")
    yield tmp_path / "theirs"
    sys.modules.pop("evil", None)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object], checksums: str) -> None:
    """Change a JSON file as an attacker does, who deletes the checksums or makes new ones."""
    said = json.loads(path.read_text())
    change(said)
    if checksums == "new":
        sums.write(path.parent, {path.name: json.dumps(said).encode()})
        return
    path.write_text(json.dumps(said))
    for below in path.parent.rglob("checksums*.json"):
        below.unlink()


ATTACKS = {  # command -> (the file, what is changed in it)
    "predict run x.npy": ("run/model.json", lambda said: said.update(model="evil:net")),
    "export run": ("run/model.json", lambda said: said.update(model="evil:net")),
    "run --resume run --rounds 2": ("run/run.json", lambda said: said["config"].update(model="evil:net")),
    "run --resume run --engine serial --rounds 2": (
        "run/run.json",
        lambda said: said["config"].update(track=["evil:net"]),
    ),
    "diagnose run --at 1": ("run/run.json", lambda said: said["config"].update(data="evil:net")),
    "compare --resume compare --rounds 2": (
        "compare/compare.json",
        lambda said: said["config"].update(methods=["evil:net"]),
    ),
    "compare --resume compare --rounds 2 --jobs 2": (
        "compare/compare.json",
        lambda said: said["config"].update(partition="evil:net"),
    ),
    "tune --resume tune --jobs 1": ("tune/tune.json", lambda said: said["settings"].update(loss="evil:net")),
}


@pytest.mark.parametrize("checksums", ["none", "new"])
@pytest.mark.parametrize("command", ATTACKS)
def test_no_module_of_a_folder_is_imported(
    place: Path, capsys: pytest.CaptureFixture[str], command: str, checksums: str
) -> None:
    file, change = ATTACKS[command]
    rewrite(place / file, change, checksums)
    assert call(command.split()) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert not (place / "marker").exists()
    assert len(said) == 1
    assert "evil:net" in said[0]
    assert "--trust" in said[0]


def test_no_module_of_a_trials_folder_is_imported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor by processes that a trial starts: the job of its last start is read before there are any."""
    app = place / "sites.flower" / "1" / "app" / PACKAGE
    app.mkdir(parents=True)
    (app / "job.toml").write_text('data = "digits"\nmodel = "evil:net"\n')
    (place / "sites").mkdir()
    assert call(["flower", "try", "--resume", "sites"]) == 2
    said = capsys.readouterr().err
    assert not (place / "marker").exists()
    assert "evil:net" in said
    assert "--trust" in said


def test_a_command_of_the_standard_library_is_not_called(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = "subprocess:Popen(['touch', 'marker'])"
    rewrite(place / "run" / "model.json", lambda said: said.update(model=shell), "none")
    assert call(["predict", "run", "x.npy"]) == 2
    assert "subprocess:Popen" in capsys.readouterr().err
    assert not (place / "marker").exists()


def test_trust_follows_the_names_of_that_folder_alone(place: Path) -> None:
    for run in ("run", "compare/fedavg/seed-0"):
        rewrite(place / run / "model.json", lambda said: said.update(model="evil:net"), "none")
    imports.trust("other:net")
    with pytest.raises(UserError, match="--trust"):
        fedconcord.predict("run", "x.npy")
    assert not (place / "marker").exists()
    fedconcord.predict("run", "x.npy", trust=True)
    assert (place / "called").exists()


def test_trust_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "--method", "fedavg", *JOB, "--trust"]) == 2
    assert "--resume" in capsys.readouterr().err


OWN = """
from torch import nn
from fedconcord.method.algorithms.fedavg import fedavg as mine
class Net(nn.Sequential):
    def __init__(self, shape, classes, width: int = 4):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command in a folder with a module of one's own; each call forgets what the last one named."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodule.py").write_text(OWN)

    def command(*arguments: str) -> int:
        monkeypatch.setattr(imports, "_NAMED", set())
        return call(arguments)

    yield command
    sys.modules.pop("mymodule", None)


def test_a_model_of_ones_own_is_named_again_or_trusted(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    model = "mymodule:Net(width=3)"
    job = [option if option != "logreg" else model for option in JOB]
    assert own("run", "--method", "fedavg", *job, "--out", "o") == 0
    capsys.readouterr()
    assert own("run", "--resume", "o", "--rounds", "2") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "mymodule:Net" in said
    assert own("run", "--resume", "o", "--rounds", "2", "--model", model) == 0
    assert own("run", "--resume", "o", "--rounds", "3", "--model", "mymodule:Net(width=4)") == 2
    assert "cannot change" in capsys.readouterr().err
    assert own("run", "--resume", "o", "--rounds", "3", "--trust") == 0
    assert own("diagnose", "o", "--at", "1", "--model", model) == 0


@pytest.mark.slow
def test_a_method_of_ones_own_goes_on_in_workers(own: Callable[..., int]) -> None:
    job = ["--methods", "fedavg,mymodule:mine(label=mine)", *JOB, "--jobs", "2", "--out", "o"]
    assert own("compare", *job) == 0
    assert own("compare", "--resume", "o", "--rounds", "2") == 2
    assert own("compare", "--resume", "o", "--rounds", "2", "--methods", "mymodule:mine(label=mine)") == 0


def test_the_current_directory_is_not_in_front(tmp_path: Path) -> None:
    for name in ("torch", "typer", "rich"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    path = {"PYTHONPATH": str(Path(fedconcord.__file__).parents[1])}
    line = [sys.executable, "-m", "fedconcord", "--version"]
    done = subprocess.run(line, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "marker").exists()
