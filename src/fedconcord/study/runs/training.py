"""One run: a job that is prepared in its folder, or refused before anything is written; the loop, and who looks on.

`folder` says what is left of it.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord.execution.engines import with_choices
from fedconcord.execution.job import Job, Row, State, asked, blank, checkpoint, resolved, row_bytes, state_bytes, steps
from fedconcord.execution.rows import path_of
from fedconcord.execution.run import interrupts, lock, readme, stopping, tables
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.final_model import NOTHING, Final, RunOptions
from fedconcord.execution.run.folder import CHECKPOINT, read_description, refuse_taken
from fedconcord.execution.run.observers import FairnessLog, Observer, PrivacySpent
from fedconcord.execution.run.saving import Saving, described
from fedconcord.execution.run.stopping import Stopping
from fedconcord.execution.run.tables import Past, Tables, write_partition
from fedconcord.execution.run.trace import traces
from fedconcord.study.runs.records import size
from fedconcord.study.settings.job import build, refuse
from fedconcord.study.settings.settings import Config
from fedconcord.support import files, process, sums
from fedconcord.support.errors import UserError


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
    job = build(config)
    try:
        prepared = prepare_job(job, folder, config.rounds)
        refuse(job, config)
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
    again = job.engine.team.size > 1 and not disk  # rank 0 collects all rows for a checkpoint
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


class RunLength(NamedTuple):
    """How far a run goes, and what it does on the way."""

    rounds: int  # in all
    eval_every: int = 1  # rounds
    checkpoint_every: float = 30.0  # seconds
    resume: bool = False  # go on with what the folder holds
    saves_before_measuring: bool = False  # a round is in a checkpoint before it is measured, which tells others of it
    keeps_state: bool = True  # when it has ended, for whoever goes on from it


def train(
    prepared: PreparedRun,
    folder: Path,
    length: RunLength,
    info: Mapping[str, Any],
    on_row: Callable[[Row], None] | None = None,
    options: RunOptions = NOTHING,
    clock: Clock | None = None,
    others: Sequence[Observer] = (),
) -> str:
    """Train in a folder and return the status: `complete`, `diverged` (a metric is not finite) or `interrupted`.

    Ctrl-C finishes the round that is running, writes everything and returns `interrupted`; a second one stops at once,
    and the folder holds the last checkpoint. With `resume` it goes on from the checkpoint to the same bits as a run
    that never stopped; a folder without a checkpoint starts anew. With more rounds than before it goes on to what a run
    of so many rounds writes; where that would answer with a model that is no longer there, it starts anew. A run that
    stops early is `complete`, with the reason as `stopped` in run.json; its model is the best one.

    Of several processes all call this with the same job; rank 0 evaluates and writes, and Ctrl-C at any of them stops
    all after the same round.

    Args:
        info: put into run.json as it is (method, label, seed, configuration ...).
        clock: has what the run took until now.
        others: look on after the usual observers.

    Raises:
        UserError: another process writes in the folder, or what it holds is not to be resumed.
    """
    clock, team = clock or Clock(), prepared.job.engine.team
    with lock.held(folder, team):
        if not length.resume:
            team.tell(lambda: refuse_taken(folder))
        job = resolved(prepared.job, prepared.state, length.rounds)
        if length.resume:
            job = with_choices_of(folder, prepared, job)
        clock.lap("compile")
        return _loop(prepared._replace(job=job), folder, length, info, on_row, options, clock, others)


def _loop(
    prepared: PreparedRun,
    folder: Path,
    length: RunLength,
    info: Mapping[str, Any],
    on_row: Callable[[Row], None] | None,
    options: RunOptions,
    clock: Clock,
    others: Sequence[Observer],
) -> str:
    job, team = prepared.job, prepared.job.engine.team
    lead = team.rank == 0  # measures, looks on and writes
    state, past = _resumed_state(prepared, folder, length, options)
    if past is not None:
        clock.go_on(folder)
    budget = options.budget
    table = Tables(job, folder, past, None if budget is None else budget.spending)
    patience = Stopping(job, options.patience, options.goal, table.metrics, state.round)
    fairness_log = FairnessLog(job, folder, options.clients_every, state.round)
    privacy = PrivacySpent(budget, state)
    usual = (patience, fairness_log, Final(job, folder, options, patience), privacy, *traces(job, folder, state.round))
    observers: tuple[Observer, ...] = (*usual, *others)
    about = described(job, info, length.rounds, prepared.grows_to)
    saving = Saving(job, folder, table, observers, about, length.checkpoint_every, clock)
    over = table.diverged or patience.stopped is not None
    team.any()  # all have read what there is
    clock.lap("load")
    # from here on run.json says `running`
    with interrupts.deferred() as interrupted, saving.noting_failure(lambda: state):
        if past is None:
            team.tell(lambda: _write_first(job, folder, options, saving.describe("running", state)))
        saving.write("running", state)
        due_now = state.round == length.rounds or (
            length.saves_before_measuring and state.round % length.eval_every == 0
        )
        took = None if past is None or over else table.owed(state.round, due_now)
        if past is None:
            state, took = asked(job, state), 0.0
            clock.lap("train")
        status, first_round = "diverged" if table.diverged else "complete", state.round

        def trained(state: State, seconds: float) -> None:
            if length.saves_before_measuring:
                table.trained(state.round, seconds)
                saving.save(state)

        until = 0 if over else length.rounds
        for now in steps(job, state, until, eval_every=length.eval_every, took=took, trained=trained):
            state = now.state
            clock.lap("evaluate")
            clock.move(now.row.seconds if now.row.round > first_round else 0.0, "evaluate", "train")
            if lead:
                table.see(now)
                if on_row is not None:
                    on_row(now.row)
                for observer in () if table.diverged else observers:
                    observer.see(now)
            clock.lap("evaluate")
            flags = table.diverged, patience.stopped is not None, interrupted.is_set(), saving.due()
            has_diverged, has_stopped, is_interrupted, is_due = team.any(*flags)
            if has_diverged or has_stopped or is_interrupted:
                status = "diverged" if has_diverged else "complete" if has_stopped else "interrupted"
                break
            if is_due:
                saving.save(state)
            else:
                saving.now_and_then(state)
        if status == "complete" and state.round > 0:
            team.tell(partial(_end, observers, state))  # the others wait for as long as it takes
            clock.lap("evaluate")
        saving.save(state, checkpointed=length.keeps_state or status == "interrupted")
        saving.write(status, state)
    return status


def with_choices_of(folder: Path, prepared: PreparedRun, resolved_job: Job) -> Job:
    """The job with the engine's choices of run.json: made anew on other threads they might move the last bits.

    But as `resolved_job` where its longer form is for compiled steps and the shorter was not: such a run starts anew.
    """
    before, choices = read_description(folder), resolved_job.engine.can.choices
    if not choices or "chunk" not in before:
        return resolved_job
    kernel = before.get("kernel", "torch")
    if kernel != choices["kernel"]:
        shorter = resolved(prepared.job, prepared.state, before["rounds"]).engine
        if shorter.can.choices["kernel"] == kernel:
            return resolved_job
    engine = with_choices(resolved_job.engine, chunk=before["chunk"], workers=before.get("workers", 1), kernel=kernel)
    return resolved(replace(resolved_job, engine=engine), prepared.state)


def _resumed_state(
    prepared: PreparedRun, folder: Path, length: RunLength, options: RunOptions
) -> tuple[State, Past | None]:
    """What a run goes on from; None where it starts anew, as nothing is saved or its answer is no longer there."""
    path, job = folder / CHECKPOINT, prepared.job
    if not (length.resume and path.exists()):
        return prepared.state, None
    state = checkpoint.load(job, path, prepared.state)
    choices = job.engine.can.choices
    if choices and read_description(folder).get("kernel", "torch") != choices["kernel"]:
        return blank(job), None  # a run of so many rounds is computed by other code: the shorter one was short
    past = tables.read(folder, state.round)
    rows_kept = past.due(length.eval_every, length.rounds)
    best, again = (stopping.best_of(options.patience, job.problem, rows.metrics) for rows in (past, rows_kept))
    if best is not None and again is not None and best.round != again.round:
        return blank(job), None  # the model in the folder is the best of rounds that the longer run does not judge
    return state, rows_kept


def _write_first(job: Job, folder: Path, options: RunOptions, description: Mapping[str, bytes]) -> str:
    (folder / CHECKPOINT).unlink(missing_ok=True)  # tables and rows that begin again must not meet it
    sums.write(folder, description)  # before all else: from now on the folder can be resumed
    write_partition(folder, job)
    if options.card is not None:
        sums.write(folder, {"model.json": files.as_json(options.card)})
    if options.readme is not None:
        readme.write(folder, options.readme)
    return ""


def _end(observers: Sequence[Observer], state: State) -> str:
    for observer in observers:
        observer.end(state)
    return ""
