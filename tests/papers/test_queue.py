"""The queue of the papers' own sizes: its order, what is left, and when it stops."""

import collections
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from test_reproduce import SMALL, StopAfter

from fedconcord.interface.cli.main import call
from fedconcord.study.runs.events import Watch
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes import RECIPES, queue
from fedconcord_papers.recipes.queue import ITEMS, Item
from fedconcord_papers.recipes.recipe import Comparison, Recipe, Size
from fedconcord_papers.recipes.run import DONE, cells_of, reproduce
from fedconcord_papers.recipes.values import read
from fedconcord_papers.recipes.whole import request

PAPER = SMALL._replace(sizes={"paper": Size(seeds=(0, 1), search={"rounds": 2})})
NO_DATA = PAPER._replace(name="no_data", sizes={"paper": Size({"data": "fmnist", "model": "logreg"}, search=None)})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of two items of one recipe, one whose data are missing, and one that needs a GPU."""
    monkeypatch.setitem(RECIPES, "small", PAPER)
    monkeypatch.setitem(RECIPES, "no_data", NO_DATA)
    items = [
        Item("small", "the first", 6.0, ("skewed",)),
        Item("no_data", "not at hand"),
        Item("small", "the other", 6.0, ("iid",)),
        Item("small", "large", None, ("iid", "skewed"), needs_gpu=True),
    ]
    monkeypatch.setattr(queue, "ITEMS", items)
    monkeypatch.setattr(queue, "has_gpu", lambda: False)


def test_every_item_is_a_recipe_of_the_papers_size_and_none_is_there_twice() -> None:
    places = []
    for item in ITEMS:
        spec = request(item.recipe, "paper", Path("none"), cells=item.cells)
        experiment = spec.recipe.experiment
        if isinstance(experiment, Comparison):
            places += [(item.recipe, cell.name) for cell in cells_of(spec, experiment)]  # it refuses unknown ones
        else:
            assert item.cells is None
            places.append((item.recipe, ""))
    assert len(places) == len(set(places))
    assert {item.recipe for item in ITEMS} == {*RECIPES}
    gpu = [item.needs_gpu for item in ITEMS]
    assert gpu == sorted(gpu)
    assert any(gpu)


def test_what_is_left_follows_from_the_values(small: None, tmp_path: Path) -> None:
    def left() -> list[tuple[int, int]]:
        return [(one.runs, one.of) for one in queue.line(tmp_path / "empty", values=tmp_path / "values")][::2]

    assert left() == [(8, 8), (8, 8)]  # each with the search, which is made once
    first, _, other, large = queue.line(tmp_path / "empty")
    assert first.hours == pytest.approx(6.0 * 8 / 6)  # of one seed six runs
    assert large.hours is None
    assert (first.spent, other.spec.cells) == (0.0, ("iid",))
    spec = request("small", "paper", tmp_path / "out", cells=["skewed"], values=tmp_path / "values")
    with pytest.raises(KeyboardInterrupt):
        reproduce(spec, StopAfter(1))
    assert left() == [(7, 8), (7, 8)]  # a point of the search is known
    reproduce(spec, Watch())
    assert left() == [(0, 8), (4, 8)]
    _, _, other, _ = queue.line(tmp_path / "empty", values=tmp_path / "values")
    assert other.spent > 0
    assert other.hours == pytest.approx(other.spent * 4 / 8)  # by what eight runs took
    assert not (tmp_path / "empty").exists()


def test_a_queue_goes_on_after_an_item_that_fails_and_leaves_out_what_needs_a_gpu(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDCONCORD_DATA", str(tmp_path / "none"))
    words = ["reproduce", "all", "--paper", "--queue", "--out", str(tmp_path / "out"), "--values", str(tmp_path)]
    assert call([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:-1]] == ["small", "no_data", "small", "small"]
    assert "0 of 4 items are done; the others may take 16.0 hours" in shown
    assert not (tmp_path / "out").exists()
    assert call(words) == 1
    ended = capsys.readouterr()
    assert "no_data: " in ended.err
    assert "fmnist" in ended.err
    assert "3 of 4 items are done" in ended.out  # the last has no runs that the others have not made
    assert read(tmp_path / "small-paper.json").values.cells() == ["iid", "skewed"]
    monkeypatch.setattr(queue, "ITEMS", [Item("small", "large", None, ("iid",), needs_gpu=True)])
    assert call(["reproduce", "all", "--paper", "--queue", "--out", str(tmp_path / "new")]) == 0
    assert "small needs a GPU, and this machine has none; left out" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("14:31", "2026-05-31 14:31"),
        ("14:30", "2026-06-01 14:30"),  # now, and a little ago: tomorrow
        ("9:05", "2026-06-01 09:05"),
        ("00:00", "2026-06-01 00:00"),
    ],
)
def test_a_queue_stops_when_the_clock_shows_it_next(text: str, at: str) -> None:
    assert f"{queue.next_time(text, datetime(2026, 5, 31, 14, 30, 20)):%Y-%m-%d %H:%M}" == at


@pytest.mark.parametrize("text", ["24:00", "12:60", "noon", "12", "-1:00", "12:5", "2026-05-31 14:30", ""])
def test_nonsense_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match=r"a time of the day, from 00:00 to 23:59, given"):
        queue.next_time(text, datetime(2026, 5, 31))


def test_work_is_ended_as_by_ctrl_c_where_that_is_ignored_too() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), queue.ended_by(0.05) as is_over:
            collections.deque((time.sleep(0.1) for _ in range(100)), 0)  # one long sleep would not end
        assert is_over.is_set()
        with queue.ended_by(10) as is_over:
            pass
        assert not is_over.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


LONG: Recipe = PAPER._replace(sizes={"paper": Size({"rounds": 500}, seeds=(0, 1), search={"rounds": 2})})
QUEUE = """
import datetime, sys
from fedconcord.interface.cli.main import call
from fedconcord_papers.recipes import RECIPES, queue
from test_queue import LONG
RECIPES["small"] = LONG
queue.ITEMS = [queue.Item("small", "why", 1.0)]
queue.next_time = lambda text, now: now + datetime.timedelta(seconds=float(text))
sys.exit(call(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_queue_that_was_stopped_goes_on_and_comes_to_the_same(jobs: str, tmp_path: Path) -> None:
    def command(out: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["reproduce", "all", "--paper", "--queue", "--jobs", jobs, "--out", str(tmp_path / out), *more]
        return subprocess.run(
            [sys.executable, "-c", QUEUE, *words],
            capture_output=True, text=True, check=False, timeout=500,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as of a shell's background
        )  # fmt: skip

    ended = command("stopped", "--until", "2")
    assert ended.returncode == 0, ended.stderr
    assert "stopped at 2, as --until says" in ended.stdout
    assert "0 of 1 items are done" in ended.stdout
    ended = command("stopped")
    assert ended.returncode == 0, ended.stderr
    assert "1 of 1 items are done" in ended.stdout
    whole = command("whole")
    assert whole.returncode == 0, whole.stderr
    one, other = (read(tmp_path / out / "small" / "paper" / DONE) for out in ("stopped", "whole"))
    assert one.values == other.values
    assert sum(spell["runs"] for spell in one.log) == 12
    run = json.loads(next((tmp_path / "stopped").rglob("final/SCAFFOLD/seed-1/run.json")).read_text())
    assert (run["status"], run["rounds_done"]) == ("complete", 500)
