"""What a run leaves in its folder while it goes on, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fedconcord.execution.engines import traffic_of
from fedconcord.execution.job import Job, State, checkpoint
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.folder import CHECKPOINT, versions
from fedconcord.execution.run.observers import Observer
from fedconcord.execution.run.tables import Tables
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError

WRITE_EVERY = 2.0  # seconds between writes of the tables while a run goes on
SHARE = 9  # times as long as a checkpoint takes lie between two


class Saving:
    """Tables and run.json every other second, everything with a checkpoint; rank 0 writes.

    A killed run has tables and a run.json that are never behind its checkpoint, and no run.json says that a run has
    ended before all that it ends with is there.

    Args:
        about: what run.json says throughout (`described`).
        checkpoint_every: seconds.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        tables: Tables,
        observers: Sequence[Observer],
        about: Mapping[str, Any],
        checkpoint_every: float,
        clock: Clock,
    ) -> None:
        self.job, self.folder, self.tables, self.observers = job, folder, tables, observers
        self.about, self.checkpoint_every, self.clock = about, checkpoint_every, clock
        self.lead = job.engine.team.rank == 0
        self.written, self.saved, self.took = -math.inf, time.monotonic(), 0.0

    def due(self) -> bool:
        """Whether it is time for a checkpoint, by the clock of rank 0: no more often than takes a tenth of the run."""
        every = self.checkpoint_every and max(self.checkpoint_every, SHARE * self.took)
        return self.lead and time.monotonic() - self.saved > every

    def write(self, status: str, state: State) -> None:
        """The tables, seconds.json and run.json."""
        if not self.lead:
            return
        sums.write(self.folder, self.tables.contents() | self.clock.contents() | self.describe(status, state))
        self.written = time.monotonic()

    @contextmanager
    def noting_failure(self, state: Callable[[], State]) -> Iterator[None]:
        """run.json says `failed` of a run that an error ends, after the rounds of `state`."""
        try:
            yield
        except Exception:
            with suppress(UserError, OSError):  # the error tells more than why it could not be noted
                self.write("failed", state())
            raise

    def describe(self, status: str, state: State) -> dict[str, bytes]:
        """run.json by its name."""
        return {"run.json": files.as_json(self._description(status, state))}

    def now_and_then(self, state: State) -> None:
        """`write`, if that was long ago."""
        if time.monotonic() - self.written > WRITE_EVERY:
            self.write("running", state)

    def save(self, state: State, checkpointed: bool = True) -> None:
        """Everything, and the checkpoint, which all processes write together; the start needs none."""
        self.write("running", state)
        if state.round == 0:
            return
        if self.lead:
            for observer in self.observers:
                observer.save(state)
        begin = time.monotonic()
        if checkpointed:
            checkpoint.save(self.job, state, self.folder / CHECKPOINT)
        self.saved = self.written = time.monotonic()
        self.took = self.saved - begin
        for observer in self.observers if self.lead else ():
            observer.release(state)

    def _description(self, status: str, state: State) -> dict[str, Any]:
        description = {**self.about, "status": status, "rounds_done": state.round}
        if state.round > 0 and (wire := traffic_of(state.store)):
            description["wire"] = wire
        if state.refused:
            description["refused"] = {
                "replies": sum(state.refused.values()),
                "clients": dict(sorted(state.refused.items())),
            }
        if state.between:
            pairs = zip(state.between[::2], state.between[1::2], strict=True)
            description["tree"] = [{"bytes_down": down, "bytes_up": up} for down, up in pairs]
        for observer in self.observers:
            description |= observer.about()
        return description


def described(job: Job, info: Mapping[str, Any], rounds: int, grows_to: int) -> dict[str, Any]:
    """What run.json says throughout, before the first round; `grows_to` in bytes."""
    return {
        "format": 1,
        **info,
        "status": "running",
        "rounds": rounds,
        "rounds_done": 0,
        "dim": job.problem.objective.dim,
        "state_bytes": grows_to,
        **({"hostile": list(job.hostile)} if job.hostile else {}),
        "threads": torch.get_num_threads(),
        **job.engine.can.choices,
        "versions": versions(),
    }
