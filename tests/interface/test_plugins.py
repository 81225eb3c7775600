"""Methods and commands of other packages; the example of docs/own-method.md is one, in a process of its own."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedconcord.interface.cli import base as commands
from fedconcord.interface.cli import call
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.plugins import available
from fedconcord.support.errors import UserError
from fedconcord.testing import CheckFailedError, check_algorithm

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"

Install = Callable[..., Path]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """(package, entry points, module=source ...) -> the folder, on this process's path and with nothing imported."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    written: list[str] = []
    available.cache_clear()

    def installer(package: str, entries: dict[str, str], group: str = "fedconcord.methods", /, **modules: str) -> Path:
        """What an installer leaves behind: modules and a .dist-info folder with the entry points."""
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}\n" for name, target in entries.items()]
        (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines))
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
        written.extend(modules)
        return site

    yield installer
    available.cache_clear()
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_example_is_a_plugin_that_passes_the_checks(install: Install) -> None:
    method, check, suite, *_ = blocks("python")
    assert len([line for line in method.splitlines() if line.strip()]) <= 30
    (project,) = blocks("toml")
    entries = tomllib.loads(project)["project"]["entry-points"]["fedconcord.methods"]
    site = install("fedmemory-dist", entries, fedmemory=method)
    tests = site / "test_own.py"
    tests.write_text(
        "from fedconcord.method.algorithms.plugins import available\nfedmemory = available()['fedmemory']\n"
        f"assert fedmemory.__module__ == 'fedmemory'\n{check}\n{suite}"
    )
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tests)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"^1\d passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_the_checks_find_a_broken_plugin(install: Install) -> None:
    broken = blocks("python")[0].replace("return done.x - x, Row(done.x)", "return done.x.sub_(x), Row(done.x)")
    assert "sub_" in broken
    install("theirs", {"theirs": "theirs:fedmemory"}, theirs=broken)
    with pytest.raises(CheckFailedError, match="'mutation': expected inputs of finish as they were given") as failed:
        check_algorithm(available()["theirs"])
    assert failed.value.check == "mutation"


def test_own_methods_come_first(install: Install) -> None:
    install("theirs", {"theirs": "theirs:fedmemory"}, theirs=blocks("python")[0])
    found = available()
    assert list(found) == [*METHODS, "theirs"]
    assert len(found) == len(METHODS) + 1
    assert all(found[name] is METHODS[name] for name in METHODS)


@pytest.mark.parametrize(
    ("name", "target", "source", "said"),
    [
        (
            "x",
            "m:gone",
            "",
            "cannot load the method 'x' of package theirs (entry point m:gone): AttributeError: module",
        ),
        ("x", "m:f", "import nonsense_module", "ModuleNotFoundError: No module named 'nonsense_module'; repair or"),
        ("x", "m:f", "def f(:\n", "SyntaxError: "),
        ("x", "m:f", "raise ValueError('two\\nlines')", "ValueError: two lines; repair or uninstall that package"),
        ("x", "m:f", "f = 3", "is int, not a function that makes an Algorithm; repair or uninstall that package"),
        ("fedavg", "m:f", "", "package theirs registers a method 'fedavg', a name that fedconcord itself has already"),
        ("a-b", "m:f", "", "package theirs registers a method under the name 'a-b', which is no identifier"),
    ],
)
def test_a_wrong_plugin_is_one_sentence(install: Install, name: str, target: str, source: str, said: str) -> None:
    install("theirs", {name: target}, m=source)
    with pytest.raises(UserError) as error:
        available()[name]
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "theirs" in str(error.value)


def test_a_broken_plugin_harms_only_its_users(install: Install) -> None:
    install("theirs", {"theirs": "gone:f"})
    assert "theirs" in available()
    assert "fedavg" in available()
    assert "unknown" not in available()
    assert available()["fedavg"]().weights == "uniform"


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("first", {"same": "m:f"})
    install("second", {"same": "m:f"})
    with pytest.raises(UserError, match="registers a method 'same', a name that package") as error:
        available()
    assert "first" in str(error.value)
    assert "second" in str(error.value)


# -- commands ------------------------------------------------------------------------------------------------------

COMMAND = """
import typer
app = typer.Typer(add_completion=False, rich_markup_mode=None)

@app.command()
def greet(name: str) -> None:
    "Say hello."
    print(f"hello {name}")
"""


@pytest.fixture
def anew() -> Iterator[None]:
    """Entry points are looked for again."""
    commands.added.cache_clear()
    yield
    commands.added.cache_clear()


@pytest.mark.usefixtures("anew")
def test_another_package_adds_a_command(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("polite-dist", {"greet": "polite:app"}, "fedconcord.commands", polite=COMMAND)
    assert call(["--help"]) == 0
    assert re.search(r"^  greet +Say hello\.$", capsys.readouterr().out, re.MULTILINE)
    assert call(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert call(["gret"]) == 2
    assert "did you mean 'greet'?" in capsys.readouterr().err


@pytest.mark.usefixtures("anew")
def test_a_broken_command_leaves_the_others_and_says_so(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("rude-dist", {"greet": "rude:app", "run": "rude:app"}, "fedconcord.commands", rude="1 / 0")
    assert call(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  greet +Not available", shown, re.MULTILINE)
    assert re.search(r"^  run +Train one method\.$", shown, re.MULTILINE)  # a name that is ours stays ours
    assert call(["greet", "you"]) == 2
    assert "cannot load 'greet' of package rude-dist (entry point rude:app): ZeroDivision" in capsys.readouterr().err
