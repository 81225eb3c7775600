"""A job that is about to run in a folder: built once, and refused before anything is written if it cannot run there."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedconcord.basis.errors import UserError
from fedconcord.jobs import Job, State, blank, row_bytes, state_bytes
from fedconcord.state import path_of


class Course(NamedTuple):
    """How far a run goes, and what it does on the way."""

    rounds: int  # in all
    eval_every: int = 1  # rounds
    checkpoint_every: float = 30.0  # seconds
    resume: bool = False  # go on with what the folder holds
    put_down: bool = False  # each round is in a checkpoint before it is measured, where measuring tells others of it


class Begun(NamedTuple):
    """A job and where it begins."""

    job: Job
    state: State  # blank: no client was asked for anything
    grows_to: int  # bytes of the clients' rows in the end


def begun(job: Job, folder: Path, rounds: int) -> Begun:
    """A job that can run in a folder, where nothing is written yet.

    Raises:
        UserError: it cannot.
    """
    here = placed(job, folder)
    return Begun(here, blank(here), refuse_too_much(here, rounds))


def placed(job: Job, folder: Path) -> Job:
    """The same job, whose rows on disk lie in the run's folder, those of each process in a file of its own."""
    team = job.engine.team
    return replace(job, storage=replace(job.storage, path=path_of(folder, team.rank, team.size)))


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
        path, size = job.storage.path or path_of(Path(tempfile.gettempdir())), job.engine.team.size
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        held = (path_of(path.parent, rank, size) for rank in range(size))
        there = sum(one.stat().st_size for one in held if one.exists())
        return shutil.disk_usage(folder).free + there, f"the disk of {folder}"
    if job.problem.objective.device.type == "cuda":
        return torch.cuda.mem_get_info(job.problem.objective.device)[1], "the GPU"
    if not hasattr(os, "sysconf"):  # not POSIX: nobody knows
        return math.inf, "this machine"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine"


def size(count: float) -> str:
    """Bytes as people write them: 1.5 GiB."""
    unit = min(max(int(math.log2(max(count, 1)) // 10), 0), 4)
    return f"{count / 2 ** (10 * unit):.{0 if unit == 0 else 1}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
