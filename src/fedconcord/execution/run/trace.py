"""trace.csv: what became of all orders of a run whose rounds wait for nobody, in the order in which they ended.

What the run came to is a function of its job, of its clients' samples and of this. The events of a simulation's clock
say it once more, whichever engine computes the updates; at sites the server says what it saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedconcord.execution.job import Job, State, Step
from fedconcord.execution.run import tables
from fedconcord.execution.run.observers import Observer
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.support import files, sums


class End(NamedTuple):
    """What became of orders: a row."""

    round: int  # the update that was then under way, 1 for the first
    client: int | str  # who had them: a number, or the name of a site
    wave: int  # the round by which the client drew its steps and batches
    version: int  # the updates that the model had seen which came with them
    start: float | str  # simulated seconds since the start; at sites the time (UTC)
    seconds: float  # until they ended
    fate: str  # counted, stale, refused or lost


class Trace(Observer):
    """trace.csv as it grows. Of orders that ended their text is kept and nothing else."""

    def __init__(self, folder: Path, round: float) -> None:
        """Go on from what the folder has up to a round; from nothing before the first."""
        self.path, self.text = folder / "trace.csv", dict[int, bytes]()  # by round
        if round > 0 and self.path.exists():
            rows = [End(**row) for row in tables.rows_of(self.path, round)]
            for _, ends in groupby(rows, lambda end: end.round):
                self.add([*ends])

    def add(self, ends: Sequence[End]) -> None:
        """More rows, of one update."""
        round = int(ends[0].round)
        self.text[round] = self.text.get(round, b"") + files.as_csv(ends[0], ends[1:])

    def cut(self, round: int) -> None:
        """Forget what came after a round."""
        self.text = {then: text for then, text in self.text.items() if then <= round}

    def save(self, state: State) -> None:
        """The rows until now."""
        text = b"".join([files.as_csv(End._fields, ()), *self.text.values()])
        sums.write(self.path.parent, {self.path.name: text})


class SimulatedTrace(Trace):
    """That of a simulation."""

    def __init__(self, job: Job, folder: Path, round: int) -> None:
        """Go on after a round; where the folder has no trace, all rounds before are told again."""
        super().__init__(folder, round)
        self.job, self.round = job, round if self.path.exists() else 0

    def see(self, now: Step) -> None:
        """What ended until the update."""
        self._follow(now.state)

    def save(self, state: State) -> None:
        """The rows until now, also of an update that nobody looked at as it diverged."""
        self._follow(state)
        super().save(state)

    def _follow(self, state: State) -> None:
        for round in range(self.round, state.round):
            self.add(simulated(self.job, round, state.left_out if round + 1 == state.round else {}))
        self.round = state.round


def simulated(job: Job, round: int, left_out: Mapping[int, str]) -> list[End]:
    """What ended until the update of a round, which is one of the asynchronous rounds of a simulation.

    Args:
        left_out: client -> why the engine left its reply out of the update.
    """
    assert isinstance(job.schedule, Schedule)
    update = job.schedule.update(round, job.algorithm, job.problem.roster, job.cost)
    fates = [left_out.get(client, "counted") for client in update.jobs["client"].tolist()]
    fates += ["lost"] * len(update.lost) + ["stale"] * len(update.stale)
    every = np.concatenate([update.jobs, update.lost, update.stale]).tolist()  # whose fields sort as events do
    return [
        End(round + 1, client, wave, version, start / 1e9, (tick - start) / 1e9, fate)
        for (tick, _, _, client, wave, version, _, start), fate in sorted(zip(every, fates, strict=True))
    ]


def traces(job: Job, folder: Path, round: int) -> tuple[SimulatedTrace, ...]:
    """The trace of a run after a round, where its rounds are asynchronous and simulated."""
    schedule = job.schedule
    has_clock = isinstance(schedule, Schedule) and schedule.clock is not None and schedule.devices is not None
    return (SimulatedTrace(job, folder, round),) if has_clock else ()
