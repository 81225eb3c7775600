"""Looks at every client while a run goes on: fairness.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedconcord.analysis import fairness
from fedconcord.jobs import Job, State, Step, model_of
from fedconcord.runs import tables

NAME = "fairness.csv"


class Looks:
    """How evenly the model serves the clients, every so many rounds; never without such a number."""

    def __init__(self, job: Job, folder: Path, every: int | None, round: int) -> None:
        """Go on after a round; 0 where the run begins."""
        self.job, self.path, self.every = job, folder / NAME, every
        self.rows = tables.rows_of(self.path, round) if round > 0 and self.path.exists() else []

    def see(self, now: Step) -> None:
        """A look, where it is time for one."""
        if now.row.round > 0 and self.every is not None and now.row.round % self.every == 0:
            scores = fairness.look(self.job.problem, model_of(self.job, now.state))
            if scores is not None:
                self.rows.append(fairness.row(now.row.round, scores))

    def save(self, state: State) -> None:
        """fairness.csv."""
        if self.rows:
            fairness.write_rounds(self.path, self.rows)

    def end(self, state: State) -> None:
        """Nothing: the last look is that of `final`."""

    def about(self) -> dict[str, Any]:
        """Nothing."""
        return {}
