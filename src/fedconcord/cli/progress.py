"""What a person sees while runs go on, and after them."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedconcord.basis import imports
from fedconcord.cli.base import PROGRAM, complain, console, say

if TYPE_CHECKING:  # torch takes seconds to import
    from fedconcord.jobs import Row
    from fedconcord.report import Run
    from fedconcord.runs.outcome import Finished
    from fedconcord.runs.plan import Planned

LARGE = 2**30  # bytes of clients' state that are worth a word
NAMED = 12  # clients that the summary names one by one
SAY_EVERY = 10.0  # seconds between lines of progress where no bar can be drawn
SURE = 2.0  # seconds of work before it is said how long the rest may take
SEEN, PART = 5, 0.05  # rounds, or that part of all if fewer, before it is said


def resumed(command: str, folder: Path) -> str:
    """The command line that goes on with a folder."""
    return f"{PROGRAM} {command} --resume {shlex.quote(str(folder))}{' --trust' * bool(imports.trusted())}"


def interrupted(folder: Path, again: str) -> typer.Exit:
    """Say what is left and how to go on."""
    if folder.exists():
        complain(f"interrupted: {folder} is usable as it is; continue with: {again}")
    else:
        complain("interrupted before the first round; nothing was written")
    return typer.Exit(130)


def latest_metric(metrics: Mapping[str, float]) -> str:
    """The one metric that a person follows."""
    if "test_accuracy" in metrics:
        return f"accuracy {100 * metrics['test_accuracy']:.1f} %"
    tested = [name for name in metrics if name.startswith("test_") and name != "test_loss"]
    name = next((name for name in ("distance", *tested, "test_loss", "loss", *metrics) if name in metrics), None)
    return f"{name} {metrics[name]:.4g}" if name else ""


class Left:
    """How long work of so many rounds may still take, as fast as its rounds were so far.

    Time counts from the first word of a run, not while workers start; rounds that were there then are not counted.
    """

    def __init__(self, rounds: int) -> None:
        self.todo, self.done = rounds, 0
        self.at: dict[int, int] = {}
        self.began = math.inf

    def see(self, run: int, round: int) -> None:
        """A run has come to this round."""
        self.began = min(self.began, time.monotonic())
        if run not in self.at:
            self.todo -= round
        else:
            self.done += round - self.at[run]
        self.at[run] = round

    def end(self, run: int, rounds: int) -> None:
        """A run of so many rounds is over: what it has not done now it had done before, or nobody does."""
        self.todo -= rounds - self.at.get(run, 0)
        self.at[run] = rounds

    def words(self) -> str:
        """`, about 3 min left`, or nothing while there is too little to go by."""
        spent, rest = time.monotonic() - self.began, self.todo - self.done
        if self.done < max(1, min(SEEN, PART * self.todo)) or rest <= 0 or spent < SURE:
            return ""
        return f", about {duration(spent * rest / self.done)} left"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as one says them."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Show:
    """Live progress, called as `runs.outcome.Progress`: a bar a run on a terminal, plain lines elsewhere."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self.planned = planned
        self.bars: Progress | None = None
        if console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[latest]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console,
                expand=True,
            )
        self.tasks: dict[int, TaskID] = {}
        self.all: TaskID | None = None  # the bar of all runs, where there are several
        self.left = Left(sum(entry.config.rounds for entry in planned))
        self.ended = 0
        self.said = time.monotonic()

    def __enter__(self) -> Show:
        if self.bars:
            self.bars.start()
            if len(self.planned) > 1:
                self.all = self.bars.add_task(f"all {len(self.planned)} runs", total=self.left.todo, latest="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars:
            self.bars.stop()

    def name(self, number: int) -> str:
        config = self.planned[number].config
        return f"{config.label}, seed {config.seed}"

    def __call__(self, number: int, event: Row | Finished | None) -> None:
        from fedconcord.jobs import Row

        if event is None:
            if self.bars:
                total = self.planned[number].config.rounds
                self.tasks[number] = self.bars.add_task(self.name(number), total=total, latest="")
        elif isinstance(event, Row):
            self._row(number, event)
        else:
            self._end(number, event)

    def _row(self, number: int, row: Row) -> None:
        if row.round == 0:
            self._say_size(self.planned[number])
        latest = latest_metric(row.metrics) if row.metrics else None
        self.left.see(number, row.round)
        if self.bars:
            self.bars.update(self.tasks[number], completed=row.round)
            if self.all is not None:
                self.bars.update(self.all, completed=sum(self.left.at.values()))
            if latest is not None:
                self.bars.update(self.tasks[number], latest=latest)
        elif latest is not None and time.monotonic() - self.said > SAY_EVERY:
            self.said = time.monotonic()
            rounds = self.planned[number].config.rounds
            left = self.left.words()
            of_all = " of all runs" if left and len(self.planned) > 1 else ""
            say(f"{self.name(number)}: round {row.round} of {rounds}, {latest}{left}{of_all}")

    def _say_size(self, planned: Planned) -> None:
        """The bytes of the clients' state, where they are many."""
        from fedconcord.runs.begun import size
        from fedconcord.runs.folder import read_description

        need = read_description(planned.folder)["state_bytes"]
        if need >= LARGE:
            place = "on the disk of the results" if planned.config.engine.store == "disk" else "in memory"
            say(f"{planned.config.label}: the clients' state may grow to {size(need)} {place}")

    def _end(self, number: int, result: Finished) -> None:
        if result.status == "interrupted" and number not in self.tasks and self.bars:
            return
        self.ended += 1
        self.left.end(number, self.planned[number].config.rounds)
        count = f"[{self.ended}/{len(self.planned)}] " if len(self.planned) > 1 else ""
        outcome = (
            f"failed: {result.error}"
            if result.status == "failed"
            else f"{result.status}, {result.rounds} rounds, {latest_metric(result.metrics)}".rstrip(", ")
        )
        line = f"{count}{self.name(number)}: {outcome}"
        if self.bars:
            if number in self.tasks:
                self.bars.remove_task(self.tasks[number])
            self.bars.console.print(line, markup=False, soft_wrap=True)
        else:
            say(line)


class Watching:
    """A bar of rounds on a terminal, a line now and then elsewhere; a line a method and rung on both."""

    def __init__(self) -> None:
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task: TaskID | None = None
        self.what, self.rounds, self.said = "", 0, time.monotonic()
        self.left = Left(0)

    def __enter__(self) -> Watching:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, planned: Sequence[Planned]) -> None:
        """A new bar for these runs; those that go on have rounds behind them, which are seen at their first event."""
        runs = f"{len(planned)} run{'s' * (len(planned) > 1)}"
        self.what = f"{runs} to round {max(entry.config.rounds for entry in planned)}"
        self.rounds = sum(entry.config.rounds for entry in planned)
        self.left = Left(self.rounds)
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(self.what, total=self.rounds)

    def see(self, number: int, event: Row | Finished | None) -> None:
        """Count the rounds of a run."""
        from fedconcord.jobs import Row

        if not isinstance(event, Row):
            return
        self.left.see(number, event.round)
        done = sum(self.left.at.values())
        assert self.task is not None
        self.bar.update(self.task, completed=done)
        if not console.is_terminal and time.monotonic() - self.said > SAY_EVERY:
            self.said = time.monotonic()
            say(f"{self.what}: {done} of {self.rounds} rounds{self.left.words()}")

    def say(self, line: str) -> None:
        """A line above the bar."""
        if console.is_terminal:
            self.bar.console.print(line, markup=False, soft_wrap=True)
        else:
            say(line)


def say_summary(*folders: Path) -> None:
    """The table of the comparison: final metric and rounds to the target, best first."""
    from fedconcord.report.load import load_data_sets
    from fedconcord.report.summary import summarise
    from fedconcord.report.tables import metric_cell, reach_cell, seeds_cell, target_words
    from fedconcord.report.words import majority_words
    from fedconcord.report.worth import client_sentences, sentences, worth

    sets = load_data_sets(folders)
    if len(sets) > 1:
        _say_ranks(sets)
        return
    summary = summarise(*sets.values())
    percent = ", %" if summary.primary.percent else ""
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    for title in ("seeds", f"final {summary.primary.title}{percent}", "rounds to target"):
        table.add_column(title, justify="right")
    for row in summary.rows:
        cells = (row.name, seeds_cell(row), metric_cell(summary.primary, row.final), reach_cell(row.reach, "round"))
        table.add_row(*map(escape, cells))
    console.print(table)
    if math.isfinite(summary.target):
        say(target_words(summary))
    found = worth(summary)
    for sentence in majority_words(summary) if found is None or found.majority is None else ():
        say(sentence)
    if found is not None:
        clients = client_sentences(found)
        for sentence in (*sentences(found), *(clients if len(clients) <= NAMED else ())):
            say(sentence)


def _say_ranks(sets: Mapping[str, Sequence[Run]]) -> None:
    """The methods' ranks over data sets, best first."""
    from fedconcord.report.ranks import ranks
    from fedconcord.report.several import summaries

    found = ranks(summaries(sets))
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    for title in ("average rank", *found.data):
        table.add_column(escape(title), justify="right", overflow="fold")
    for name, average, ranks_there in zip(found.methods, found.average, found.ranks, strict=True):
        table.add_row(escape(name), f"{average:.2f}", *(f"{rank:g}" for rank in ranks_there))
    console.print(table)
