"""Callbacks of runs, and the trackers with the real packages: what they write is read back by the packages' readers."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import fedconcord
from fedconcord import Finished, Row, Run
from fedconcord.interface import cli
from fedconcord.interface.cli.progress import Show
from fedconcord.study.runs.events import Entry, Event, Stage
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

ROOT = Path(__file__).parents[2]
JOB: dict[str, Any] = {"data": "quadratics(dim=3)", "clients": 6, "cohort": 3, "rounds": 4}
Values = Mapping[str, list[tuple[int, float]]]
"""Metric -> (round, value), in order."""


class Seen(fedconcord.Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def start(self, run: Run) -> None:
        assert (run.folder / "run.json").exists()
        self.events.append(("start", run.number, run.label, run.seed, run.begins, run.rounds))

    def row(self, run: Run, row: Row) -> None:
        self.events.append((run.number, row.round))

    def end(self, run: Run, result: Finished) -> None:
        self.events.append(("end", run.number, result.status))


class Stop(fedconcord.Callback):
    """As a second Ctrl-C after a round: nothing more is written."""

    def __init__(self, round: int) -> None:
        self.round = round

    def row(self, run: Run, row: Row) -> None:
        if row.round == self.round:
            raise KeyboardInterrupt


# -- the protocol --------------------------------------------------------------------------------------------------


def test_a_run_is_told_from_start_to_end(tmp_path: Path) -> None:
    seen = Seen()
    fedconcord.run("fedavg", **JOB, seed=3, out=tmp_path, callbacks=[seen])
    assert seen.events == [("start", 0, "fedavg", 3, 0, 4), *[(0, t) for t in range(5)], ("end", 0, "complete")]
    seen.events.clear()
    fedconcord.run(resume=tmp_path, rounds=6, callbacks=[seen])
    assert seen.events == [("start", 0, "fedavg", 3, 5, 6), (0, 5), (0, 6), ("end", 0, "complete")]
    seen.events.clear()
    fedconcord.run(resume=tmp_path, rounds=6, callbacks=[seen])
    assert seen.events == []


@pytest.mark.usefixtures("quick_report")
def test_every_run_of_a_comparison_is_told_once(tmp_path: Path) -> None:
    seen = Seen()
    fedconcord.compare(["fedavg", "fedprox"], **JOB, out=tmp_path / "c", callbacks=[seen])
    starts = [("start", 0, "fedavg", 0, 0, 4), ("start", 1, "fedprox", 0, 0, 4)]
    assert seen.events == [
        event for i in (0, 1) for event in (starts[i], *[(i, t) for t in range(5)], ("end", i, "complete"))
    ]
    seen.events.clear()
    fedconcord.compare(resume=tmp_path / "c", callbacks=[seen])
    assert seen.events == []


def test_bars_follow_stages_of_many_runs_and_of_one(tmp_path: Path) -> None:
    """A stage of one run has no bar of all runs, whatever the stage before it had."""
    config = resolve_run(from_nested({"method": "fedavg", "data": "digits", "rounds": 2}, "the test"))
    entries = [Entry(config, tmp_path / place) for place in "ab"]
    show = Show("reproduce", has_bar_per_run=False)
    named = Show("compare", has_bar_per_run=True)
    for watch, entry in product((show, named), (entries, entries[:1])):
        watch.stage(Stage(entry, tmp_path))
        for number, one in enumerate(entry):
            watch.event(Event("started", number=number))
            watch.event(Event("row", row=Row(1, {}, 0, 0, 0, 0.0), number=number))
            watch.event(Event("ended", result=Finished(one.folder, one.name, 0, "complete", 2, {}), number=number))


def test_what_is_left_of_all_runs_counts_the_rounds_that_they_are_worth(tmp_path: Path) -> None:
    config = resolve_run(from_nested({"method": "fedavg", "data": "digits", "rounds": 50}, "the test"))
    worth = [math.inf]
    entries = [Entry(config, tmp_path / place, worth=lambda: worth[0]) for place in "abcd"]
    show = Show("reproduce", has_bar_per_run=False)
    show.stage(Stage(entries, tmp_path))
    assert show.left.todo == 4 * 50
    for number, took, todo in ((0, 30, 3 * 30 + 30), (1, 20, 2 * 20 + 50), (2, 20, 20 + 70), (3, 10, 80)):
        show.event(Event("started", number=number))
        show.event(Event("row", row=Row(0, {}, 0, 0, 0, 0.0), number=number))
        show.event(Event("row", row=Row(took, {}, 0, 0, 0, 0.0), number=number))
        worth[0] = took
        one = entries[number]
        show.event(Event("ended", result=Finished(one.folder, one.name, 0, "complete", took, {}), number=number))
        assert (show.left.todo, show.left.done) == (todo, sum((30, 20, 20, 10)[: number + 1]))


def test_a_run_that_is_cut_is_told_its_end(tmp_path: Path) -> None:
    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        fedconcord.run("fedavg", **JOB, out=tmp_path, callbacks=[seen, Stop(2)])
    assert seen.events[-2:] == [(0, 2), ("end", 0, "interrupted")]


def test_a_callback_that_fails_is_left_out_and_changes_nothing(tmp_path: Path) -> None:
    class Broken(Seen):
        def row(self, run: Run, row: Row) -> None:
            super().row(run, row)
            if row.round == 2:
                raise OSError(28, "No space left on device")

    broken, seen = Broken(), Seen()
    usual = fedconcord.run("fedavg", **JOB, out=tmp_path / "a")
    with pytest.warns(UserWarning, match=r"Broken failed at the row of round 2 \(OSError: .*\); the runs go on"):
        found = fedconcord.run("fedavg", **JOB, out=tmp_path / "b", callbacks=[broken, seen])
    assert broken.events[-1] == (0, 2)
    assert seen.events[-1] == ("end", 0, "complete")
    for name in ("metrics.csv", "checkpoint.safetensors"):
        assert (usual.folder / name).read_bytes() == (found.folder / name).read_bytes()


@pytest.mark.usefixtures("quick_report")
def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "callbacks.md").read_text(), re.M | re.S)
    exec(example, {})
    told = capsys.readouterr().out.splitlines()
    rounds = [f"fedavg, seed 0, round {t}" for t in range(3)]
    assert [line.partition(":")[0] for line in told[:4]] == [*rounds, "fedavg, seed 0"]
    assert told[7] == "scaffold, seed 0: complete"


# -- trackers ------------------------------------------------------------------------------------------------------


def tensorboard_values(run: Path) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert b'"method": "fedavg"' in found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def mlflow_values(run: Path, root: Path | None = None) -> Values:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{(root or run) / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "fedconcord"]
    made = client.get_run(json.loads((run / "mlflow.json").read_text())["id"])
    assert made.info.run_id in [one.info.run_id for one in client.search_runs([experiment.experiment_id])]
    assert made.data.params["local.lr"] == "0.1"
    assert (made.info.status, made.data.tags["fedconcord.status"]) == ("FINISHED", "complete")
    history = {name: client.get_metric_history(made.info.run_id, name) for name in made.data.metrics}
    return {name: sorted((m.step, m.value) for m in every) for name, every in history.items()}


def wandb_values(run: Path, root: Path | None = None) -> Values:
    """The history in the offline folders of the run, one after the other, as `wandb sync` sends them."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list[tuple[int, float]]] = {}
    known = json.loads((run / "wandb.json").read_text())["id"]
    for path in sorted(((root or run) / "wandb").glob(f"offline-run-*-{known}/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for name in items.keys() - {"round"} if "round" in items else ():
                if not name.startswith("_"):
                    found.setdefault(name, []).append((items["round"], items[name]))
    return found


def log_records(data: bytes) -> list[bytes]:
    """The records of a LevelDB log, after the seven bytes of wandb's own header; a record that was cut is left out."""
    found, part, at, block = [], b"", 7, 32768
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            found.append(part)
            part = b""
    return found


READ = {"tensorboard": tensorboard_values, "mlflow": mlflow_values, "wandb": wandb_values}


def assert_tracked(found: Values, run: Path) -> None:
    """Each round once, with what the tables say."""
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    for name in ("loss", "bytes_up"):
        assert [step for step, _ in found[name]] == [int(row["round"]) for row in rows], name
        assert [value for _, value in found[name]] == pytest.approx([float(row[name]) for row in rows], rel=1e-6)
    assert math.isfinite(found["seconds"][-1][1])


@pytest.mark.parametrize(
    "tracker", [pytest.param(t, marks=pytest.mark.slow if t != "tensorboard" else ()) for t in READ]
)
def test_a_tracker_has_every_round_once_also_after_a_run_was_cut(tmp_path: Path, tracker: str) -> None:
    out = tmp_path / "r"
    fedconcord.run("fedavg", **{**JOB, "rounds": 2}, out=out, track=tracker, checkpoint_every=0)
    with pytest.raises(KeyboardInterrupt):  # rounds 3 and 4 are tracked, and the checkpoint is of round 2
        fedconcord.run(resume=out, rounds=6, checkpoint_every=1e9, callbacks=[After(4)])
    fedconcord.run(resume=out, rounds=6)
    assert_tracked(READ[tracker](out), out)


class After(fedconcord.Callback):
    """As a second Ctrl-C in the round after a round, for callbacks come before trackers."""

    def __init__(self, round: int) -> None:
        self.round = round

    def row(self, run: Run, row: Row) -> None:
        if row.round == self.round + 1:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("quick_report")
def test_the_runs_of_a_comparison_share_the_folder_of_mlflow(tmp_path: Path) -> None:
    found = fedconcord.compare(["fedavg"], **JOB, seeds=[0, 1], out=tmp_path / "c", callbacks=[fedconcord.MLflow()])
    for result in found.runs:
        assert_tracked(mlflow_values(result.folder, tmp_path / "c"), result.folder)


@pytest.mark.parametrize(
    ("track", "sentence"),
    [
        ("tensorbord", "unknown tracker 'tensorbord' (did you mean 'tensorboard'?)"),
        ("wandb(mode=on)", "tracker wandb: mode must be one of offline, online, given 'on'"),
        ("wandb", "pip install 'fedconcord[wandb]'"),
        ("mlflow", "pip install 'fedconcord[mlflow]'"),
        ("tensorboard", "pip install 'fedconcord[tensorboard]'"),
    ],
)
def test_what_cannot_track_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, track: str, sentence: str
) -> None:
    for name in ("wandb", "mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    for command in (["run"], ["compare", "--methods", "fedavg,fedprox"]):
        given = [*command, "--data", "quadratics", "--track", track, "--out", str(tmp_path / "r")]
        assert cli.call(given) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
        assert not (tmp_path / "r").exists()


def test_trackers_are_imported_when_they_are_used_in_one_place_each() -> None:
    source = Path(fedconcord.__file__).parent
    for name in ("tensorboard", "mlflow", "wandb"):
        pattern = re.compile(rf'(^ *import |^ *from |package\(")(torch\.utils\.)?{name}\b', re.MULTILINE)
        places = [path.name for path in source.rglob("*.py") for _ in pattern.finditer(path.read_text())]
        assert places == ["tracking.py"]


def test_a_tracker_by_import_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot import the tracker nowhere:Tracker"):
        fedconcord.run("fedavg", **JOB, out=tmp_path, track="nowhere:Tracker")


@pytest.mark.slow
def test_all_trackers_go_on_after_the_command_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-m", "fedconcord", "compare"]
    given = ["--methods", "fedavg,fedprox", "--data", "quadratics(dim=3)", "--clients", "6", "--cohort", "3"]
    more = ["--rounds", "120", "--set", "eval.every=1", "--checkpoint-every", "0", "--jobs", "2"]
    track = ["--track", "tensorboard,mlflow,wandb", "--out", str(out)]
    env = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # of a test before, in here
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, *given, *more, *track], env=env, **quiet)
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("*/seed-0/checkpoint.safetensors"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = [json.loads(path.read_text())["rounds_done"] for path in out.glob("*/seed-0/run.json")]
    rounds = str(max(done) + 20)
    again = [*command, "--resume", str(out), "--rounds", rounds, "--jobs", "1"]
    subprocess.run(again, check=True, capture_output=True, env=env)
    for read in READ.values():
        found = read(out / "fedavg" / "seed-0", *([] if read is tensorboard_values else [out]))
        steps = [step for step, _ in found["loss"]]
        assert steps == sorted(set(steps))  # none twice; the last moments before a kill may be lost
        assert steps[-1] == int(rounds)


@pytest.mark.slow
def test_the_benchmark_has_a_line_a_tracker() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "tracking.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"(\w+: start \d+\.\d s, a round \d+\.\d ms\n){3}", done.stdout)
