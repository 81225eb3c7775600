"""A deployment over real Flower processes on this machine, for long and with faults. See docs/deployment.md.

    python benchmarks/sites.py soak --rounds 500           memory and open files of every process, twenty times
    python benchmarks/sites.py faults --rounds 200         sites lost in every round, SuperNodes and the server killed

`faults` stops each SuperNode by dice (--share) in every round, so that its answer does not come in time. After a
quarter of the rounds one is killed with -9; after half of them the command is, and with it the server and all sites,
and the trial is resumed; after three quarters the last site is stopped for good. SCAFFOLD on least squares, full
batches, float64: it should come to the optimum, and the server's control variate should be the mean of the sites'.
Prints a JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedconcord.execution.messages import codec
from fedconcord.execution.rows import tensors

JOB = """
method = "scaffold"
model = "logreg"
engine.dtype = "float64"
local.lr = 0.2
local.steps = 2
local.batch_size = "full"
eval.every = 10
input.label = "y"
input.target = "number"
"""
KINDS = {"grid supernode": "SuperNode", "grid superlink": "SuperLink"}


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


def start(folder: Path, files: list[str], rounds: int, wait: float, resume: bool = False) -> subprocess.Popen[str]:
    """A trial in the folder's `run`, begun or resumed."""
    (folder / "job.toml").write_text(JOB)
    words = ["--resume", "run"] if resume else ["--config", "job.toml", "--out", "run"]
    words += ["--sites", ",".join(files), "--rounds", str(rounds), "--wait", str(wait)]
    return subprocess.Popen(
        [sys.executable, "-m", "fedconcord", "flower", "try", *words],
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


def look(place: str, command: int, server: set[int]) -> dict[str, tuple[float, int]]:
    """Process -> (MB, open files). Forks for one message, which come and go, are left out.

    Args:
        server: forks for a task in the last look; who is there still is the server's half, and the set is renewed.
    """
    found, tasks, count = {command: "command"} | processes(place), set[int](), Counter[str]()
    workers = {process for process, line in found.items() if process != command and kind(line) == "worker"}
    above = {process: int(status_of(process).get("PPid", "0")) for process in workers}
    seen = {}
    for process, line in sorted(found.items()):
        name = line if process == command else kind(line)
        if above.get(process) in workers:
            name = "asks for tasks"
            if above.get(above[process]) in workers:
                tasks.add(process)
                name = "server's half"
                if process not in server:
                    continue
        if name in ("SuperNode", "asks for tasks"):
            count[name] += 1
            name = f"{name} {count[name]}"
        try:
            memory, files = int(status_of(process)["VmRSS"].split()[0]) / 1e3, len(os.listdir(f"/proc/{process}/fd"))
        except (OSError, KeyError):  # it has just ended
            continue
        seen[name] = (round(memory, 1), files)
    server.clear()
    server.update(tasks)
    return seen


def status_of(process: int) -> dict[str, str]:
    """What the system says of a process; nothing of one that has ended."""
    try:
        return dict(row.split(":", 1) for row in Path(f"/proc/{process}/status").read_text().splitlines())
    except OSError:
        return {}


def rounds_of(lines: Iterator[str]) -> Iterator[int]:
    """Rounds as the command tells them; other lines are passed on."""
    for line in lines:
        if line.startswith("round "):
            yield int(line.split()[1])
        else:
            print(line, end="", file=sys.stderr, flush=True)


def soak(folder: Path, number: int, rounds: int) -> dict[str, object]:
    """Memory and open files of every process after each tenth of the rounds."""
    process, looks, server = start(folder, sites(folder, number), rounds, 60), {}, set[int]()
    place, began = str(folder / "run.flower"), time.monotonic()
    assert process.stdout is not None
    for done in rounds_of(process.stdout):
        if done % max(rounds // 20, 1) == 0:
            looks[done] = look(place, process.pid, server)
            print(done, round(time.monotonic() - began), looks[done], file=sys.stderr, flush=True)
    code = process.wait()
    return {"exit": code, "rounds": rounds, "seconds": time.monotonic() - began, "MB, open files": looks}


def faults(folder: Path, number: int, rounds: int, share: float, wait: float) -> dict[str, object]:
    """How far from the optimum a federation ends whose sites and server fail."""
    files, draw, counts = sites(folder, number), random.Random(0), {"stopped": 0, "SuperNodes killed": 0}
    place, began, gone = str(folder / "run.flower"), time.monotonic(), f"{Path(files[-1]).stem}.key"
    process, resumed, left = start(folder, files, rounds, wait), False, False
    while True:
        assert process.stdout is not None
        for done in rounds_of(process.stdout):
            nodes = {p: line for p, line in processes(place).items() if kind(line) == "SuperNode"}
            if done == rounds // 4 and nodes:
                send(min(nodes), signal.SIGKILL)
                counts["SuperNodes killed"] += 1
            if done >= rounds // 2 and not resumed:
                process.kill()
                break
            left = left or done >= 3 * rounds // 4
            away = {node for node, line in nodes.items() if draw.random() < share or (left and gone in line)}
            away -= {min(nodes)} if nodes.keys() == away != set() else set()  # a model that nobody judges ends the run
            counts["stopped"] += len(away)
            for node in nodes:
                send(node, signal.SIGSTOP if node in away else signal.SIGCONT)
        code = process.wait()
        if code != -signal.SIGKILL:
            break
        process, resumed = start(folder, files, rounds, wait, resume=True), True
    if code:
        sys.exit(f"the trial ended with exit code {code}; with --wait {wait:g} a busy machine's sites may be too slow")
    seconds, said = time.monotonic() - began, json.loads((folder / "run" / "run.json").read_text())
    asked, missed = (sum(site[name] for site in said["sites"]) for name in ("asked", "missed"))
    model, best = (flat(folder / name / "model.safetensors") for name in ("run", optimum(folder, files)))
    held, rows = controls(folder, files)
    return {
        "exit": code,
        "rounds": said["rounds_done"],
        "seconds": seconds,
        **counts,
        "server killed and resumed": 1,
        "questions": asked,
        "without an answer": missed,
        "refused": [site["refused"] for site in said["sites"] if site["refused"]],
        "distance to the optimum": float(np.linalg.norm(model - best)),
        "norm of the optimum": float(np.linalg.norm(best)),
        "server's control variate - mean of the sites'": float(np.linalg.norm(held - rows.mean(0))),
        "norms of the sites'": [float(norm) for norm in np.linalg.norm(rows, axis=1)],
    }


def send(process: int, what: signal.Signals) -> None:
    """A signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, what)


def flat(path: Path) -> np.ndarray:
    """All numbers of a model."""
    return np.concatenate([leaf.ravel() for _, leaf in sorted(load_file(path).items())])


def optimum(folder: Path, files: list[str]) -> str:
    """A simulation on all sites' rows in one table, until nothing moves; the name of its folder."""
    rows = [[Path(name).stem, line] for name in files for line in (folder / name).read_text().splitlines()[1:]]
    (folder / "all.csv").write_text("\n".join(["site,a,b,c,d,y", *(",".join(row) for row in rows)]) + "\n")
    (folder / "all.toml").write_text(f'{JOB}cohort = {len(files)}\ninput.client = "site"\nvalidation = "none"\n')
    words = ["run", "--config", "all.toml", "--data", "all.csv", "--rounds", "2000", "--set", "eval.every=2000"]
    command = [sys.executable, "-m", "fedconcord", *words, "--out", "best"]
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return "best"


def controls(folder: Path, files: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """SCAFFOLD's control variates: the server's [d], and the sites' [N, d] after their last replies that counted."""
    found, _ = tensors.read(folder / "run" / "checkpoint.safetensors")
    frame = codec.read(found["rows.sites"].numpy().tobytes())
    counted = codec.read(frame.tensors["ledger"].numpy().tobytes()).fields["counted"]
    last = {i: (round, mark) for i, round, mark in counted}
    rows = []
    for i, name in enumerate(files):
        (path,) = (folder / "run.flower" / "sites" / Path(name).stem).glob("*/row.safetensors")
        kept, _ = tensors.read(path)
        phase = "pending" if tuple(kept["mark"][:2].tolist()) == last[i] else "row"
        rows.append(kept[f"{phase}.c"].numpy())
    return found["server.c"].numpy(), np.stack(rows)


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
