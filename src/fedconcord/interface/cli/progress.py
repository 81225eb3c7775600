"""What a person sees while runs go on, and after them."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedconcord.interface.cli.base import PROGRAM, complain, console, say
from fedconcord.study.runs.events import Entry, Event, Finished, Stage, Watch
from fedconcord.support import imports

if TYPE_CHECKING:  # torch takes seconds to import
    from fedconcord.execution.job import Row
    from fedconcord.insight.report import Run

LARGE = 2**30  # bytes of clients' state that are worth a word
NAMED = 12  # clients that the summary names one by one
SAY_EVERY = 10.0  # seconds between lines of progress where no bar can be drawn
SURE = 2.0  # seconds of work before it is said how long the rest may take
SEEN, PART = 5, 0.05  # rounds, or that part of all if fewer, before it is said


def resuming(command: str, folder: Path) -> str:
    """The command line that goes on with a folder."""
    return f"{PROGRAM} {command} --resume {shlex.quote(str(folder))}{' --trust' * bool(imports.trusted())}"


def refuse_interrupted(runs: Sequence[Finished]) -> None:
    """Ctrl-C between two rounds is for a command what it is within one.

    Raises:
        KeyboardInterrupt: a run was interrupted.
    """
    if any(run.status == "interrupted" for run in runs):
        raise KeyboardInterrupt


def interrupted(folder: Path, again: str) -> typer.Exit:
    """Say what is left and how to go on."""
    if folder.exists():
        complain(f"interrupted: {folder} is usable as it is; continue with: {again}")
    else:
        complain("interrupted before the first round; nothing was written")
    return typer.Exit(130)


def latest_metric(metrics: Mapping[str, float], is_own: bool = False) -> str:
    """The one metric that a person follows; `is_own`: of clients' own models, on what they set apart."""
    if is_own:
        measures = {
            name.replace("validation_", "test_"): v for name, v in metrics.items() if name.startswith("validation_")
        }
        return f"own models' {latest_metric(measures)}".replace("test_", "") if measures else ""
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
        seconds, rest = time.monotonic() - self.began, self.todo - self.done
        if self.done < max(1, min(SEEN, PART * self.todo)) or rest <= 0 or seconds < SURE:
            return ""
        return f", about {duration(seconds * rest / self.done)} left"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as one says them."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Show(Watch):
    """Shows a study to a person: a bar a run, or of many runs one of their rounds; now and then a plain line where no
    bar can be drawn.

    Args:
        command: what goes on after an interruption: a command's name, which takes --resume, or a whole command line.
        has_bar_per_run: a bar and a line for every run; else one bar, and the lines of the study alone.
    """

    def __init__(self, command: str, has_bar_per_run: bool) -> None:
        self.command, self.has_bar_per_run = command, has_bar_per_run
        latest = [TextColumn("{task.fields[latest]}", markup=False)] if has_bar_per_run else []
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            *latest,
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            transient=not has_bar_per_run,
            disable=not console.is_terminal,
        )
        self.entries: Sequence[Entry] = ()
        self.folder: Path | None = None
        self.tasks: dict[int, TaskID] = {}  # of runs
        self.own: dict[int, bool] = {}  # whether a run answers with a model a client
        self.total: TaskID | None = None  # the bar of all rounds
        self.title = ""  # of that bar
        self.rounds: dict[int, int] = {}  # that runs are expected to take
        self.left = Left(0)
        self.ended = 0
        self.last_line = time.monotonic()

    def __enter__(self) -> Show:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bars.stop()
        if isinstance(error, KeyboardInterrupt) and self.folder is not None:
            again = self.command if " " in self.command else resuming(self.command, self.folder)
            raise interrupted(self.folder, again) from None

    def note(self, sentences: Iterable[str]) -> None:
        """A line each."""
        for sentence in sentences:
            self.say(sentence)

    def say(self, line: str) -> None:
        """A line above the bars."""
        if console.is_terminal:
            self.bars.console.print(line, markup=False, soft_wrap=True)
        else:
            say(line)

    def begin(self, folder: Path) -> None:
        """What was written lies there."""
        self.folder = folder

    def stage(self, stage: Stage) -> None:
        """New bars; runs that go on have rounds behind them, which are seen at their first row."""
        self.entries, self.ended = stage.entries, 0
        self.rounds = {number: entry.config.rounds for number, entry in enumerate(stage.entries)}
        self.left = Left(sum(self.rounds.values()))
        for task in self.bars.task_ids:
            self.bars.remove_task(task)
        self.tasks, self.own, self.total, count = {}, {}, None, len(stage.entries)
        last = max(entry.config.rounds for entry in stage.entries)
        self.title = f"all {count} runs" if self.has_bar_per_run else f"{count} run{'s' * (count > 1)} to round {last}"
        if count > 1 or not self.has_bar_per_run:
            self.total = self.bars.add_task(self.title, total=self.left.todo, latest="")

    def event(self, event: Event) -> None:
        """A bar grows, or a run has ended."""
        entry = self.entries[event.number]
        if event.kind == "started" and self.has_bar_per_run:
            self.tasks[event.number] = self.bars.add_task(entry.name, total=entry.config.rounds, latest="")
        elif event.row is not None:
            self._row(event.number, entry, event.row)
        elif event.kind == "ended" and event.result is not None:
            self._end(event.number, entry, event.result)

    def _row(self, number: int, entry: Entry, row: Row) -> None:
        if row.round == 0 and self.has_bar_per_run:
            self._say_size(entry)
        self.left.see(number, row.round)
        rounds_done = sum(self.left.at.values())
        latest = latest_metric(row.metrics, self._is_own(number, entry)) if row.metrics else None
        if number in self.tasks:
            self.bars.update(self.tasks[number], completed=row.round)
            if latest is not None:
                self.bars.update(self.tasks[number], latest=latest)
        if self.total is not None:
            self.bars.update(self.total, completed=rounds_done)
        is_due = not console.is_terminal and time.monotonic() - self.last_line > SAY_EVERY
        if is_due and (latest is not None or not self.has_bar_per_run):
            self.last_line, remaining = time.monotonic(), self.left.words()
            if self.has_bar_per_run:
                of_all = " of all runs" if remaining and len(self.entries) > 1 else ""
                say(f"{entry.name}: round {row.round} of {entry.config.rounds}, {latest}{remaining}{of_all}")
            else:
                rounds = sum(one.config.rounds for one in self.entries)
                say(f"{self.title}: {rounds_done} of {rounds} rounds{remaining}")

    def _is_own(self, number: int, entry: Entry) -> bool:
        """Whether the run answers with a model a client."""
        if number not in self.own:
            from fedconcord.execution.run.folder import read_description

            there = (entry.folder / "run.json").is_file()
            self.own[number] = there and bool(read_description(entry.folder).get("own"))
        return self.own[number]

    def _say_size(self, entry: Entry) -> None:
        """The bytes of the clients' state, where they are many."""
        from fedconcord.execution.run.folder import read_description
        from fedconcord.study.runs.records import size

        need = read_description(entry.folder)["state_bytes"]
        if need >= LARGE:
            place = "on the disk of the results" if entry.config.engine.store == "disk" else "in memory"
            say(f"{entry.config.label}: the clients' state may grow to {size(need)} {place}")

    def _end(self, number: int, entry: Entry, result: Finished) -> None:
        if result.status == "interrupted" and self.has_bar_per_run and number not in self.tasks:
            return
        self.ended += 1
        self.left.end(number, self.rounds[number])
        for ahead, one in enumerate(self.entries):  # what it showed may spare others some of theirs
            if one.worth is not None and ahead not in self.left.at:
                fewer = int(min(self.rounds[ahead], one.worth()))
                self.left.todo -= self.rounds[ahead] - fewer
                self.rounds[ahead] = fewer
        if self.total is not None:
            self.bars.update(self.total, completed=sum(self.left.at.values()))
        if not self.has_bar_per_run:
            return
        count = f"[{self.ended}/{len(self.entries)}] " if len(self.entries) > 1 else ""
        rounds = f"{result.rounds} of {entry.config.rounds}" if result.rounds < entry.config.rounds else result.rounds
        metric = latest_metric(result.metrics, self._is_own(number, entry))
        outcome = f"{result.status}, {rounds} rounds, {metric}".rstrip(", ")
        outcome = f"failed: {result.error}" if result.status == "failed" else outcome
        if number in self.tasks:
            self.bars.remove_task(self.tasks[number])
        self.say(f"{count}{entry.name}: {outcome}")


def say_summary(*folders: Path) -> None:
    """The table of the comparison: final metric and rounds to the target, best first."""
    from fedconcord.insight.report.method_tables import reach_cell, seeds_cell, target_words
    from fedconcord.insight.report.words import majority_words
    from fedconcord.insight.report.worth import client_sentences, sentences, worth
    from fedconcord.study.statistics.format import metric_cell
    from fedconcord.study.statistics.load import load_data_sets
    from fedconcord.study.statistics.summary import summarise

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
    answer = worth(summary)
    for sentence in majority_words(summary) if answer is None or answer.majority is None else ():
        say(sentence)
    if answer is not None:
        clients = client_sentences(answer)
        for sentence in (*sentences(answer), *(clients if len(clients) <= NAMED else ())):
            say(sentence)


def _say_ranks(sets: Mapping[str, Sequence[Run]]) -> None:
    """The methods' ranks over data sets, best first."""
    from fedconcord.insight.report.results_page import summaries
    from fedconcord.study.statistics.ranks import ranks

    ranking = ranks(summaries(sets))
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    for title in ("average rank", *ranking.data):
        table.add_column(escape(title), justify="right", overflow="fold")
    for name, average, ranks_there in zip(ranking.methods, ranking.average, ranking.ranks, strict=True):
        table.add_row(escape(name), f"{average:.2f}", *(f"{rank:g}" for rank in ranks_there))
    console.print(table)
