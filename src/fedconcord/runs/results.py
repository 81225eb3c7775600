"""A run and its folder: metrics, times, checkpoint and model, all usable at any moment.

run.json           what was run, with which versions, and how far it came
metrics.csv        a row an evaluated round; no times in it, so that the same run writes the same bytes
clients.csv        a row a client: the final model on its samples (`fairness`); fairness.csv the spread over clients
timing.csv         seconds of each round, training alone
partition.csv      samples of each class at each client
checkpoint.safetensors
model.safetensors  the run's answer: the last model, with early stopping the best; model.json says what it is of
rows.bin           the clients' state, where it lives on disk; the checkpoint says what is in it
"""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedconcord
from fedconcord.basis import files
from fedconcord.basis.errors import UserError
from fedconcord.engines import Stacked
from fedconcord.federation.schedule import Schedule
from fedconcord.jobs import Job, Row, State, checkpoint, evaluate, resolved, row_bytes, state_bytes, train
from fedconcord.runs import lock
from fedconcord.runs.final import NOTHING, Final, Wanted

TABLES = ("metrics.csv", "timing.csv", "partition.csv", "clients.csv", "fairness.csv")
COUNTERS = ("bytes_up", "bytes_down", "gradient_steps")
WRITE_EVERY = 2.0  # seconds between writes of the tables while a run goes on


def versions() -> dict[str, str]:
    """Versions that a reader of the results needs."""
    return {
        "fedconcord": fedconcord.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def execute(
    job: Job,
    folder: Path,
    *,
    rounds: int,
    info: Mapping[str, Any],
    eval_every: int = 1,
    checkpoint_every: float = 30.0,
    resume: bool = False,
    on_row: Callable[[Row], None] | None = None,
    wanted: Wanted = NOTHING,
) -> str:
    """Train in a folder and return the status: `complete`, `diverged` (a metric is not finite) or `interrupted`.

    Ctrl-C finishes the round that is running, writes everything and returns `interrupted`; a second one stops at once,
    and the folder holds the last checkpoint. `resume` goes on from the checkpoint to the same bits as a run that never
    stopped; a folder without a checkpoint starts anew. With more rounds than before it goes on to what a run of so many
    rounds writes; where that would answer with a model that is no longer there, it starts anew. A run that stops early
    is `complete`, with the reason as `stopped` in run.json; its model is the best one.

    Of several processes all call this with the same job; rank 0 evaluates and writes, and Ctrl-C at any of them stops
    all after the same round.

    Args:
        info: put into run.json as it is (method, label, seed, configuration ...).
        checkpoint_every: seconds.

    Raises:
        UserError: another process writes in the folder, or it holds a run that is not to be resumed.
    """
    with lock.held(folder, job.engine.team):
        if not resume:
            job.engine.team.tell(lambda: refuse_taken(folder))
        if job.engine.team.rank == 0:
            _sweep(folder)
        return _execute(job, folder, rounds, info, eval_every, checkpoint_every, resume, on_row, wanted)


def refuse_taken(folder: Path) -> str:
    """While this process prepared its runs another one may have begun and ended in the folder."""
    if any((folder / name).exists() for name in ("run.json", "compare.json")):
        raise UserError(
            f"the folder {folder} is not empty; continue what it holds with --resume {folder}, or give another --out"
        )
    return ""


def _sweep(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote; nobody else writes these files now."""
    for name in ("checkpoint.safetensors", "model.safetensors", "model.json", "run.json", *TABLES):
        for left in folder.glob(f".{name}.*.tmp"):
            left.unlink(missing_ok=True)


def _execute(
    job: Job,
    folder: Path,
    rounds: int,
    info: Mapping[str, Any],
    eval_every: int,
    checkpoint_every: float,
    resume: bool,
    on_row: Callable[[Row], None] | None,
    wanted: Wanted,
) -> str:
    before = read_description(folder) if resume else {}
    if isinstance(job.engine, Stacked) and "chunk" in before:
        # chosen anew on other threads they might differ, and so might the last bits
        job = replace(job, engine=replace(job.engine, chunk=before["chunk"], workers=before.get("workers", 1)))
    job = resolved(placed(job, folder))
    grows_to = refuse_too_much(job, rounds)
    team = job.engine.team
    lead = team.rank == 0  # writes all files
    saved = folder / "checkpoint.safetensors"
    state = checkpoint.read(saved, job) if resume and saved.exists() else None
    metrics, timing = _tables(folder, state.round) if state is not None else ([], [])
    final = Final(job, folder, wanted)
    if state is not None:
        found, metrics = metrics, _due(metrics, eval_every, rounds)
        if final.lost(found, metrics):
            state, metrics, timing = None, [], []
        else:
            rows = _table(folder / "fairness.csv", state.round) if (folder / "fairness.csv").exists() else []
            final.resume(metrics, rows, state.round)
    team.any()  # all have read what there is
    if lead and state is None:
        saved.unlink(missing_ok=True)  # tables that begin again must not meet it
    if lead and state is None:
        _write_partition(folder / "partition.csv", job)
        if wanted.card is not None:
            files.write_json(folder / "model.json", wanted.card)
    latest = state
    timed = isinstance(job.schedule, Schedule) and job.schedule.devices is not None
    counters = (*COUNTERS, "simulated_seconds") if timed else COUNTERS
    status = "running"
    written = -math.inf
    checkpointed = time.monotonic()

    def keep(now: State) -> None:
        nonlocal latest
        latest = now

    def write(status: str) -> None:
        if not lead:
            return
        done = latest.round if latest is not None else 0
        _write_tables(folder, metrics, timing)
        about = _description(job, info, status, rounds, done, grows_to)
        if latest is not None and (wire := job.engine.report(latest.store)):
            about["wire"] = wire
        files.write_json(folder / "run.json", about | final.description())

    def save() -> None:
        write(status)
        if latest is not None:
            if lead:
                final.write(latest)
            checkpoint.write(saved, latest, job)

    write(status)
    if any(not _finite(row) for row in metrics):
        status = "diverged"
    over = status == "diverged" or final.stopped is not None
    rounds_left = train(job, 0 if over else rounds, state=state, eval_every=eval_every, on_state=keep)
    if state is not None and state.round == rounds and not over and all(int(row["round"]) < rounds for row in metrics):
        rounds_left = iter([_last(job, state, timing.pop())])  # interrupted after a round that is only now the last
    with _deferred_interrupt() as interrupted:
        for row in rounds_left:
            if row.round > 0:
                timing.append({"round": row.round, "seconds": row.seconds})
            if row.metrics is not None:
                metrics.append({"round": row.round} | row.metrics | {name: getattr(row, name) for name in counters})
            if lead and on_row is not None:
                on_row(row)
            diverged = row.metrics is not None and not _finite(row.metrics)
            if lead and not diverged:
                final.see(row, latest)
            now = time.monotonic()
            late = lead and now - checkpointed > checkpoint_every
            diverged, enough, stop, due = team.any(diverged, final.stopped is not None, interrupted.is_set(), late)
            if diverged or enough or stop:
                status = "diverged" if diverged else status if enough else "interrupted"
                break
            if due:
                save()
                checkpointed = written = time.monotonic()
            elif now - written > WRITE_EVERY:
                write(status)
                written = time.monotonic()
        if status == "running":
            status = "complete"
            if latest is not None:
                team.tell(partial(final.judge, latest))  # the others wait for as long as it takes
        save()
    return status


def placed(job: Job, folder: Path) -> Job:
    """The same job, whose rows on disk lie in the run's folder.

    Raises:
        UserError: several processes share the rounds: a checkpoint that any number of them resumes holds the rows.
    """
    if job.storage.kind == "disk" and job.engine.team.size > 1:
        raise UserError(
            "engine.store=disk is for one process; leave it out, as each of several keeps its own clients' rows alone"
        )
    return replace(job, storage=replace(job.storage, path=folder / "rows.bin"))


def refuse_too_much(job: Job, rounds: int) -> int:
    """The bytes that the clients' rows may grow to; what cannot fit is refused before round 0, not at round 300."""
    need, (have, where) = state_bytes(job, rounds), room(job)
    disk, half = job.storage.kind == "disk", job.storage.rows != "full"
    again = not disk and job.problem.objective.device.type == "cpu"  # a checkpoint sorts a copy of the rows
    if need * (1 + again) > have:
        ways = ("" if disk else "set engine.store=disk, ") + ("" if half else "set engine.rows=bfloat16, ")
        raise UserError(
            f"the clients' state may grow to {size(need)} ({size(row_bytes(job))} a client)"
            f"{', twice that in a checkpoint,' if again else ''} and {where} has {size(have)}; {ways}"
            "use a smaller model, fewer clients or rounds, or a method without client state"
        )
    return need


def room(job: Job) -> tuple[float, str]:
    """Bytes for clients' rows where they will live, and where that is: memory in all, or what is free of the disk."""
    if job.storage.kind == "disk":
        path = job.storage.path or Path(tempfile.gettempdir()) / "rows.bin"
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        return shutil.disk_usage(folder).free + (path.stat().st_size if path.exists() else 0), f"the disk of {folder}"
    if job.problem.objective.device.type == "cuda":
        return torch.cuda.mem_get_info(job.problem.objective.device)[1], "the GPU"
    if not hasattr(os, "sysconf"):  # not POSIX: nobody knows
        return math.inf, "this machine"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine"


def size(count: float) -> str:
    """Bytes as people write them: 1.5 GiB."""
    unit = min(max(int(math.log2(max(count, 1)) // 10), 0), 4)
    return f"{count / 2 ** (10 * unit):.{0 if unit == 0 else 1}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _description(
    job: Job, info: Mapping[str, Any], status: str, rounds: int, done: int, grows_to: int
) -> dict[str, Any]:
    return {
        "format": 1,
        **info,
        "status": status,
        "rounds": rounds,
        "rounds_done": done,
        "dim": job.problem.objective.dim,
        "state_bytes": grows_to,
        **({"chunk": job.engine.chunk, "workers": job.engine.workers} if isinstance(job.engine, Stacked) else {}),
        "versions": versions(),
    }


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a round is never cut in half; the second one acts as ever."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _tables(folder: Path, round: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of metrics.csv and timing.csv up to a round, as they stand."""
    return _table(folder / "metrics.csv", round), _table(folder / "timing.csv", round)


def _table(path: Path, round: int) -> list[dict[str, Any]]:
    try:
        with open(path, newline="") as file:
            return [dict(row) for row in csv.DictReader(file) if int(row["round"]) <= round]
    except (OSError, ValueError, KeyError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it or start the run again") from broken


def _due(metrics: list[dict[str, Any]], eval_every: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of metrics.csv that a run to `rounds` rounds has: not the last of a shorter run, unless it was due."""
    return [row for row in metrics if int(row["round"]) % eval_every == 0 or int(row["round"]) == rounds]


def _finite(metrics: Mapping[str, Any]) -> bool:
    """Whether all metrics are, as numbers or as text; an empty cell is none."""
    return all(math.isfinite(float(value)) for value in metrics.values() if value not in ("", None))


def _last(job: Job, state: State, took: Mapping[str, Any]) -> Row:
    """The row of a round that was trained and not evaluated; `took` is its row of timing.csv."""
    measured = evaluate(job, state) if job.engine.team.rank == 0 else None
    return Row(
        state.round,
        measured,
        state.bytes_up,
        state.bytes_down,
        state.gradient_steps,
        float(took["seconds"]),
        state.simulated_seconds,
    )


def _write_tables(folder: Path, metrics: list[dict[str, Any]], timing: list[dict[str, Any]]) -> None:
    header = list(metrics[0]) if metrics else ["round", *COUNTERS]
    files.write_csv(folder / "metrics.csv", header, metrics)
    files.write_csv(folder / "timing.csv", ["round", "seconds"], timing)


def _write_partition(path: Path, job: Job) -> None:
    counts = job.problem.roster.label_counts()
    if counts is not None:
        rows = ([i, *row] for i, row in enumerate(counts.tolist()))
        files.write_csv(path, ["client", *map(str, range(counts.shape[1]))], rows)


def read_description(folder: Path) -> dict[str, Any]:
    """run.json of a folder.

    Raises:
        UserError: the folder holds no run.
    """
    path = folder / "run.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} holds no run (no run.json); give a folder that a run or comparison wrote") from None
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it or start the run again") from broken
    return found
