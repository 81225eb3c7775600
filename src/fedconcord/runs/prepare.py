"""A job that is about to run in a folder: built once, and refused before anything is written if it cannot run there."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedconcord import settings as settings_module
from fedconcord.basis import process
from fedconcord.basis.errors import UserError
from fedconcord.jobs import Job, State, blank, row_bytes, state_bytes
from fedconcord.settings import Config
from fedconcord.state import path_of


class PreparedRun(NamedTuple):
    """A job and the state in which it begins."""

    job: Job
    state: State  # blank: no client was asked for anything
    grows_to: int  # bytes of the clients' rows in the end


def prepare(config: Config, folder: Path) -> PreparedRun:
    """The job of settings in its folder, where nothing is written yet.

    Raises:
        UserError: it cannot run.
    """
    job = settings_module.build(config)
    try:
        prepared = prepare_job(job, folder, config.rounds)
        settings_module.refuse(job, config)
    except UserError as error:
        raise UserError(f"{config.label}: {error}") from None
    return prepared


def prepare_job(job: Job, folder: Path, rounds: int) -> PreparedRun:
    """`prepare` for a job that is built already."""
    here = placed(job, folder)
    return PreparedRun(here, blank(here), refuse_too_much(here, rounds))


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many of torch's threads; if none is given, its own number, but not above what the container may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, process.cores()) if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        files = (path_of(path.parent, rank, size) for rank in range(size))
        there = sum(file.stat().st_size for file in files if file.exists())
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
