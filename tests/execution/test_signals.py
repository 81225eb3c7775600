"""Signals to real processes whose rounds are computed on threads: nothing is lost and nothing aborts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROC = Path("/proc/self/stat").exists()
# a round takes about a second, so that signals meet its threads; tables and checkpoint are written after each
JOB = (
    *("--data", "digits", "--model", "2nn", "--clients", "8", "--cohort", "8", "--steps", "60", "--batch-size", "200"),
    *("--rounds", "50", "--set", "engine.threads=2", "--set", "engine.workers=2", "--set", "engine.chunk=2"),
    *("--set", "checkpoint.every=0"),
)


def started(out: Path, *options: str) -> subprocess.Popen[str]:
    """A comparison in the middle of a round of its first run."""
    command = [sys.executable, "-m", "fedconcord", "compare", "--methods", "fedavg,scaffold", *JOB, *options]
    process = subprocess.Popen([*command, "--out", str(out)], stdout=-1, stderr=-1, text=True)
    for _ in range(6000):
        assert process.poll() is None, process.communicate()
        table = out / "fedavg" / "seed-0" / "metrics.csv"
        if table.exists() and "\n0," in table.read_text():
            return process
        time.sleep(0.01)
    raise AssertionError("it never came to a round")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, complained = process.communicate(timeout=120)
    return process.returncode, complained


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    stats = [stat.read_text() for stat in Path("/proc").glob("[0-9]*/stat")]
    return [int(text.split()[0]) for text in stats if int(text.rpartition(")")[2].split()[1]) == process.pid]


@pytest.mark.slow
def test_sigterm_sent_twice_is_one_gentle_stop(tmp_path: Path) -> None:
    """As `timeout` and schedulers do: the round ends, everything is written."""
    process = started(tmp_path / "c")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    code, complained = ended(process)
    again = f"fedconcord compare --resume {tmp_path / 'c'}"
    assert complained == f"interrupted: {tmp_path / 'c'} is usable as it is; continue with: {again}\n"
    assert code == 130
    run = tmp_path / "c" / "fedavg" / "seed-0"
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert (run / "checkpoint.safetensors").exists()
    assert (run / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.skipif(not PROC, reason="finds processes in /proc")
def test_sigterm_to_the_workers_of_a_comparison_too(tmp_path: Path) -> None:
    """As a scheduler sends it to every process of a job."""
    process = started(tmp_path / "c", "--jobs", "2")
    workers = workers_of(process)
    assert len(workers) == 2
    for number in (*workers, process.pid):
        os.kill(number, signal.SIGTERM)
    code, complained = ended(process)
    assert (code, complained.count("\n")) == (130, 1)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("c/*/*/run.json")]
    assert {run["status"] for run in found} == {"interrupted"}
    assert (tmp_path / "c" / "fedavg" / "seed-0" / "checkpoint.safetensors").exists()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_an_interrupt_that_a_library_swallows_ends_the_run_before_its_first_round(tmp_path: Path) -> None:
    """As callbacks of compilers do, called from C: their exceptions are printed, and forgotten."""
    program = (
        "import contextlib, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a job in a shell's background ignores
        "from fedconcord.interface.cli.main import main\n"
        "from fedconcord.study.runs import execution\n"
        "load = execution.options_of\n"
        "def swallowing(*given):\n"
        "    with contextlib.suppress(KeyboardInterrupt):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return load(*given)\n"
        "execution.options_of = swallowing\n"
        "sys.argv = ['fedconcord', 'run', '--data', 'digits', '--rounds', '3', '--out', 'r']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert json.loads((tmp_path / "r" / "run.json").read_text())["status"] == "interrupted"
