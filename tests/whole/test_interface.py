"""What users can name, as it was recorded: public names and their parameters, commands and their options, settings,
and what stands in folders of results. `python tests/whole/test_interface.py` records it anew, which is a decision: a
name that goes or changes breaks somebody's script, and stands in the changelog.
"""

import csv
import inspect
import json
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

import fedconcord
from fedconcord.interface.cli import base
from fedconcord.interface.cli.main import app
from fedconcord.study.settings.sources import keys as setting_keys

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "interface.json"
JOB = {"data": "digits", "model": "logreg", "clients": 6, "cohort": 3, "rounds": 2, "eval_every": 1}


def names() -> dict[str, list[str]]:
    """Every public name, with its parameters in order, or its keys if it is a table of names."""
    public = {}
    for name in fedconcord.__all__:
        value = getattr(fedconcord, name)
        if isinstance(value, dict):
            public[name] = sorted(value)
        elif callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
            public[name] = list(inspect.signature(value).parameters)
        else:
            public[name] = []
    return public


def commands() -> dict[str, list[str]]:
    """Every command, with all ways to write its options and arguments; of the packages beside, those that
    pyproject.toml has, since an editable installation knows those of its own day."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][base.COMMANDS]
    declared = EntryPoints(EntryPoint(name, value, base.COMMANDS) for name, value in entries.items())
    with mock.patch.object(base, "added", return_value=declared):
        return below(typer.main.get_command(app), "fedconcord")


def below(command: Any, path: str) -> dict[str, list[str]]:
    """A command, and those in it."""
    found = {path: sorted(name for parameter in command.params for name in (parameter.opts or [parameter.name]))}
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            found |= below(command.get_command(context, name), f"{path} {name}")
    return found


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of nested tables; of a list those of its first entry."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from keys(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from keys(value[0], f"{path}[]")
    else:
        yield path


def folder(place: Path) -> dict[str, list[str]]:
    """Every file of a folder, with the keys of JSON and the column heads of CSV."""
    content = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_dir() or "figures/" in name:
            continue
        if path.suffix == ".json" and path.name != "checksums.json":
            content[name] = sorted(set(keys(json.loads(path.read_text()))))
        elif path.suffix == ".csv":
            with open(path, newline="") as file:
                content[name] = next(csv.reader(file))
        else:
            content[name] = []
    return content


def folders(place: Path) -> dict[str, dict[str, list[str]]]:
    fedconcord.run("scaffold", **JOB, seed=1, out=place / "run")  # type: ignore[arg-type]
    fedconcord.compare(["fedavg"], **JOB, seeds=[0], baselines=["local", "pooled"], out=place / "compare")  # type: ignore[arg-type]
    return {name: folder(place / name) for name in ("run", "compare")}


def settings() -> list[str]:
    """Every key of the settings, dotted."""
    return list(setting_keys())


def lines(value: Any) -> Any:
    """Lists of words as one string each, so that a record has a line a name."""
    return {key: lines(inner) for key, inner in value.items()} if isinstance(value, dict) else " ".join(value)


@pytest.mark.parametrize("part", ["names", "commands", "settings"])
def test_names_are_those_that_were_recorded(part: str) -> None:
    made = {"names": names, "commands": commands, "settings": settings}[part]()
    assert lines(made) == json.loads(RECORD.read_text())[part]


def test_folders_are_those_that_were_recorded(tmp_path: Path) -> None:
    assert lines(folders(tmp_path)) == json.loads(RECORD.read_text())["folders"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = {"names": names(), "commands": commands(), "settings": settings(), "folders": folders(Path(temporary))}
    RECORD.write_text(json.dumps(lines(made), indent=1) + "\n")
