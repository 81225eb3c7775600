"""The table of other packages: the page has what was measured, and two packages are judged again if installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedconcord_referee import spec
from pages import ROOT

VENVS = "FEDCONCORD_PEERS"  # folder of `benchmarks/judged.py --venvs`
SCRIPT = ROOT / "benchmarks" / "judged.py"


def load() -> Any:
    recipe = importlib.util.spec_from_file_location("judged_script", SCRIPT)
    assert recipe is not None
    assert recipe.loader is not None
    module = importlib.util.module_from_spec(recipe)
    sys.modules[recipe.name] = module
    recipe.loader.exec_module(module)
    return module


SCRIPT_OF = load()
ENTRIES = json.loads(SCRIPT_OF.RESULTS.read_text())


def test_every_cell_was_judged_and_the_page_has_its_verdict() -> None:
    assert [(one.package, one.name) for one in SCRIPT_OF.CELLS] == [(one["package"], one["cell"]) for one in ENTRIES]
    assert len(ENTRIES) > 30
    page = (ROOT / "docs" / "referee.md").read_text()
    between = page.split("<!-- table -->\n")[1].split("\n<!-- end of table -->")[0]
    assert between.splitlines() == SCRIPT_OF.table(ENTRIES)


@pytest.mark.parametrize("place", range(len(SCRIPT_OF.CELLS)), ids=[f"{c.package}:{c.name}" for c in SCRIPT_OF.CELLS])
def test_what_differs_says_how_and_agrees_when_that_is_changed(place: int) -> None:
    cell, entry = SCRIPT_OF.CELLS[place], ENTRIES[place]
    assert entry["method"] == cell.method
    assert bool(cell.remark) == (entry["kind"] != "equal")
    if entry["kind"] not in ("equal", "variant"):
        assert entry["repair"]["kind"] in ("equal", "variant")
        assert entry["repair"]["cell"] == cell.repair
    else:
        assert not cell.repair
    for kind in cell.kinds:
        spec.make(cell.method, kind)


def says(entry: dict[str, Any]) -> list[Any]:
    """An entry without its figures, which other processors round in other ways."""
    return [entry.get(key) for key in ("kind", "name", "logistic")]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["byzfl", "fluke-fl"])
def test_a_package_is_judged_again(package: str) -> None:
    """One cell that is equal and one that differs, with its repair."""
    venvs = Path(os.environ.get(VENVS, "/nowhere"))
    if not SCRIPT_OF.is_set_up(venvs, package):
        pytest.skip(f"{package} is not installed; python benchmarks/judged.py --venvs DIR, and {VENVS}=DIR")
    names = {"byzfl": ("Median", "Krum"), "fluke-fl": ("SCAFFOLD", "FedAVGM")}[package]
    for name in names:
        (cell,) = (one for one in SCRIPT_OF.CELLS if (one.package, one.name) == (package, name))
        (entry,) = (one for one in ENTRIES if (one["package"], one["cell"]) == (package, name))
        assert says(SCRIPT_OF.plain(SCRIPT_OF.judged(venvs, cell, name))) == says(entry)
        if cell.repair:
            assert says(SCRIPT_OF.plain(SCRIPT_OF.judged(venvs, cell, cell.repair))) == says(entry["repair"])


def test_what_pip_refuses_is_left_out_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-made environment does not count as set up, and is made anew; a whole one is left as it is."""
    answers = iter([0, 1, 0, 0])  # of venv and pip, twice
    commands: list[Any] = []

    def run(words: Any, check: bool) -> None:
        commands.append(words)
        (tmp_path / "byzfl").mkdir(exist_ok=True)
        if next(answers):
            raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(SCRIPT_OF.subprocess, "run", run)
    assert not SCRIPT_OF.set_up(tmp_path, "byzfl")
    assert "byzfl is left out: " in capsys.readouterr().err
    assert SCRIPT_OF.set_up(tmp_path, "byzfl")
    assert SCRIPT_OF.set_up(tmp_path, "byzfl")
    assert len(commands) == 4
    marker = SCRIPT_OF.marker_of(tmp_path, "byzfl")
    marker.write_text("another recipe")
    assert not SCRIPT_OF.is_set_up(tmp_path, "byzfl")
