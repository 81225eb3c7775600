"""The way of one run: a job that begins, the loop, and those who look on; `folder` says what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.basis import files, sums
from fedconcord.engines import with_choices
from fedconcord.jobs import Job, Row, State, asked, blank, checkpoint, resolved, steps
from fedconcord.runs import interrupts, lock, readme, stopping, tables
from fedconcord.runs.clock import Clock
from fedconcord.runs.final import NOTHING, Final, RunOptions
from fedconcord.runs.folder import CHECKPOINT, read_description, refuse_taken
from fedconcord.runs.observers import FairnessLog, Observer, PrivacySpent
from fedconcord.runs.prepare import PreparedRun
from fedconcord.runs.saving import Saving, described
from fedconcord.runs.stopping import Stopping
from fedconcord.runs.tables import Past, Tables, write_partition


class RunLength(NamedTuple):
    """How far a run goes, and what it does on the way."""

    rounds: int  # in all
    eval_every: int = 1  # rounds
    checkpoint_every: float = 30.0  # seconds
    resume: bool = False  # go on with what the folder holds
    saves_before_measuring: bool = False  # a round is in a checkpoint before it is measured, which tells others of it


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
    patience = Stopping(job.problem, options.patience, table.metrics, state.round)
    fairness_log = FairnessLog(job, folder, options.clients_every, state.round)
    privacy = PrivacySpent(budget, state)
    usual = (patience, fairness_log, Final(job, folder, options, patience), privacy)
    observers: tuple[Observer, ...] = (*usual, *others)
    about = described(job, info, length.rounds, prepared.grows_to)
    saving = Saving(job, folder, table, observers, about, length.checkpoint_every, clock)
    over = table.diverged or patience.stopped is not None
    team.any()  # all have read what there is
    clock.lap("load")
    with interrupts.deferred() as interrupted:  # from here on run.json says `running`
        if past is None:
            team.tell(lambda: _write_first(job, folder, options, partial(saving.describe, "running", state)))
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
        saving.save(state)
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


def _write_first(job: Job, folder: Path, options: RunOptions, describe: Callable[[], None]) -> str:
    (folder / CHECKPOINT).unlink(missing_ok=True)  # tables and rows that begin again must not meet it
    describe()  # before all else: from now on the folder can be resumed
    write_partition(folder, job)
    if options.card is not None:
        sums.write(folder / "model.json", files.as_json(options.card))
    if options.readme is not None:
        readme.write(folder, options.readme)
    return ""


def _end(observers: Sequence[Observer], state: State) -> str:
    for observer in observers:
        observer.end(state)
    return ""
