"""The command as a person meets it: real processes on digits, stopped and resumed, and every mistake one sentence."""

import ast
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedconcord
import fedconcord.insight.report
from fedconcord.execution.job import Row
from fedconcord.federation.objectives.metrics import METRICS
from fedconcord.interface import api, cli
from fedconcord.interface.cli import listing
from fedconcord.method.algorithms import plugins
from fedconcord.study.runs import execution, plan, records, training
from fedconcord.study.runs.events import Entry, Event, Finished, Stage, Watch
from fedconcord.study.runs.pool import InterruptedStudyError, Stages, carry_out
from fedconcord.study.settings.job import build
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import sums
from fedconcord.support.errors import UserError
from training import execute_all
from watching import Rows

# exact bytes need the same threads and the same chunk; a checkpoint a round keeps the wait for one short
JOB = (
    *("--data", "digits", "--model", "logreg", "--clients", "20", "--cohort", "5", "--epochs", "uniform(1,3)"),
    *("--lr", "0.05", "--rounds", "40", "--target", "0.5", "--set", "engine.threads=1", "--set", "engine.chunk=5"),
    *("--set", "checkpoint.every=0"),
)
COMPARE = ["compare", "--methods", "scaffold,fedadmm(rho=0.1)", "--jobs", "2", *JOB]
SAME = ("metrics.csv", "model.safetensors", "partition.csv")
FOLDERS = ("scaffold/seed-0", "fedadmm-rho=0.1/seed-0")
PROC = Path("/proc/self/stat").exists()


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedconcord", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for_round(folder: Path, round: int, process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        assert process.poll() is None, process.communicate()
        path = folder / "run.json"
        if path.exists() and json.loads(path.read_text())["rounds_done"] >= round:
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} never came to round {round}")


def status(folder: Path) -> tuple[str, int]:
    saved = json.loads((folder / "run.json").read_text())
    return saved["status"], saved["rounds_done"]


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that nothing interrupted."""
    out = tmp_path_factory.mktemp("cli") / "whole"
    code, said, complained = finish(start(*COMPARE, "--out", out))
    assert (code, complained) == (0, "")
    judged, ahead, *lines = [line for line in said.splitlines() if ": round " not in line]  # said on a slow machine
    assert judged.startswith("clients are judged on the samples they train on: the median client has 72 samples")
    assert (
        ahead
        == f"2 runs: 40 rounds each, 2 at once, into {out}; Ctrl-C leaves what is done there, and --resume goes on"
    )
    assert re.fullmatch(r"\[1/2\] .*, seed 0: complete, 40 rounds, accuracy \d+\.\d %", lines[0])
    assert any("rounds to target" in line for line in lines)
    assert any(line.startswith("fedadmm(rho=0.1) ") for line in lines)
    assert "Target: test accuracy at or above 50 %, as the runs ask." in lines
    assert lines[-1] == f"report: {out / 'report.html'}"
    return out


@pytest.mark.slow
def test_mnist_says_rounds_to_the_target(data_dir: Path, tmp_path: Path) -> None:
    """The field's standard job on the published files: 100 clients with two digits each, ten a round."""
    code, said, complained = finish(
        start(
            *("compare", "--methods", "fedavg,scaffold", "--data", "mnist", "--data-dir", data_dir),
            *("--partition", "shards(2)", "--clients", "100", "--cohort", "10", "--model", "2nn", "--rounds", "5"),
            *("--target", "0.5", "--checkpoint-every", "1000", "--out", tmp_path / "m"),
        )
    )
    assert (code, complained) == (0, "")
    lines = said.splitlines()
    assert "Target: test accuracy at or above 50 %, as the runs ask." in lines
    for method in ("fedavg", "scaffold"):
        (row,) = [line.split() for line in lines if re.match(rf"{method} +1 ", line)]
        assert 1 <= int(row[-1]) <= 5  # rounds to the target
        with open(tmp_path / "m" / method / "seed-0" / "partition.csv") as file:
            assert len(file.readlines()) == 101
    assert (tmp_path / "m" / "report.html").exists()


def test_a_run_that_ends_before_its_rounds_says_of_how_many(tmp_path: Path) -> None:
    asked = ("--set", "eval.target=0.2", "--set", "eval.stop_at_target=true")
    code, said, _ = finish(
        start("run", "--method", "fedavg", "--data", "digits", "--rounds", "30", *asked, "--out", tmp_path / "r")
    )
    assert code == 0
    assert re.search(r"fedavg, seed 0: complete, \d+ of 30 rounds, accuracy", said)


def assert_same(whole: Path, other: Path) -> None:
    for name in SAME:
        assert (whole / name).read_bytes() == (other / name).read_bytes(), name


def test_compare_leaves_a_folder_a_run_and_the_report(whole: Path) -> None:
    assert "<html" in (whole / "report.html").read_text()[:200].lower()
    for folder in FOLDERS:
        saved = json.loads((whole / folder / "run.json").read_text())
        assert (saved["status"], saved["rounds_done"], saved["seed"], saved["target"]) == ("complete", 40, 0, 0.5)
        assert saved["config"]["local"]["epochs"] == "uniform(1,3)"
        assert len((whole / folder / "metrics.csv").read_text().splitlines()) == 42
    # the methods met the same clients and the same start
    first, second = ((whole / folder / "metrics.csv").read_text().splitlines()[1] for folder in FOLDERS)
    assert first.split(",")[:4] == second.split(",")[:4]
    assert (whole / FOLDERS[0] / "partition.csv").read_bytes() == (whole / FOLDERS[1] / "partition.csv").read_bytes()


@pytest.mark.slow  # the comparison below does the same with more
def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    process = start("run", "--method", "fedadmm(rho=0.1)", *JOB, "--out", out)
    for kind, at in ((signal.SIGINT, 3), (signal.SIGKILL, 12)):
        wait_for_round(out, at, process)
        process.send_signal(kind)
        code, _, complained = finish(process)
        done = status(out)
        assert at <= done[1] < 40
        if kind != signal.SIGKILL:
            assert code == 130
            again = f"fedconcord run --resume '{out}'"
            assert complained == f"interrupted: {out} is usable as it is; continue with: {again}\n"
            assert done[0] == "interrupted"
            assert (out / "model.safetensors").exists()
        process = start("run", "--resume", out)
    code, said, complained = finish(process)
    assert (code, complained) == (0, "")
    assert said.splitlines()[-1] == f"results: {out}"
    assert_same(whole / FOLDERS[1], out)


@pytest.mark.slow  # test_hostile and test_signals end and resume runs in the fast tier
def test_a_comparison_that_is_stopped_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    process = start(*COMPARE, "--out", out)
    for kind, at in ((signal.SIGTERM, 2), (signal.SIGKILL, 12)):
        for folder in FOLDERS:
            wait_for_round(out / folder, at, process)
        workers = children(process.pid) if PROC else []
        process.send_signal(kind)
        code, _, complained = finish(process)
        if kind == signal.SIGTERM:
            assert code == 130
            assert complained.splitlines()[-1].endswith(f"continue with: fedconcord compare --resume {out}")
            assert [status(out / folder)[0] for folder in FOLDERS] == ["interrupted"] * 2
        for _ in range(500):  # no worker may write on behind the back of a resumed comparison
            if not any(Path(f"/proc/{worker}").exists() for worker in workers):
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"workers {workers} outlive the command")
        process = start("compare", "--resume", out)
    code, said, complained = finish(process)
    assert (code, complained) == (0, "")
    assert said.splitlines()[-1] == f"report: {out / 'report.html'}"
    for folder in FOLDERS:
        assert_same(whole / folder, out / folder)


@pytest.mark.usefixtures("quick_report")
def test_the_axes_compose(tmp_path: Path) -> None:
    methods = {
        "fedavg(server=momentum(.9),upload=quantise(8))": "fedavg(server=momentum(beta=0.9),upload=quantise(levels=8))",
        "fednova(local.oracle=sam(.1),local.momentum=.5)": "fednova(local.momentum=0.5,local.oracle=sam(radius=0.1))",
        "fedadmm(local.solver=lbfgs,local.tolerance=1e-4)": "fedadmm(local.solver=lbfgs,local.tolerance=0.0001)",
    }
    given = (
        *("compare", "--methods", ",".join(methods), "--sampling", "bernoulli(0.2)", "--model", "logreg"),
        *("--clients", "20", "--epochs", "uniform(1,3)", "--lr", "0.05", "--rounds", "6", "--eval-every", "3"),
        *("--oracle", "full", "--out", str(tmp_path / "c")),
    )
    assert cli.call(given) == 0
    up = {}
    for folder in (tmp_path / "c").glob("*/seed-0"):
        saved = json.loads((folder / "run.json").read_text())
        assert (saved["status"], saved["cohort"]) == ("complete", 4)
        assert saved["config"]["sampling"] == "bernoulli(share=0.2)"
        rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
        assert [row[0] for row in rows] == ["round", "0", "3", "6"]
        up[saved["label"]] = int(rows[-1][rows[0].index("bytes_up")])
    assert sorted(up) == sorted(methods.values())
    compressed, whole, _ = (up[label] for label in methods.values())
    assert 0 < 3 * compressed < whole  # one byte an entry in place of four


@pytest.mark.usefixtures("quick_report")
def test_resuming_what_is_finished_repeats_nothing(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/*/*")}
    assert cli.call(["compare", "--resume", str(whole)]) == 0
    assert {path: path.stat().st_mtime_ns for path in whole.glob("*/*/*")} == before
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {whole / 'report.html'}"


def test_report_of_any_folders(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["report", *(str(whole / folder) for folder in FOLDERS), "--out", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'r' / 'report.html'}"
    assert (tmp_path / "r" / "report.html").exists()


# -- from Python ---------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"data": "quadratics(dim=3)", "clients": 6, "cohort": 3, "rounds": 4, "epochs": "uniform(1,3)"}


def test_run_from_python(tmp_path: Path) -> None:
    seen: list[Row] = []
    result = api.run(
        "fedprox(mu=0.5)", **QUICK, out=tmp_path / "r", settings={"local.momentum": 0.5}, callbacks=[Rows(seen.append)]
    )
    assert (result.label, result.status, result.rounds) == ("fedprox(mu=0.5)", "complete", 4)
    assert result.metrics["loss"] == pytest.approx(seen[-1].metrics["loss"])  # type: ignore[index]
    assert [row.round for row in seen] == [0, 1, 2, 3, 4]
    longer = api.run(resume=tmp_path / "r", rounds=6)
    assert (longer.status, longer.rounds) == ("complete", 6)


@pytest.mark.usefixtures("quick_report")
def test_compare_from_python(tmp_path: Path) -> None:
    found = api.compare(["fedavg", "scaffold(local.lr=0.05)"], **QUICK, seeds=[0, 1], out=tmp_path / "c")
    assert [(r.label, r.seed, r.status) for r in found.runs] == [
        ("fedavg", 0, "complete"), ("scaffold(local.lr=0.05)", 0, "complete"),
        ("fedavg", 1, "complete"), ("scaffold(local.lr=0.05)", 1, "complete"),
    ]  # fmt: skip
    assert found.report == tmp_path / "c" / "report.html"
    assert found.runs[1].folder == tmp_path / "c" / "scaffold-local.lr=0.05" / "seed-0"


@pytest.mark.slow  # test_signals and test_hostile end workers in the fast tier
@pytest.mark.skipif(not PROC, reason="finds processes in /proc")
@pytest.mark.usefixtures("quick_report")
def test_a_worker_that_is_killed_fails_its_run_alone(tmp_path: Path) -> None:
    busy: set[int] = set()
    killed: list[int] = []

    class Killer(fedconcord.Callback):
        def start(self, run: fedconcord.Run) -> None:
            busy.add(run.number)
            if len(busy) == 2 and not killed:
                workers = [pid for pid in children(os.getpid()) if b"pool import worker" in cmdline(pid)]
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])

    found = api.compare(
        ["fedavg", "fedprox", "scaffold"], **{**QUICK, "rounds": 2000}, out=tmp_path / "c", jobs=2,
        settings={"eval.every": 10}, callbacks=[Killer()],
    )  # fmt: skip
    states = [result.status for result in found.runs]
    assert sorted(states) == ["complete", "complete", "failed"]
    assert found.runs[states.index("failed")].error == "its process was killed (signal 9)"
    assert found.report is not None
    again = api.compare(resume=tmp_path / "c", jobs=1)
    assert [result.status for result in again.runs] == ["complete"] * 3


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_defect_fails_its_run_alone_and_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, planned, _ = plan.plan_comparison(
        1, from_nested({"methods": "fedavg,fedprox", **plain(QUICK), "out": str(tmp_path / "c")}, "test")
    )
    sound = build

    def broken(config: Config) -> Any:
        if config.method == "fedavg":
            raise RuntimeError("planted")
        return sound(config)

    monkeypatch.setattr(training, "build", broken)
    first, second = execute_all(planned)
    assert (first.status, second.status) == ("failed", "complete")
    assert first.error == f"RuntimeError: planted (all of it in {first.folder / 'error.txt'})"
    assert "planted" in (first.folder / "error.txt").read_text()


def plain(named: dict[str, Any]) -> dict[str, Any]:
    return {api.KEYS.get(name, name): value for name, value in named.items()}


def test_default_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [api.run("fedavg", **QUICK).folder for _ in range(2)]
    assert folders == [Path("runs/quadratics-fedavg-1"), Path("runs/quadratics-fedavg-2")]


@pytest.mark.usefixtures("quick_report")
def test_ctrl_c_between_runs_leaves_the_others_undone(tmp_path: Path) -> None:
    class Stop(fedconcord.Callback):
        def row(self, run: fedconcord.Run, row: Row) -> None:
            if run.number == 0 and row.round == 2:
                os.kill(os.getpid(), signal.SIGINT)

    found = api.compare(["fedavg", "fedprox"], **QUICK, out=tmp_path / "c", callbacks=[Stop()])
    assert [(r.status, r.rounds) for r in found.runs] == [("interrupted", 2), ("interrupted", 0)]
    assert found.report is None
    again = api.compare(resume=tmp_path / "c")
    assert [(r.status, r.rounds) for r in again.runs] == [("complete", 4), ("complete", 4)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_gets_the_rounds_that_it_is_worth_when_it_begins(jobs: int, tmp_path: Path) -> None:
    """By the runs that have ended; what an interrupted run has behind it is never more than that."""
    words = {"methods": "fedavg,fedprox,scaffold", **plain(QUICK)}
    _, planned, _ = plan.plan_comparison(1, from_nested(words, "test"))
    ended: list[int] = []

    def done(first: float, resume: bool) -> list[tuple[str, int]]:
        ended.clear()
        entries = [
            one._replace(
                folder=tmp_path / str(k),
                resume=resume,
                worth=lambda k=k: first if k < jobs else min(ended, default=9) - 1,
            )
            for k, one in enumerate(planned)
        ]

        def tell(event: Event) -> None:
            if event.kind == "ended" and event.result is not None:
                ended.append(event.result.rounds)

        return [(one.status, one.rounds) for one in execute_all(entries, jobs, tell)]

    assert done(3, False) == [("complete", 3), ("complete", 3 if jobs == 2 else 2), ("complete", 2 if jobs == 2 else 1)]
    again = done(2, True)  # fewer than the first has
    assert again[0] == ("complete", 3)
    run = tmp_path / "0" / "run.json"
    run.write_text(run.read_text().replace('"complete"', '"interrupted"'))
    (tmp_path / "0" / "checksums.json").unlink()
    assert done(2, True) == again
    assert done(math.inf, True)[0] == ("complete", 4)


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_when_a_stage_has_nothing_left_to_end_still_stops_the_study(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handlers of Ctrl-C in a run's last moments and of a stage whose workers are done raise nothing."""
    words = {"methods": "fedavg,fedprox", **plain(QUICK), "out": str(tmp_path / "c")}
    _, planned, _ = plan.plan_comparison(1, from_nested(words, "test"))
    write = training.Saving.write
    sent: list[None] = []

    def interrupt() -> None:
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))

    def write_and_interrupt(saving: Any, status: str, state: Any) -> None:
        write(saving, status, state)
        if status == "complete":
            interrupt()

    class Stop(Watch):
        ended = 0

        def event(self, event: Event) -> None:
            self.ended += event.kind == "ended"
            if self.ended == 2:
                interrupt()

    def stages() -> Stages[None]:
        yield Stage(planned, tmp_path / "c")
        raise AssertionError("a stage after Ctrl-C")

    if jobs == 1:
        monkeypatch.setattr(training.Saving, "write", write_and_interrupt)
    with pytest.raises(InterruptedStudyError) as caught:
        carry_out(stages(), jobs, Stop())
    assert [one.status for one in caught.value.runs] == ["complete", "interrupted" if jobs == 1 else "complete"]
    assert [one.status for one in api.compare(resume=tmp_path / "c").runs] == ["complete"] * 2


# -- lists and sentences -------------------------------------------------------------------------------------------


TOPICS = sorted(listing.TOPICS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("what", [*TOPICS, None])
def test_list_fits_a_terminal(
    what: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.call(["list", *([what] if what else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)
    text = "\n".join(lines)
    if what in ("methods", None):
        assert "Karimireddy et al., ICML 2020" in text
        assert re.search(
            r"^  control variates\n +method +client +server .*\n(?: +\w.*\n)*? +scaffold +1 +2 +2 +2 ",
            text,
            re.MULTILINE,
        )
        pull = r"weight of the pull to the server's model \(number >= 0"
        assert re.search(rf"^ +mu +0\.1 +{pull};\n +tuned in 0\.001 to 1, log\)$", text, re.MULTILINE)
        assert re.search(rf"^ +mu +0 +{pull}\)$", text, re.MULTILINE)
    if what in ("settings", None):
        assert re.search(
            r"^ +local\.lr +0\.1 +local step size, or the rule by which\n +every client finds its own \(number > 0\n"
            r" +or a rule such as auto; tuned in 0\.01\n +to 1, log\)$",
            text,
            re.MULTILINE,
        )
    if what in ("server", None):
        assert re.search(r"^ +beta +0\.9 +momentum \(number >= 0 and < 1; tuned in 0 to 0\.95,\n", text, re.MULTILINE)


def test_the_list_is_kept_until_the_package_changes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["list"]) == 0
    first = capsys.readouterr().out

    def fail() -> None:
        raise UserError("made anew")

    monkeypatch.setattr(listing, "make_listing", fail)
    assert cli.call(["list"]) == 0
    assert capsys.readouterr().out == first
    (kept,) = cache.rglob("list.json")
    good = kept.read_text()
    for bad in ("", "[]", "{}", good.replace('"key": "', '"key": "x')):
        kept.write_text(bad)
        assert cli.call(["list"]) == 2
    kept.write_text(good)
    monkeypatch.setattr(listing, "entry_points", lambda group: [group])  # its files are anywhere
    assert cli.call(["list"]) == 2
    assert listing.PLUGINS == plugins.GROUP


def test_what_needs_no_torch_imports_none(whole: Path, cache: Path) -> None:
    assert cli.call(["list"]) == 0
    lines: list[list[str]] = [
        ["--help"],
        ["run", "--help"],
        ["list"],
        ["report", str(whole), "--out", str(cache / "r")],
        ["list", "metods"],
        ["run", "--gpu", "0"],
        ["run", "--set", "local.learning_rate=1"],
        ["run", "--config", "no.toml"],
        ["compare", "--methods", "fedavg", "--seeds", "0-4"],
        ["tune", "--momentum", "0,1"],
        ["diagnose", "--rounds", "many"],
    ]
    code = f"""
import sys
from fedconcord.interface.cli import call
for line in {lines}:
    call(line)
    if "torch" in sys.modules:
        sys.exit(f"torch is there after {{line}}")
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_run_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    line = ["run", "--data", "digits", "--rounds", "2", "--out", str(tmp_path / "out")]
    code = f"""
import sys
from fedconcord.interface.cli import call
assert call({line}) == 0
slow = ("numba", "sklearn", "scipy.optimize", "pyarrow", "pandas", "optuna", "matplotlib", "transformers", "flwr")
sys.exit(", ".join(name for name in slow if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["run", "diagnose", "compare --methods fedavg", "tune --methods fedavg"])
def test_a_device_that_is_not_there_is_refused_before_a_word(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call([*command.split(), "--device", "cuda"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "error: engine.device is cuda, and torch finds no CUDA device here; use cpu or auto\n",
    )


def test_the_public_names() -> None:
    for name in fedconcord.__all__:
        assert getattr(fedconcord, name) is not None
    assert (fedconcord.run, fedconcord.compare) == (api.run, api.compare)
    assert fedconcord.write_report is api.write_report
    with pytest.raises(AttributeError, match="module 'fedconcord' has no attribute 'comprae'"):
        _ = fedconcord.comprae  # type: ignore[attr-defined]
    # what a type checker sees is what there is
    tree = ast.parse(Path(fedconcord.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    typed = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*typed, "__version__"} == set(fedconcord.__all__)
    assert sorted(" ".join(fedconcord._PLACES.values()).split()) == sorted(typed)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["--version"]) == 0
    assert re.fullmatch(r"fedconcord \d+\.\d+\S*\n", capsys.readouterr().out)
    assert cli.call([]) == 0
    assert "compare" in capsys.readouterr().out
    assert cli.call(["run", "--help"]) == 0
    assert "--batch-size" in capsys.readouterr().out
    assert cli.call(["predict", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Folder of a run.  [required]" in said
    assert "\\" not in said


MISTAKES = {
    "rn": "unknown command 'rn' (did you mean 'run'?); `fedconcord --help` shows what there is",
    "run --methdo x": "unknown option --methdo (did you mean '--method'?); `fedconcord run --help` shows what there is",
    # what others call it
    "run --gpu 0": "unknown option --gpu (did you mean '--device'?); `fedconcord run --help` shows what there is",
    "run --fraction 0.1": "unknown option --fraction (did you mean '--cohort'?); `fedconcord run --help` shows what "
    "there is",
    "run --validation 0.2": "unknown option --validation (did you mean '--set validation=...'?); `fedconcord run "
    "--help` shows what there is",
    "run client=10": "unexpected argument 'client=10' (did you mean '--clients 10'?); `fedconcord run --help` shows "
    "what there is",
    "run local.clip=5": "unexpected argument 'local.clip=5' (did you mean '--set local.clip=5'?); `fedconcord run "
    "--help` shows what there is",
    "run --set client=10": "unknown key 'client' (--set) (did you mean 'clients'?); `fedconcord list settings` shows "
    "all keys",
    "run --set local.learning_rate=1": "unknown key 'local.learning_rate' (--set) (did you mean 'local.lr'?); "
    "`fedconcord list settings` shows all keys",
    "run --device gpu": "engine.device must be one of auto, cpu, cuda, given 'gpu' (did you mean 'cuda'?) (--device)",
    "run --metrics f1": "unknown metric 'f1' (did you mean 'macro_f1'?); known: " + ", ".join(sorted(METRICS)),
    "run --lr 0,1": "cannot read the rule of step sizes '0,1' (did you mean 0.1?): unexpected ',' at character 2; "
    "write it as name, name(0.1) or name(alpha=0.1, n=2)",
    "run --momentum 0,1": "local.momentum must be a number >= 0 and < 1, given '0,1' (did you mean 0.1?) (--momentum)",
    "compare --methods fedavg --seeds 0-4": "seeds must be a list of integers >= 0 such as 0,1,2, given [0-4] (did you "
    "mean 0,1,2,3,4?) (--seeds)",
    "arena --seeds 1..2,5": "--seeds must be a list of integers >= 0, each once, such as 0,1,2, given '1..2,5' (did "
    "you mean 1,2,5?)",
    # before a line says what is going to be done
    "run --method scaffold --aggregate median": "scaffold(aggregate=median): the method keeps c = sum p_i c_i over all "
    "clients, which only the sum of all contributions preserves; use aggregate mean, or a method such as fedavg",
    "report": "missing argument 'PATH...'; `fedconcord report --help` shows what there is",
    "run --lr -1": "local.lr must be a number > 0 or a rule such as auto, given -1 (--lr)",
    "run --batch-size ful": "unknown batches 'ful' (did you mean 'full'?); known: disjoint, full, poisson",
    "run --seeds 0,1": "a run takes one seed, given 2 (--seeds); use fedconcord compare for several",
    "compare --methods fedavg --jobs 0": "--jobs must be an integer >= 1, given '0'",
    "compare --methods fedavg,fedavgg": None,
    "list metods": f"unknown topic 'metods' (did you mean 'methods'?); known: {', '.join(TOPICS)}",
    "run --resume nowhere": "nowhere holds no run (no run.json); give a folder that a run or comparison wrote",
    "compare --resume nowhere": "nowhere holds no comparison (no compare.json); "
    "give the folder that fedconcord compare wrote",
    "run --out taken": "the folder taken is not empty; continue what it holds with --resume taken, "
    "or give another --out",
    "run --out file": "out file is a file; give a folder",
    "run --config no.toml": "cannot read the settings no.toml: No such file or directory",
    "run --data mnist --data-dir empty": "data set 'mnist' needs the files train-images-idx3-ubyte.gz, "
    "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz in the folder HERE/empty/mnist "
    "(none of them is there); fetch them with `fedconcord data fetch mnist` or put them there from "
    "https://yann.lecun.com/exdb/mnist/, or name the folder above with --data-dir or FEDCONCORD_DATA",
    "compare --methods fedvra(gamma=[1,2])": "fedvra(gamma=[1,2]): gamma lists 2 values for 50 clients; "
    "give one number or one a client",
    "run --method fedvra(a=[1,2])": "fedvra(a=[1,2]): a lists 2 values for 50 clients; give one number or one a client",
    "report empty": None,
    # what would show itself in some round is said before the first one
    "compare --methods fedavg,vrlsgd": "vrlsgd: vrlsgd needs all 50 clients in every round, and a cohort of 10 may "
    "leave some out; use sampling uniform with cohort 50 and no availability, dropout or deadline, or a method that is "
    "made for partial participation, such as scaffold or afedpd",
    "compare --methods fedavg,fedpd --cohort 50 --sampling by_size": "fedpd: fedpd needs all 50 clients in every "
    "round, and the sampling may leave some out; use sampling uniform with cohort 50 and no availability, dropout or "
    "deadline, or a method that is made for partial participation, such as scaffold or afedpd",
    "compare --methods fedavg,losac(blocks=1000)": None,
    "compare --methods fedavg,fedhybrid --cohort 50 --engine serial": "fedhybrid: a Hessian of 55210 x 55210 entries "
    "is too large, the limit is 4096; use a smaller model such as logreg, or a method without Newton steps",
    "compare --methods fedavg,scaffold(local.solver=lbfgs)": "scaffold(local.solver=lbfgs): the method divides by "
    "||a_i||_1, which L-BFGS does not have; use local SGD",
    "compare --methods fedavg,fedavgm --server adam": "fedavgm(server=adam): the method has a server optimiser of its "
    "own, given server adam as well; leave it out, or write fedavgm(server=none)",
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.items())
def test_a_mistake_is_one_sentence(
    arguments: str,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert cli.call(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    if said is not None:
        assert captured.err == f"error: {said}\n".replace("HERE", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "taken"]


def test_a_mistake_in_a_real_process_has_no_traceback() -> None:
    code, said, complained = finish(start("run", "--rounds", "many"))
    assert (code, said) == (2, "")
    assert complained == "error: rounds must be an integer >= 1, given 'many' (--rounds)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lr", "3"], "local.lr (--lr) cannot change when {} is resumed, which keeps its settings; leave it out, "
         "or start anew without --resume"),
        (["--rounds", "2"], "{} has done 4 rounds already, given rounds 2; give 4 or more"),
    ],
)  # fmt: skip
def test_what_resume_refuses(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = api.run("fedavg", **QUICK, out=tmp_path / "r").folder
    assert cli.call(["run", "--resume", str(folder), *arguments]) == 2
    assert capsys.readouterr().err == f"error: {said.format(folder)}\n"
    assert cli.call(["compare", "--resume", str(folder)]) == 2
    assert (
        capsys.readouterr().err == f"error: {folder} holds one run; continue it with fedconcord run --resume {folder}\n"
    )


def test_resume_refuses_files_that_have_changed(tmp_path: Path) -> None:
    """Data, and other files that settings name: half of a run on each of two would be a run on neither."""
    table, devices = tmp_path / "t.csv", tmp_path / "dev.csv"
    table.write_text("a,b,y\n" + "".join(f"{k},{k * k % 7},{k % 2}\n" for k in range(60)))
    devices.write_text("client,step,up,down,latency\n" + "".join(f"{k},0.1,1,1,0.1\n" for k in range(3)))
    settings = {"data": str(table), "model": "logreg", "clients": 3, "rounds": 2, "input.label": ["y"]}
    settings |= {"devices": f"from_file({devices})"}
    one = api.run("fedavg", settings=settings, out=tmp_path / "r").folder
    two = api.compare(["fedavg"], settings=settings, out=tmp_path / "c").folder
    for key, file in (("data", table), ("devices", devices)):
        before = file.read_text()
        file.write_text(before.replace("1,", "2,", 1))
        for again, folder, run in ((api.run, one, one), (api.compare, two, two / "fedavg" / "seed-0")):
            said = f"{file} ({key}) has changed since {run} began; put it back, or start anew"
            with pytest.raises(UserError, match=re.escape(said)):
                again(resume=folder, rounds=4)  # type: ignore[operator]
        file.write_text(before)
    assert api.run(resume=one, rounds=4).status == "complete"


def test_resume_says_that_versions_have_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = api.run("fedavg", **QUICK, out=tmp_path / "r").folder
    said = f"began with torch 2.6.0, now {torch.__version__}: last bits may differ from a run that never stopped"
    for more in [], ["--rounds", "5"]:
        about = json.loads((folder / "run.json").read_text())
        about["versions"]["torch"] = "2.6.0"
        sums.write(folder, {"run.json": json.dumps(about).encode()})
        assert cli.call(["run", "--resume", str(folder), *more]) == 0
        assert (said in capsys.readouterr().out) == bool(more)  # else nothing is left to do


def test_a_run_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--data", "quadratics", "--lr", "1e6", "--rounds", "50", "--epochs", "5", "--out"]
    assert cli.call([*arguments, str(tmp_path / "r")]) == 3
    assert "diverged: a metric is no longer finite after round " in capsys.readouterr().out
    assert cli.call(["run", "--resume", str(tmp_path / "r")]) == 3  # no round brings it back
    assert records.finished(tmp_path / "r").status == "diverged"


def test_a_run_that_diverged_in_its_last_round_stays_so(tmp_path: Path) -> None:
    given = {"data": "quadratics", "clients": 4, "cohort": 4, "lr": 1e30, "steps": 2, "rounds": 1, "dtype": "float32"}
    assert api.run("fedavg", **given, out=tmp_path / "r").status == "diverged"  # type: ignore[arg-type]
    assert api.run(resume=tmp_path / "r", rounds=1).status == "diverged"


@pytest.mark.usefixtures("quick_report")
def test_the_exit_code_of_a_comparison_in_which_every_run_diverged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedconcord.interface.cli.train.say_summary", lambda *folders: None)
    arguments = ["compare", "--data", "quadratics", "--lr", "1e6", "--rounds", "50", "--epochs", "5", "--methods"]
    assert cli.call([*arguments, "fedavg,fedprox", "--out", str(tmp_path / "c")]) == 3
    assert "no run of the comparison ended with finite metrics" in capsys.readouterr().err
    assert cli.call(["compare", "--resume", str(tmp_path / "c")]) == 3
    arguments[4] = "1e-3"
    assert cli.call([*arguments, "fedavg,fedprox(local.lr=1e6)", "--out", str(tmp_path / "d")]) == 0
    for command, code in (("run", "3 the run diverged"), ("compare", "3 every run diverged or failed")):
        assert cli.call([command, "--help"]) == 0
        assert code in " ".join(capsys.readouterr().out.split())


def test_every_run_failing_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(entry: Entry, on_row: object = None) -> Finished:
        raise OSError(28, "No space left on device", str(entry.folder))

    monkeypatch.setattr(execution, "execute", fail)
    arguments = ["compare", "--methods", "fedavg,fedprox", "--data", "quadratics", "--out", str(tmp_path / "c")]
    assert cli.call(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"error: every run failed, the first because: {tmp_path / 'c' / 'fedavg' / 'seed-0'}: No space left on device\n"
    )
    assert captured.out.splitlines()[-1].startswith("[2/2] fedprox, seed 0: failed: ")
