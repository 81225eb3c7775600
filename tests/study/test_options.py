"""An option is stated once: the command, Python, settings files and lists follow the schema."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedconcord
import option_table as options
from fedconcord.interface import cli
from fedconcord.interface.cli import listing
from fedconcord.study.options.table import OPTIONS
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

SOURCE = Path(fedconcord.__file__).parent
NOT_RUN, NOT_COMPARE = ("methods", "seeds", "baselines"), ("method", "seed")


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command says, on a screen so wide that it breaks no line."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    assert cli.call(arguments) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_table_is_what_the_schema_says() -> None:
    assert options.TABLE.read_text() == options.source(), "run: python docs/generate/option_table.py"
    assert tuple(option for option, _ in options.options()) == OPTIONS
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names) > 30


@pytest.mark.parametrize(
    ("command", "call", "without"),
    [("run", fedconcord.run, NOT_RUN), ("compare", fedconcord.compare, NOT_COMPARE)],
)
def test_help_signature_and_docstring_have_every_option(
    command: str,
    call: Callable[..., Any],
    without: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = shown([command, "--help"], capsys, monkeypatch)
    parameters = inspect.signature(call).parameters
    for option in OPTIONS:
        flag = f"--{option.name.replace('_', '-')} {option.metavar} "
        assert (flag in text) == (option.name in parameters) == (option.name not in without), option.name
        if option.name in without:
            continue
        said = f"{option.meaning}{f' ({option.values})' if option.values else ''}. [{option.default}]"
        assert said[1:] in text.partition(flag)[2], option.name
        assert f"    {option.name}: {option.about}\n" in (call.__doc__ or "")
    assert next(iter(parameters)) == ("method" if command == "run" else "methods")


def test_commands_take_the_part_that_they_need(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flags(*command: str) -> set[str]:
        return set(re.findall(r"--([a-z-]+) [A-Z=]+ ", shown([*command, "--help"], capsys, monkeypatch)))

    def staged(*stages: str) -> set[str]:
        return {option.name.replace("_", "-") for option in OPTIONS if option.stage in stages}

    described, audited = flags("data", "describe"), flags("audit")
    assert described == staged("data") | {"out", "config", "set"}
    own = {"client", "round", "iterations", "optimiser", "attack-lr", "labels", "out", "config", "set"}
    assert audited == (staged("data", "job") - {"method", "seeds"}) | own


def test_every_option_is_a_key_of_files_and_of_the_list() -> None:
    rows = {key: (default, meaning) for key, default, _, meaning in listing._settings()}
    for option in OPTIONS:
        assert rows[option.key] == (option.default.replace("none", ""), option.meaning)
        assert from_nested({option.key: 1}, "test").values == {option.key: 1}


def test_types_are_those_of_the_schema() -> None:
    types = {option.name: kind for option, kind in options.options()}
    assert types["lr"] == "float | str | None"
    assert types["epochs"] == "int | str | None"
    assert types["batch_size"] == "int | str | None"
    assert types["data"] == "str | Path | object | None"
    assert types["seeds"] == "int | Sequence[int] | None"
    assert types["label_column"] == "str | Sequence[str] | None"
    metavars = {option.name: (option.metavar, option.literal) for option in OPTIONS}
    assert metavars["lr"] == ("LR", False)
    assert metavars["batch_size"] == ("N", False)
    assert metavars["seeds"] == ("LIST", True)
    assert metavars["engine"] == ("NAME", True)


@pytest.mark.parametrize(
    ("call", "argument", "said"),
    [
        (fedconcord.run, "momentm", "run has no argument 'momentm' (did you mean 'momentum'?)"),
        (fedconcord.run, "seeds", "run has no argument 'seeds' (did you mean 'seed'?)"),
        (fedconcord.compare, "seed", "compare has no argument 'seed' (did you mean 'seeds'?)"),
        (fedconcord.compare, "clip", "compare has no argument 'clip'; write settings={'local.clip': ...}"),
        (fedconcord.run, "validation", "run has no argument 'validation'; write settings={'validation': ...}"),
    ],
)
def test_an_argument_that_is_not_there_is_one_sentence(call: Callable[..., Any], argument: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        call(**{argument: 0.1})
    assert str(caught.value) == said


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["audit", "--help"]])
def test_help_reads_the_table_alone(arguments: list[str]) -> None:
    """Neither torch nor the schema, whose models would double the time of --help."""
    code = (
        f"import sys; from fedconcord.interface.cli import call; call({arguments}); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'fedconcord.study.settings')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


PLANTED = """
    warp: Annotated[float, Field(gt=0)] | None = key(None, stage="job", name="warp_factor")
    "how fast it goes"
"""
LOOKS = """
import option_table
option_table.main()
import inspect, fedconcord
from fedconcord.interface import cli
for call in (fedconcord.run, fedconcord.compare):
    print("signature", "warp_factor: float | None" in str(inspect.signature(call)))
    print("docstring", "warp_factor: How fast it goes (number > 0). [none]" in call.__doc__)
for command in ("run", "compare", "audit"):
    cli.call([command, "--help"])
from fedconcord.interface.cli import listing
listing._show_settings(listing._settings())
open("job.toml", "w").write("[local]\\nwarp = 2.5\\n")
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_file
from pathlib import Path
print("file", resolve_run(from_file(Path("job.toml"))).local.warp)
cli.call(["run", "--warp-factor", "-1"])
try:
    fedconcord.run(warp_factor=-1)
except fedconcord.UserError as error:
    print(error)
"""


def test_a_new_option_is_one_field_of_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the package with one more field and the table written anew; a process of its own imports it."""
    shutil.copytree(SOURCE, tmp_path / "fedconcord", ignore=shutil.ignore_patterns("__pycache__"))
    schema = tmp_path / "fedconcord" / "study" / "settings" / "settings.py"
    text = schema.read_text()
    assert "    step_schedule: " in text
    schema.write_text(text.replace("    step_schedule: ", f"{PLANTED}    step_schedule: ", 1))
    environment = {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(options.__file__).parent}",
        "XDG_CACHE_HOME": str(tmp_path),
        "COLUMNS": "200",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", LOOKS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("signature True") == done.stdout.count("docstring True") == 2
    assert len(re.findall(r"--warp-factor NUMBER +How fast it goes \(number > 0\)\. \[none\]", done.stdout)) == 3
    assert re.search(r"^ +local\.warp +how fast it goes \(number > 0\)$", done.stdout, re.MULTILINE)
    assert "file 2.5\n" in done.stdout
    wrong = "local.warp must be a number > 0 or none, given -1"
    assert done.stderr == f"error: {wrong} (--warp-factor)\n"
    assert done.stdout.endswith(f"{wrong} (argument)\n")
