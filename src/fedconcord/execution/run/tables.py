"""The tables of a run: metrics.csv, timing.csv and partition.csv."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.execution.job import Job, Step
from fedconcord.execution.job.accountant import Spending
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.wrappers.privacy import clip_of
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError
from fedconcord.support.readers import AGAIN, read_csv

COUNTERS = ("bytes_up", "bytes_down", "gradient_steps")
PRIVATE = ("epsilon", "clip")  # in private runs: spent until then, and the bound on messages where it adapts


class Past(NamedTuple):
    """Rows of metrics.csv, as text, and the seconds of timing.csv."""

    metrics: list[dict[str, Any]]
    timing: array[float]  # of rounds 1, 2, ...: 8 bytes a round are all that a long run keeps of each

    def due(self, eval_every: int, rounds: int) -> Past:
        """What a run to `rounds` rounds has of it: not the last row of a shorter run, unless it was due."""
        rows = [row for row in self.metrics if int(row["round"]) % eval_every == 0 or int(row["round"]) == rounds]
        return Past(rows, self.timing)


def read(folder: Path, round: int) -> Past:
    """The rows up to a round, as they stand.

    Raises:
        UserError: a table cannot be read, or lacks a round's seconds.
    """
    path = folder / "timing.csv"
    timing = rows_of(path, round)
    if [int(row["round"]) for row in timing] != list(range(1, round + 1)):
        raise UserError(f"{path} does not have rounds 1 to {round} in order; restore it or start the run again")
    try:
        seconds = array("d", [float(row["seconds"]) for row in timing])
    except (KeyError, TypeError, ValueError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it or start the run again") from broken
    return Past(rows_of(folder / "metrics.csv", round), seconds)


def rows_of(path: Path, round: float = math.inf) -> list[dict[str, Any]]:
    """The rows of a table up to a round; all of them if none is given.

    Raises:
        UserError: it cannot be read.
    """
    header, rows = read_csv(path)
    try:
        k = header.index("round")
        return [dict(zip(header, row, strict=True)) for row in rows if int(row[k]) <= round]
    except ValueError as broken:
        raise UserError(f"cannot read {path} ({broken}); {AGAIN}") from None


class Tables:
    """metrics.csv and timing.csv as they grow."""

    def __init__(self, job: Job, folder: Path, past: Past | None, spending: Spending | None = None) -> None:
        self.folder, self.spending = folder, spending
        self.metrics, self.timing = past or Past([], array("d"))
        timed = isinstance(job.schedule, Schedule) and job.schedule.devices is not None
        self.counters = (*COUNTERS, "simulated_seconds") if timed else COUNTERS
        self.diverged = any(not _finite(row) for row in self.metrics)

    def owed(self, round: int, due: bool) -> float | None:
        """The seconds of a round that was trained and not measured, where it is due; None: all is there.

        It is only now the last, or the run was killed between the two.
        """
        if not due or any(int(row["round"]) >= round for row in self.metrics):
            return None
        return self.timing.pop()  # the round is seen once more

    def trained(self, round: int, seconds: float) -> None:
        """A round that is not measured yet."""
        if len(self.timing) < round:
            self.timing.append(seconds)

    def see(self, now: Step) -> None:
        """A row each, and whether a metric is not finite."""
        row = now.row
        if row.round > 0:
            self.trained(row.round, row.seconds)
        if row.metrics is not None:
            epsilon = None if self.spending is None else self.spending.epsilon(row.round)
            privacy = zip(PRIVATE, (epsilon, clip_of(now.state.server)), strict=True)
            counters = {name: getattr(row, name) for name in self.counters}
            private = {name: value for name, value in privacy if value is not None}
            self.metrics.append({"round": row.round} | row.metrics | counters | private)
            self.diverged = not _finite(row.metrics)

    def contents(self) -> dict[str, bytes]:
        """Both tables by the names of their files, with their headers from the first."""
        header = list(self.metrics[0]) if self.metrics else ["round", *COUNTERS]
        timing = files.as_csv(["round", "seconds"], zip(count(1), self.timing))
        return {"metrics.csv": files.as_csv(header, self.metrics), "timing.csv": timing}


def write_partition(folder: Path, job: Job) -> None:
    """partition.csv: samples of each class at each client, where there are classes."""
    counts = job.problem.roster.label_counts()
    if counts is not None:
        rows = ([i, *row] for i, row in enumerate(counts.tolist()))
        header = ["client", *map(str, range(counts.shape[1]))]
        sums.write(folder, {"partition.csv": files.as_csv(header, rows)})


def _finite(metrics: Mapping[str, Any]) -> bool:
    """Whether all metrics are, as numbers or as text; an empty cell is none."""
    return all(math.isfinite(float(value)) for value in metrics.values() if value not in ("", None))
