"""A deployment over real Flower processes on this machine, for long and with faults. See docs/deployment.md.

    python benchmarks/sites.py soak --rounds 500           memory and open files of every process, from 10 % on
    python benchmarks/sites.py faults --rounds 200         SuperNodes stopped and killed at random; the model that comes

`faults` stops SuperNodes by dice (--share) for longer than the server waits, kills one with -9, and compares
the model with that of a deployment without faults. SCAFFOLD on least squares, full batches, float64: both should be the
optimum. Prints a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

JOB = """
method = "scaffold"
model = "logreg"
engine.dtype = "float64"
local.lr = 0.1
local.steps = 2
local.batch_size = "full"
input.label = "y"
input.target = "number"
"""
KINDS = {"supernode": "SuperNode", "superlink": "SuperLink"}  # a SuperNode's command has both words


def sites(folder: Path, number: int) -> list[str]:
    """Files of sites whose least squares differ."""
    draw, names = np.random.default_rng(0), []
    for k in range(number):
        x = draw.normal(0.3 * k, 1, (80, 4))
        y = x @ (np.ones(4) + 0.3 * draw.normal(size=4)) + 0.1 * draw.normal(size=80)
        lines = [",".join(f"{v:.6f}" for v in row) for row in np.column_stack([x, y])]
        (folder / f"site{k}.csv").write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
        names.append(f"site{k}.csv")
    return names


def start(folder: Path, name: str, files: list[str], rounds: int, wait: float) -> subprocess.Popen[str]:
    """A trial in a folder."""
    (folder / "job.toml").write_text(JOB)
    words = ["try", "--config", "job.toml", "--sites", ",".join(files), "--rounds", str(rounds)]
    return subprocess.Popen(
        [sys.executable, "-m", "fedconcord", "flower", *words, "--wait", str(wait), "--out", name],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def processes(place: str) -> dict[int, str]:
    """Process -> its command line, of those that name a trial's folder."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if place in line:
            found[int(path.parent.name)] = line
    return found


def kind(line: str) -> str:
    """What a process is."""
    return next((name for part, name in KINDS.items() if part in line), "worker")


def look(place: str) -> dict[str, list[float]]:
    """Kind of process -> [MB in all, open files in all, how many]; forks of the worker, which come and go, left out."""
    seen: dict[str, list[float]] = {}
    for process, line in processes(place).items():
        try:
            status = dict(row.split(":", 1) for row in Path(f"/proc/{process}/status").read_text().splitlines())
            if kind(line) == "worker" and int(status["PPid"]) in processes(place):
                continue
            memory, files = int(status["VmRSS"].split()[0]) / 1e3, len(os.listdir(f"/proc/{process}/fd"))
        except (OSError, KeyError):
            continue
        one = seen.setdefault(kind(line), [0.0, 0.0, 0.0])
        seen[kind(line)] = [one[0] + memory, one[1] + files, one[2] + 1]
    return seen


def rounds_of(lines: Iterator[str]) -> Iterator[int]:
    """Rounds as the command tells them; other lines are passed on."""
    for line in lines:
        if line.startswith("round "):
            yield int(line.split()[1])
        else:
            print(line, end="", file=sys.stderr, flush=True)


def soak(folder: Path, number: int, rounds: int) -> dict[str, object]:
    """Memory and open files after a tenth of the rounds and at the end."""
    process, looks = start(folder, "run", sites(folder, number), rounds, 60), {}
    place, began = str(folder / "run.flower"), time.monotonic()
    assert process.stdout is not None
    for done in rounds_of(process.stdout):
        if done in (rounds // 10, rounds // 2, rounds - 1):
            looks[done] = look(place)
            print(done, looks[done], file=sys.stderr, flush=True)
    code = process.wait()
    return {"exit": code, "rounds": rounds, "seconds": time.monotonic() - began, "MB, files, processes": looks}


def faults(folder: Path, number: int, rounds: int, share: float, wait: float) -> dict[str, object]:
    """The model with SuperNodes that are stopped and killed against the one without."""
    files = sites(folder, number)
    process, draw = start(folder, "faulty", files, rounds, wait), random.Random(0)
    place, began, stops, kills = str(folder / "faulty.flower"), time.monotonic(), 0, 0
    assert process.stdout is not None
    for done in rounds_of(process.stdout):
        nodes = sorted(p for p, line in processes(place).items() if kind(line) == "SuperNode")
        for node in nodes:
            if draw.random() < share / 2:  # away for about two rounds
                os.kill(node, signal.SIGSTOP)
                later = f"sleep {1.5 * wait}; kill -CONT {node}"
                subprocess.Popen(["sh", "-c", later], stderr=subprocess.DEVNULL)
                stops += 1
        if done == rounds // 2 and nodes:
            os.kill(nodes[0], signal.SIGKILL)
            kills += 1
    code, seconds = process.wait(), time.monotonic() - began
    whole = start(folder, "whole", files, rounds, 60)
    assert whole.stdout is not None
    for _ in rounds_of(whole.stdout):
        pass
    whole.wait()
    models = [load_file(folder / name / "model.safetensors") for name in ("faulty", "whole")]
    difference = max(float(np.abs(a - models[1][key]).max()) for key, a in models[0].items())
    said = json.loads((folder / "faulty" / "run.json").read_text())
    return {
        "exit": code,
        "rounds": rounds,
        "seconds": seconds,
        "stopped": stops,
        "killed": kills,
        "left out": said.get("wire", {}).get("clients_lost"),
        "largest difference of the models": difference,
    }


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["soak", "faults"])
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--wait", type=float, default=4.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if given.what == "soak":
            print(json.dumps(soak(folder, given.sites, given.rounds)))
        else:
            print(json.dumps(faults(folder, given.sites, given.rounds, given.share, given.wait)))


if __name__ == "__main__":
    main()
