"""The way of one run: a job that begins, the loop, and those who look on; `folder` says what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedconcord.basis import files, sums
from fedconcord.engines import Stacked
from fedconcord.jobs import Job, Row, State, asked, blank, checkpoint, resolved, steps
from fedconcord.runs import interrupts, lock, readme, stopping, tables
from fedconcord.runs.begun import Begun, Course, begun
from fedconcord.runs.clock import Clock
from fedconcord.runs.final import NOTHING, Final, Wanted
from fedconcord.runs.folder import CHECKPOINT, read_description, refuse_taken
from fedconcord.runs.looks import Looks
from fedconcord.runs.observer import Observer
from fedconcord.runs.saving import Saving, described
from fedconcord.runs.spent import Spent
from fedconcord.runs.stopping import Stopping
from fedconcord.runs.tables import Past, Tables, write_partition


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
        UserError: the job cannot run, another process writes in the folder, or what it holds is not to be resumed.
    """
    course = Course(rounds, eval_every, checkpoint_every, resume)
    return execute_begun(begun(job, folder, rounds), folder, course, info, on_row, wanted)


def execute_begun(
    start: Begun,
    folder: Path,
    course: Course,
    info: Mapping[str, Any],
    on_row: Callable[[Row], None] | None = None,
    wanted: Wanted = NOTHING,
    clock: Clock | None = None,
    others: Sequence[Observer] = (),
) -> str:
    """`execute` for a job that has begun; `clock` has what it took until now, `others` look on after the usual ones."""
    clock = clock or Clock()
    team = start.job.engine.team
    with lock.held(folder, team):
        if not course.resume:
            team.tell(lambda: refuse_taken(folder))
        job = resolved(start.job, start.state, course.rounds)
        if course.resume:
            job = as_before(start, job, folder)
        clock.lap("compile")
        return _loop(start._replace(job=job), folder, course, info, on_row, wanted, clock, others)


def _loop(
    start: Begun,
    folder: Path,
    course: Course,
    info: Mapping[str, Any],
    on_row: Callable[[Row], None] | None,
    wanted: Wanted,
    clock: Clock,
    others: Sequence[Observer],
) -> str:
    job, team = start.job, start.job.engine.team
    lead = team.rank == 0  # measures, looks on and writes
    state, past = _taken_up(start, folder, course, wanted)
    if past is not None:
        clock.go_on(folder)
    budget = wanted.budget
    table = Tables(job, folder, past, None if budget is None else budget.spending)
    patience = Stopping(job.problem, wanted.patience, table.metrics, state.round)
    looks = Looks(job, folder, wanted.clients_every, state.round)
    spent_by = Spent(budget, state)
    usual = (patience, looks, Final(job, folder, wanted, patience), spent_by)
    observers: tuple[Observer, ...] = (*usual, *others)
    about = described(job, info, course.rounds, start.grows_to)
    saving = Saving(job, folder, table, observers, about, course.checkpoint_every, clock)
    over = table.diverged or patience.stopped is not None
    team.any()  # all have read what there is
    clock.lap("load")
    with interrupts.deferred() as interrupted:  # from here on run.json says `running`
        if past is None:
            team.tell(lambda: _write_first(job, folder, wanted, partial(saving.describe, "running", state)))
        saving.write("running", state)
        due_now = state.round == course.rounds or (course.put_down and state.round % course.eval_every == 0)
        took = None if past is None or over else table.owed(state.round, due_now)
        if past is None:
            state, took = asked(job, state), 0.0
            clock.lap("train")
        status, begun_at = "diverged" if table.diverged else "complete", state.round

        def trained(state: State, seconds: float) -> None:
            if course.put_down:
                table.trained(state.round, seconds)
                saving.save(state)

        until = 0 if over else course.rounds
        for now in steps(job, state, until, eval_every=course.eval_every, took=took, trained=trained):
            state = now.state
            clock.lap("evaluate")
            clock.move(now.row.seconds if now.row.round > begun_at else 0.0, "evaluate", "train")
            if lead:
                table.see(now)
                if on_row is not None:
                    on_row(now.row)
                for one in () if table.diverged else observers:
                    one.see(now)
            clock.lap("evaluate")
            spent, stop = patience.stopped is not None, interrupted.is_set()
            diverged, spent, stop, due = team.any(table.diverged, spent, stop, saving.due())
            if diverged or spent or stop:
                status = "diverged" if diverged else "complete" if spent else "interrupted"
                break
            if due:
                saving.save(state)
            else:
                saving.now_and_then(state)
        if status == "complete" and state.round > 0:
            team.tell(partial(_end, observers, state))  # the others wait for as long as it takes
            clock.lap("evaluate")
        saving.save(state)
        saving.write(status, state)
    return status


def as_before(start: Begun, chosen: Job, folder: Path) -> Job:
    """The job with the engine's choices of run.json: made anew on other threads they might move the last bits.

    But as `chosen` where its longer form is for compiled steps and the shorter was not: such a run starts anew.
    """
    before = read_description(folder)
    if not isinstance(chosen.engine, Stacked) or "chunk" not in before:
        return chosen
    kernel = before.get("kernel", "torch")
    if kernel != chosen.engine.kernel:
        shorter = resolved(start.job, start.state, before["rounds"]).engine
        if isinstance(shorter, Stacked) and shorter.kernel == kernel:
            return chosen
    engine = replace(chosen.engine, chunk=before["chunk"], workers=before.get("workers", 1), kernel=kernel)
    return resolved(replace(chosen, engine=engine), start.state)


def _taken_up(start: Begun, folder: Path, course: Course, wanted: Wanted) -> tuple[State, Past | None]:
    """What a run goes on from; None where it starts anew, as nothing is saved or its answer is no longer there."""
    path, job = folder / CHECKPOINT, start.job
    if not (course.resume and path.exists()):
        return start.state, None
    state = checkpoint.load(job, path, start.state)
    engine = job.engine
    if isinstance(engine, Stacked) and read_description(folder).get("kernel", "torch") != engine.kernel:
        return blank(job), None  # a run of so many rounds is computed by other code: the shorter one was short
    found = tables.read(folder, state.round)
    kept = found.due(course.eval_every, course.rounds)
    best, again = (stopping.best_of(wanted.patience, job.problem, past.metrics) for past in (found, kept))
    if best is not None and again is not None and best.round != again.round:
        return blank(job), None  # the model in the folder is the best of rounds that the longer run does not judge
    return state, kept


def _write_first(job: Job, folder: Path, wanted: Wanted, describe: Callable[[], None]) -> str:
    (folder / CHECKPOINT).unlink(missing_ok=True)  # tables and rows that begin again must not meet it
    describe()  # before all else: from now on the folder can be resumed
    write_partition(folder, job)
    if wanted.card is not None:
        sums.write(folder / "model.json", files.as_json(wanted.card))
    if wanted.readme is not None:
        readme.write(folder, wanted.readme)
    return ""


def _end(observers: Sequence[Observer], state: State) -> str:
    for one in observers:
        one.end(state)
    return ""
