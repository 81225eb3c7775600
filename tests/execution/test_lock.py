"""One writer a folder: two at once, dead ones, ranks, and what is left behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedconcord.execution.run import lock
from fedconcord.interface import api, cli
from fedconcord.study.runs import plan
from fedconcord.study.runs.records import finished
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import sums
from fedconcord.support.errors import UserError
from training import execute_all

HOLD = """
import fcntl, os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
fcntl.flock(os.open(sys.argv[1] + "/.lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(100)
"""
RUN = ["--data", "quadratics(dim=3)", "--clients", "4", "--cohort", "2", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.1)


def holder(folder: Path) -> "subprocess.Popen[str]":
    """A process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_process_is_refused_and_a_dead_ones_lock_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "run"
    process = holder(out)
    for command in (["run", "--method", "fedavg"], ["compare", "--methods", "fedavg,scaffold"]):
        assert cli.call([*command, *RUN, "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert f"another process is writing in the folder {out}; wait" in said
        assert len(said.splitlines()) == 1
    process.kill()
    process.communicate()
    assert [path.name for path in out.iterdir()] == [lock.NAME]  # harmless
    assert cli.call(["run", "--method", "fedavg", *RUN, "--out", str(out)]) == 0
    assert not (out / lock.NAME).exists()
    process = holder(out)
    assert cli.call(["run", "--resume", str(out), "--rounds", "3"]) == 2
    process.kill()
    process.communicate()
    assert cli.call(["run", "--resume", str(out), "--rounds", "3"]) == 0


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    given = {"data": "quadratics(dim=3)", "clients": 4, "cohort": 2}
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for first in ("checksums", "run"):
        (tmp_path / f".{first}.json.{dead.pid}.tmp").write_bytes(b"half")  # the folder is free,
    sums.write(tmp_path, {"run.json": b"{}"})
    (tmp_path / "run.json").unlink()  # also where it had written the checksum of what was to come
    api.run("fedavg", **given, rounds=2, out=tmp_path)  # type: ignore[arg-type]
    before = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / f".checkpoint.safetensors.{dead.pid}.tmp").write_bytes(b"half")
    alive = f".report.html.{os.getppid()}.tmp"
    (tmp_path / alive).write_bytes(b"somebody else's")
    api.run(resume=tmp_path, rounds=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, alive])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "clients.csv").write_text("a user's own")
    with pytest.raises(UserError, match="is not empty"):
        api.run("fedavg", **given, rounds=2, out=tmp_path / "taken")  # type: ignore[arg-type]


def test_one_of_many_at_once_runs(tmp_path: Path) -> None:
    """Whoever comes second is refused, while the first one writes and after it."""
    found: list[str] = []

    def one(method: str) -> None:
        try:
            api.run(method, data="quadratics(dim=3)", clients=4, cohort=2, rounds=60, out=tmp_path / "run")
            found.append(method)
        except UserError as refused:
            found.append(str(refused))

    threads = [threading.Thread(target=one, args=(name,)) for name in ("fedavg", "scaffold", "fednova")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (text for text in found if " " not in text)
    assert all("another process is writing" in text or "is not empty" in text for text in found if " " in text)
    assert finished(tmp_path / "run").label == winner


def test_a_comparison_has_its_folder_and_each_run_its_own(tmp_path: Path) -> None:
    out = tmp_path / "c"
    settings = {
        "methods": ["fedavg"],
        "seeds": [0],
        "data": "quadratics(dim=3)",
        "clients": 4,
        "cohort": 2,
        "rounds": 2,
    }
    _, planned, _ = plan.plan_comparison(None, from_nested(settings | {"out": str(out)}, "test"))
    process = holder(out)
    with pytest.raises(UserError, match="another process is writing in the folder"):
        plan.plan_resumed_comparison(out, None)
    assert [run.status for run in execute_all(planned)] == ["complete"]  # as in a worker of the comparison
    process.kill()
    process.communicate()
    process = holder(planned[0].folder)
    again = plan.plan_resumed_comparison(out, None, from_nested({"rounds": 4}, "test"))[1]
    (refused,) = execute_all(again)
    assert "another process is writing in the folder" in (refused.error or "")
    process.kill()
    process.communicate()
    assert [run.status for run in execute_all(again)] == ["complete"]


class One(NamedTuple):
    """A rank that hears what rank 0 says."""

    rank: int
    size: int = 2

    def tell(self, text: Callable[[], str]) -> str:
        return text() if self.rank == 0 else ""


@pytest.mark.parametrize("first", [0, 1])
def test_processes_share_it_until_the_last_has_ended(first: int, tmp_path: Path) -> None:
    """Whichever ends first: the other may still write rows of its clients."""
    ranks = [lock.held(tmp_path / "run", One(rank)) for rank in (0, 1)]  # type: ignore[arg-type]
    for one in ranks:
        one.__enter__()
    for one in (ranks[first], ranks[1 - first]):
        with pytest.raises(UserError, match="another process"), lock.held(tmp_path / "run"):
            pass
        one.__exit__(None, None, None)
    assert not (tmp_path / "run" / lock.NAME).exists()
    with lock.held(tmp_path / "run"):
        pass
    with lock.held(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()  # nothing was written


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write in the folder"), lock.held(tmp_path / "file" / "run"):
        pass


def test_a_file_removed_by_the_one_before_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened before the holder removed it, locked after: the next one would make and lock another file."""
    locked, turns = lock._locked, list[int]()

    def removed(descriptor: int) -> bool:
        if not turns:
            os.unlink(tmp_path / lock.NAME)
        turns.append(1)
        return locked(descriptor)

    monkeypatch.setattr(lock, "_locked", removed)
    with lock.held(tmp_path):
        monkeypatch.setattr(lock, "_locked", locked)
        with pytest.raises(UserError, match="another process"), lock.held(tmp_path):
            pass
    assert len(turns) == 2
