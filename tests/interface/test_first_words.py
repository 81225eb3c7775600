"""What a newcomer reads: the command without arguments, what commands say before they start, README.txt of a folder."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from fedconcord.execution.run import readme
from fedconcord.interface import cli
from fedconcord.interface.cli import progress
from fedconcord.interface.cli.base import app
from pages import ROOT

CANCER = str(ROOT / "examples" / "cancer.csv")
TABLE = ["--data", CANCER, "--label-column", "diagnosis", "--client-column", "site"]
JOB = [*TABLE, "--model", "logreg", "--rounds", "4"]
OFFERED = re.compile(r"^  (fedconcord .*?)(?:  |$)", re.MULTILINE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a comparison and a search, as their commands leave them."""
    folder = tmp_path_factory.mktemp("made")
    two = ["--methods", "fedavg,scaffold"]
    assert cli.call(["run", *JOB, "--out", str(folder / "run")]) == 0
    assert cli.call(["compare", *JOB, *two, "--out", str(folder / "comparison")]) == 0
    search = ["tune", *JOB, *two, "--budget", "1", "--jobs", "1", "--seeds", "0", "--final-seeds", "1"]
    assert cli.call([*search, "--out", str(folder / "search")]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "count"), [("run", 5), ("comparison", 2), ("comparison/scaffold/seed-0", 5), ("search", 3)]
)
def test_every_command_that_a_folder_offers_goes_on_from_it(
    made: Path, what: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offered = OFFERED.findall((made / what / "README.txt").read_text())
    assert len(offered) == count
    for line in offered:
        arguments = shlex.split(line.replace("DIR", str(made / what)).replace("INPUT", CANCER).replace("N,N", "7"))
        assert cli.call(arguments[1:]) == 0, line


@pytest.mark.slow  # for what it needs made
def test_a_folder_says_so_without_its_path(made: Path) -> None:
    """So that a folder that was moved says nothing wrong, and the same run writes the same bytes."""
    found = sorted(made.rglob("README.txt"))
    assert len(found) >= 8  # of the run, the comparisons, the search, and each of their runs
    assert not [path for path in found if str(made) in path.read_text()]
    assert (made / "run" / "README.txt").read_text() == readme.of_run(True)


def test_a_run_without_a_model_offers_none(tmp_path: Path) -> None:
    assert cli.call(["run", "--data", "quadratics", "--rounds", "2", "--out", str(tmp_path / "q")]) == 0
    offered = OFFERED.findall((tmp_path / "q" / "README.txt").read_text())
    assert [line.split()[1] for line in offered] == ["report", "diagnose", "run"]


def test_commands_say_first_what_they_will_do_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one"
    assert cli.call(["run", "--data", "quadratics", "--rounds", "3", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"fedavg, seed 0: 3 rounds, into {out}; Ctrl-C leaves")
    assert cli.call(["run", "--resume", str(out), "--rounds", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"fedavg, seed 0: to round 5, into {out};")


def test_a_table_with_two_classes_says_how_each_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In `data describe` and before a run, unless metrics were chosen or are those of a folder; it works as said."""

    def lines(*arguments: str) -> list[str]:
        assert cli.call([*arguments]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "--metrics" in line]

    sentence = (
        "data cancer: two classes are judged by accuracy alone; --metrics accuracy,sensitivity,specificity also "
        "measures which shares of malignant and of benign are recognised"
    )
    run = ("run", *TABLE, "--model", "logreg", "--rounds", "1")
    assert lines("data", "describe", *TABLE, "--out", str(tmp_path / "who")) == [sentence]
    assert lines(*run, "--out", str(tmp_path / "one")) == [sentence]
    assert lines("run", "--resume", str(tmp_path / "one"), "--rounds", "2") == []
    assert lines("run", "--data", "digits", "--model", "logreg", "--rounds", "1", "--out", str(tmp_path / "ten")) == []
    _, asked = re.findall(r"(--metrics) (\S+)", sentence)[0]
    assert lines(*run, "--metrics", asked, "--out", str(tmp_path / "two")) == []
    header = (tmp_path / "two" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"test_accuracy", "test_sensitivity", "test_specificity"} <= set(header)
    assert "test_sensitivity" not in (tmp_path / "one" / "metrics.csv").read_text()


def test_no_line_of_a_list_of_commands_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal of 80 columns: of `fedconcord` and of every group below it."""
    monkeypatch.setenv("COLUMNS", "80")
    groups, seen = [("", get_command(app))], []
    while groups:
        path, group = groups.pop()
        assert cli.call([*path.split(), "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
        context = typer.Context(group)
        commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
        assert [line.split()[0] for line in listed] == list(commands)
        assert [line for line in listed if line.endswith("...") or len(line) > 80] == []
        seen.append(path.strip())
        groups += [(f"{path} {name}", one) for name, one in commands.items() if isinstance(one, TyperGroup)]
    assert {"", "data", "flower", "flower keys"} <= set(seen)


@pytest.mark.slow
def test_without_arguments_it_says_what_to_do_first_and_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call([]) == 0
    said = capsys.readouterr().out
    offered = OFFERED.findall(said)
    assert [line.split()[1] for line in offered] == ["compare", "data", "advise", "--help", "list"]
    monkeypatch.chdir(tmp_path)
    for line in offered:
        own = line.replace("my.csv", CANCER).replace("LABEL", "diagnosis").replace("SITE", "site")
        assert cli.call(shlex.split(own)[1:]) == 0, line
    assert (tmp_path / "runs" / "digits-compare-1" / "report.html").exists()


def test_what_is_left_goes_by_rounds_done_in_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    left = progress.Left(3 * 50)
    now += 1000.0  # workers start
    left.see(0, 20)  # resumed there: 130 to do
    assert left.words() == ""
    now += 30.0
    assert left.words() == ""  # no round was done
    left.see(0, 21)
    assert left.words() == ""  # one of 130 says nothing of the others
    left.see(0, 30)
    assert left.words() == ", about 6 min left"  # 120 rounds of 3 s
    left.end(0, 50)  # stopped early
    assert left.words() == ", about 5 min left"  # 100
    left.end(1, 50)  # was complete before
    left.see(2, 0)
    left.see(2, 40)
    assert left.words() == ", about 6 s left"  # 10 rounds, of 50 in 30 s
    left.end(2, 50)
    assert left.words() == ""
    assert progress.duration(5400) == "1.5 h"
