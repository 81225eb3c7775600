"""What is told of studies: one run that is to be there, a stage of such runs, the events of runs, and who watches them.

Progress bars, callbacks, trackers and the operator of a deployment all watch the same stream of events.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fedconcord.support.errors import in_words

if TYPE_CHECKING:  # torch takes seconds to import, and the command shows its help without it
    from fedconcord.execution.job import Row
    from fedconcord.study.settings.settings import Config


class Entry(NamedTuple):
    """A run that is to be there when its stage ends: its resolved settings and its folder."""

    config: Config
    folder: Path
    resume: bool = False  # go on with what the folder holds; else it has to be empty
    validation_reason: str | None = None  # why clients do or do not set samples apart, where the user left it open
    keep: Literal["all", "model", "tables"] = "all"  # what stays when it has ended, beside the tables
    worth: Callable[[], float] | None = None  # the rounds that it is worth when it begins, by runs that have ended

    @property
    def name(self) -> str:
        """The method and the seed, as progress and errors call the run."""
        return f"{self.config.label}, seed {self.config.seed}"


class Stage(NamedTuple):
    """Runs that do not depend on each other's results, but for the rounds that they are worth."""

    entries: Sequence[Entry]
    folder: Path  # the comparison or study that they belong to; of a single run its own
    is_result: bool = True  # callbacks and trackers are told of these runs; they are not told of trials


class Finished(NamedTuple):
    """The outcome of one run."""

    folder: Path  # that holds everything
    label: str  # what reports call it
    seed: int  # of the run
    status: str  # complete, diverged, interrupted or failed
    rounds: int  # rounds done
    metrics: dict[str, float]  # of the last evaluated round
    error: str | None = None  # why it failed


class Compared(NamedTuple):
    """The result of a comparison: its folder, its runs and its report."""

    folder: Path  # that holds the runs' folders
    runs: list[Finished]  # methods of one seed side by side
    report: Path | None  # None if it was interrupted, every run failed, or another process writes it


EventKind = Literal[
    # of a run; `cut`: an exception ended it, which the caller gets
    "started", "row", "ended", "cut",
    # of a deployment
    "ready", "missing", "back", "joined", "refused", "left out", "far", "void", "private",
]  # fmt: skip


class Event(NamedTuple):
    """Something that happened while runs went on, at a site of a deployment perhaps."""

    kind: EventKind
    text: str = ""  # a sentence for people, where the event is of a deployment
    site: str = ""  # the site that it is about, if it is about one
    row: Row | None = None  # of `row`: what is known after a round
    number: int = 0  # the place of the run in its stage
    result: Finished | None = None  # of `ended` and `cut`


Tell = Callable[[Event], None]


class Watch:
    """Someone who watches a study, in the process and thread that asked for it; this one shows nothing.

    A class that names this one as its base leaves out what it does not need.
    """

    def begin(self, folder: Path) -> None:
        """The study writes into this folder."""

    def note(self, sentences: Iterable[str]) -> None:
        """Sentences about what is going to be done, which a watch that shows none does not compute."""

    def stage(self, stage: Stage) -> None:
        """These runs are next."""

    def event(self, event: Event) -> None:
        """An event of a run of the stage."""

    def say(self, line: str) -> None:
        """A line about what was found, as of a rung of a search."""


class Lines(Watch):
    """A watch that passes on the lines about what was found, and nothing else."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write

    def say(self, line: str) -> None:
        """The line."""
        self.write(line)


# -- from outside: callbacks of the user's, and trackers (`interface.tracking`) ----------------------------------------


class Run(NamedTuple):
    """A run that goes on."""

    number: int  # its place in the comparison, from 0
    folder: Path  # its own
    root: Path  # the folder of the comparison; its own if it is alone
    label: str  # what reports call it
    seed: int  # of the run
    begins: int  # the round of the first row: 0, or where it was resumed
    rounds: int  # in all
    settings: Mapping[str, Any]  # nested, as in run.json


class Callback(Protocol):
    """Told of every run in the process that was asked for it: of several at once in turn, of torchrun's on rank 0.

    A class that names this one as its base may leave out what it does not need.
    """

    def start(self, run: Run) -> None:
        """The first row of a run is there; what is in its folder may be read."""

    def row(self, run: Run, row: Row) -> None:
        """A round has ended; round 0 is the start. A resumed run begins after its checkpoint."""

    def end(self, run: Run, result: Finished) -> None:
        """The run is complete, diverged, interrupted or failed after its start."""


class Callbacks(Watch):
    """Tells callbacks of the runs that are results, and passes everything on to a watch before. A callback that raises
    is left out from then on, with a warning."""

    def __init__(self, watch: Watch, callbacks: Sequence[Callback]) -> None:
        self.begin, self.note, self.say = watch.begin, watch.note, watch.say  # type: ignore[method-assign]
        self.watch, self.callbacks = watch, list(callbacks)
        self.current: Stage | None = None
        self.running: dict[int, Run] = {}

    def stage(self, stage: Stage) -> None:
        """Runs that are next."""
        self.watch.stage(stage)
        self.current = stage if stage.is_result else None

    def event(self, event: Event) -> None:
        """A start at the first row, then every row and the end."""
        self.watch.event(event)
        number, row, result = event.number, event.row, event.result
        if self.current is None:
            return
        if row is not None:
            if number not in self.running:
                entry, root = self.current.entries[number], self.current.folder
                config = entry.config
                label, seed = config.label or "", config.seed or 0
                run = Run(number, entry.folder, root, label, seed, row.round, config.rounds, config.as_dict())
                self.running[number] = run
                self._tell("start of a run", lambda callback: callback.start(run))
            run = self.running[number]
            self._tell(f"row of round {row.round}", lambda callback: callback.row(run, row))
        elif result is not None and (ended := self.running.pop(number, None)) is not None:
            self._tell("end of a run", lambda callback: callback.end(ended, result))

    def _tell(self, what: str, tell: Callable[[Callback], None]) -> None:
        for callback in tuple(self.callbacks):
            try:
                tell(callback)
            except Exception as error:  # a run is worth more than who looks on
                self.callbacks.remove(callback)
                name = type(callback).__name__
                warnings.warn(
                    f"{name} failed at the {what} ({in_words(error)}); the runs go on without it", stacklevel=2
                )
