"""Several real processes share the rounds: the serial engine's results, lost processes, resuming with others."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from ranks import drawn, facts, jobs
from safetensors.torch import load_file
from test_engines import run

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.engines.team import Alone
from fedconcord.execution.job import start
from fedconcord.interface import api
from fedconcord.support.errors import UserError

HERE = Path(__file__).parents[1]
TIMEOUT = 240  # seconds after which a test gives up on a process


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets; the processes stay on this machine."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    path = os.pathsep.join(map(str, (HERE.parent / "src", HERE, HERE / "execution", HERE / "federation")))
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return os.environ | place | ranks | {"PYTHONPATH": path}


def launch(size: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """Python with these arguments, as processes of one job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "error::UserWarning", *map(str, arguments)]
    return [
        subprocess.Popen(
            command, env=environment(rank, size, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]


class Ended(NamedTuple):
    code: int
    said: str
    complained: str


def ends(processes: list[subprocess.Popen[str]]) -> list[Ended]:
    """How they end; none outlives the test."""
    try:
        found = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Ended(process.returncode, *texts) for process, texts in zip(processes, found, strict=True)]


# -- the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> dict[str, dict[str, torch.Tensor]]:
    """What the serial engine ends with."""
    return {name: facts(run(replace(job, engine=Serial()))) for name, job in jobs().items()}


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))])
def test_processes_together_equal_the_serial_engine(
    size: int, reference: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    for rank, ended in enumerate(ends(launch(size, HERE / "execution" / "ranks.py", tmp_path))):
        assert (ended.code, ended.complained) == (0, ""), f"rank {rank}"
    found, sums, plans = zip(*(torch.load(tmp_path / f"{size}-{r}.pt") for r in range(size)), strict=True)
    assert [name for name, value in reference.items() if len(value["refused"])] == ["broken", "broken, prelude"]
    for name, job in jobs().items():
        ours, wanted = found[0][name], reference[name]
        assert ours.keys() == wanted.keys(), name
        tolerance = {"float32": 1e-5, "lbfgs": 1e-9}.get(name, 1e-12)
        for key, value in wanted.items():
            exact = key in ("counts", "refused", "rows.ids")
            largest = max(1.0, float(value.double().abs().max())) if value.numel() else 1.0
            difference = float((ours[key].double() - value.double()).abs().max()) if value.numel() else 0.0
            assert ours[key].shape == value.shape, (name, key)
            assert difference <= (0 if exact else tolerance * largest), (name, key, difference)
        wanted_draws = drawn(job)
        for other in range(size):
            assert plans[other][name] == wanted_draws, (name, other)
            plain = 4 * (2 if "mimesvrg" in job.algorithm.identity.method else 1) + (name == "losac")
            told = bool(len(wanted["refused"]))  # which processes agree on, and sum again
            assert (sums[other][name] > plain) if told else (sums[other][name] == plain), (name, other)
            for key, value in found[other][name].items():  # replicas do not drift apart
                if key.startswith("server."):
                    assert torch.equal(value, ours[key]), (name, other, key)
    for key, value in found[0]["again"].items():  # the same processes give the same bits
        assert torch.equal(value, found[0]["float32"][key]), key
    assert {each["refused"] for each in sums} == {"rank 0 refuses"}


class Crowd(NamedTuple):
    """A team that is only counted."""

    size: int
    rank: int = 0


def test_more_processes_than_clients_are_refused() -> None:
    job = replace(jobs()["fedavg"], engine=Stacked(None, team=Crowd(9)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="9 processes cannot share 8 clients; start at most 8"):
        start(job)


def test_alone_is_a_team_of_one() -> None:
    assert Serial().team == Stacked().team == Alone(rank=0, size=1)


# -- the command ---------------------------------------------------------------------------------------------------

JOB = (
    *("--data", "synthetic(0.5,0.5)", "--model", "logreg", "--clients", "12", "--cohort", "4", "--epochs", "2"),
    *("--rounds", "60", "--dtype", "float64", "--checkpoint-every", "0", "--set", "engine.chunk=2"),
)
COMMAND = ("-m", "fedconcord")
TABLE = ("rows.slots", "rows.sums", "rows.files")
LOST = "another process of this job has ended, or was silent for"


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="RANK is not set; start it as in torchrun --nproc-per-node 2 -m fedconcord"):
        api.run("fedavg", engine="distributed", out=tmp_path / "a")
    with pytest.raises(UserError, match="one run after another, given jobs 2"):
        api.compare(["fedavg", "fedprox"], engine="distributed", out=tmp_path / "a", jobs=2)
    assert not (tmp_path / "a").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the stacked engine that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    (ended,) = ends(launch(1, *COMMAND, "run", "--method", "scaffold", *JOB, "--out", out))
    assert (ended.code, ended.complained) == (0, "")
    return out


def at_round(processes: list[subprocess.Popen[str]], folder: Path, round: int) -> None:
    """Wait until the run has come this far; with a checkpoint every round."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        saved = folder / "run.json"
        if saved.exists() and json.loads(saved.read_text())["rounds_done"] >= round:
            return
        time.sleep(0.005)
    raise AssertionError(f"no round {round}: {ends(processes)}")


@pytest.mark.slow
@pytest.mark.parametrize("store", ["disk", "memory"])
def test_stopped_lost_and_silent_processes_and_another_number_of_them(store: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    engine = ("--engine", "distributed", "--set", f"engine.store={store}")

    two = launch(2, *COMMAND, "run", "--method", "scaffold", *JOB, *engine, "--out", out)
    at_round(two, out, 5)
    two[1].send_signal(signal.SIGTERM)  # at one of them: all end after the same round
    first, second = ends(two)
    assert (first.code, second.code) == (130, 130)
    again = f"torchrun --nproc-per-node 2 -m fedconcord run --resume {out}"
    assert first.complained == f"interrupted: {out} is usable as it is; continue with: {again}\n"
    assert (second.said, second.complained) == ("", "")
    stopped = json.loads((out / "run.json").read_text())
    assert stopped["status"] == "interrupted"

    three = launch(3, *COMMAND, "run", "--resume", out)
    at_round(three, out, stopped["rounds_done"] + 5)
    three[2].kill()
    lost = ends(three)
    assert [ended.code for ended in lost] == [1, 1, -signal.SIGKILL]
    assert lost[0].complained.startswith(f"error: {LOST}")
    assert lost[1].complained.startswith(f"rank 1: error: {LOST}")
    assert [len(ended.complained.splitlines()) for ended in lost[:2]] == [1, 1]
    killed = json.loads((out / "run.json").read_text())["rounds_done"]

    two = launch(2, *COMMAND, "run", "--resume", out, "--set", "engine.timeout=3")
    at_round(two, out, killed + 5)
    os.kill(two[0].pid, signal.SIGSTOP)  # a machine that hangs
    try:
        (silent,) = ends(two[1:])
    finally:
        two[0].kill()
        two[0].communicate(timeout=TIMEOUT)
    assert silent.code == 1
    assert silent.complained.startswith(f"rank 1: error: {LOST} 3 s (engine.timeout)")

    (ended,) = ends(launch(1, *COMMAND, "run", "--resume", out, "--engine", "stacked"))
    assert (ended.code, ended.complained) == (0, "")
    assert_close(whole, out)
    kept = [path.name for path in whole.iterdir()] + ["rows.bin"] * (store == "disk")  # and nobody else's rows
    assert sorted(path.name for path in out.iterdir()) == sorted(kept)


SLOW = """
import sys, time
from fedconcord.interface import cli
from fedconcord.execution.run import final_model as answer
judge = answer.personalised
answer.personalised = lambda *given: (time.sleep(5), judge(*given))[1]
sys.exit(cli.call(sys.argv[1:]))
"""


@pytest.mark.slow  # longer than a timeout
def test_the_others_wait_while_rank_0_judges_the_answer(tmp_path: Path) -> None:
    """For longer than engine.timeout: the time is that of the real silence. Then both know how the run ended."""
    out = tmp_path / "run"
    more = ("engine.timeout=3", "validation=0.1", "eval.personalise=finetune(steps=1)", "local.steps=1")
    settings = [part for setting in more for part in ("--set", setting)]
    short = (
        "--method",
        "fedavg",
        "--data",
        "synthetic(clients=4)",
        "--model",
        "logreg",
        "--cohort",
        "4",
        "--rounds",
        "2",
    )
    found = ends(launch(2, "-c", SLOW, "run", *short, "--engine", "distributed", *settings, "--out", out))
    assert [(ended.code, ended.complained) for ended in found] == [(0, "")] * 2
    assert json.loads((out / "run.json").read_text())["status"] == "complete"
    assert "personalised" in (out / "clients.csv").read_text()


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """What the checkpoint of one process with SCAFFOLD holds, its rows too where they lie in their own file."""
    held = load_file(folder / "checkpoint.safetensors")
    if "rows.slots" not in held:
        return held
    slots, width = held["rows.slots"], len(held["server.x"])  # of two pages each
    file = torch.frombuffer(bytearray((folder / "rows.bin").read_bytes()[4096:]), dtype=torch.float64)
    return {"rows.c": file.view(-1, 1024)[slots, :width]} | {k: held[k] for k in held if k not in TABLE}


def assert_close(whole: Path, other: Path) -> None:
    """The same tables, the same model and what a checkpoint brings back, to 1e-12."""
    for wanted, found in (
        (load_file(whole / "model.safetensors"), load_file(other / "model.safetensors")),
        (saved(whole), saved(other)),
    ):
        assert wanted.keys() == found.keys()
        for key, value in wanted.items():
            assert torch.allclose(found[key], value, rtol=1e-12, atol=1e-12), key
    assert_close_metrics(whole, other)


def assert_close_metrics(whole: Path, other: Path) -> None:
    tables = [list(csv.DictReader((folder / "metrics.csv").read_text().splitlines())) for folder in (whole, other)]
    for ours, theirs in zip(*tables, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert float(ours[name]) == pytest.approx(float(value), rel=1e-12, abs=1e-12), name


def agent(*arguments: object) -> subprocess.Popen[str]:
    """Python with these arguments; what it starts stays on this machine."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(HERE.parent / "src"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_machines_are_the_serial_engine(tmp_path: Path) -> None:
    """An agent of torchrun each, as on two machines that see one folder; node 0 speaks and writes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{free.getsockname()[1]}")
    run = (*COMMAND, "run", "--method", "scaffold", *JOB)
    two = (*run, "--engine", "distributed", "--set", "engine.store=disk", "--out", tmp_path / "two")
    first, second = ends(
        [agent("-m", "torch.distributed.run", *place, "--node-rank", str(node), *two) for node in (0, 1)]
    )
    assert (first.code, second.code) == (0, 0), (first, second)
    assert first.said.splitlines()[-1] == f"results: {tmp_path / 'two'}"
    assert second.said == ""
    rows = sorted(path.name for path in (tmp_path / "two").glob("rows*"))
    assert rows == ["rows-0-of-2.bin", "rows-1-of-2.bin"]
    (serial,) = ends([agent(*run, "--engine", "serial", "--out", tmp_path / "serial")])
    assert serial.code == 0, serial
    assert_close_metrics(tmp_path / "serial", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("clock", [(), ("--set", "devices=lognormal(1.0)", "--set", "clock=asynchronous(7)")])
def test_kill_9_of_one_process_or_all_and_the_same_bytes(clock: tuple[str, ...], tmp_path: Path) -> None:
    """Rows may be ahead of the checkpoint, in one file or in both, when processes die at any moment."""
    more = ("--engine", "distributed", "--set", "engine.store=disk", "--rounds", "80", "--eval-every", "20", *clock)
    run, parts = (*COMMAND, "run", "--method", "scaffold", *JOB, *more), tmp_path / "parts"
    for ended in ends(launch(2, *run, "--out", tmp_path / "whole")):
        assert ended.code == 0, ended
    again = (*COMMAND, "run", "--resume", parts)
    for command, round, dead in (((*run, "--out", parts), 15, (0, 1)), (again, 30, (1,)), (again, 45, (0,))):
        two = launch(2, *command)
        at_round(two, parts, round)
        for rank in dead:
            two[rank].kill()
        assert [ended.code for ended in ends(two)] == [-signal.SIGKILL if rank in dead else 1 for rank in (0, 1)]
    for ended in ends(launch(2, *again)):
        assert ended.code == 0, ended
    for file in ("metrics.csv", "model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (parts / file).read_bytes(), file


@pytest.mark.slow
def test_torchrun_compares(tmp_path: Path) -> None:
    """The command as its users type it: the first process alone speaks and writes."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (*torchrun, *COMMAND, "compare", "--methods", "fedavg,scaffold", *JOB, "--engine", "distributed")
    (ended,) = ends([agent(*command, "--rounds", "6", "--out", tmp_path / "c")])
    assert ended.code == 0, ended.complained
    assert ended.said.splitlines()[-1] == f"report: {tmp_path / 'c' / 'report.html'}"
    assert ended.said.count("complete, 6 rounds") == 2
    for method in ("fedavg", "scaffold"):
        saved = json.loads((tmp_path / "c" / method / "seed-0" / "run.json").read_text())
        assert (saved["status"], saved["rounds_done"]) == ("complete", 6)
