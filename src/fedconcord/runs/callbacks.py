"""What looks on from outside while runs go on: callbacks of the user's, and trackers (`tracking`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedconcord.jobs import Row
from fedconcord.runs.events import Event, Finished, Stage, Watch


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
                why = " ".join(f"{type(error).__name__}: {error}".split())
                name = type(callback).__name__
                warnings.warn(f"{name} failed at the {what} ({why}); the runs go on without it", stacklevel=2)
