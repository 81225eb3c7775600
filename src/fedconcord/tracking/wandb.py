"""Weights & Biases: a run of theirs for each run, offline unless asked otherwise; `wandb sync` sends it later."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedconcord.jobs import Row
from fedconcord.runs.events import Finished, Run
from fedconcord.tracking.common import mark, marked, package, values

NAME = "wandb"


class WandB:
    """Settings as the configuration, and the history of every round."""

    def __init__(
        self,
        project: Annotated[str, Field(min_length=1, description="name of the project")] = "fedconcord",
        mode: Annotated[
            Literal["offline", "online"],
            Field(description="offline writes files; online sends to the service's server"),
        ] = "offline",
        dir: Annotated[
            str | None, Field(description="folder of the tracker's files; if none, beside the results")
        ] = None,
    ) -> None:
        self.project, self.mode, self.dir = project, mode, dir
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine that nobody asked for
        self.package = package("wandb", NAME)
        self.open: dict[Path, tuple[Any, str, int, float]] = {}  # their run, its id, last round, when begun

    def start(self, run: Run) -> None:
        """Begin a run, or go on under the id of the one that the folder names; offline that is one more folder."""
        known = marked(run.folder, NAME) if run.begins > 0 else {}
        name, last = str(known.get("id") or uuid.uuid4().hex[:8]), int(known.get("round", -1))
        folder = run.root if self.dir is None else Path(self.dir)
        if known:
            time.sleep(max(0.0, float(known.get("at", 0.0)) + 1.1 - time.time()))  # they name a folder by id and second
        their_run = self.package.init(
            project=self.project,
            name=f"{run.label}, seed {run.seed}",
            id=name,
            config=dict(run.settings),
            dir=str(folder),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            reinit="create_new",  # several runs of a comparison go on at once
            settings=self.package.Settings(silent=True, console="off"),
        )
        at = time.time()
        self.open[run.folder] = their_run, name, last, at
        mark(run.folder, NAME, id=name, round=last, at=at)

    def row(self, run: Run, row: Row) -> None:
        """The history at the step of the round, unless it was sent before the run was killed."""
        their_run, name, last, at = self.open[run.folder]
        if row.round <= last:
            return
        their_run.log({**values(row), "round": row.round}, step=row.round)
        mark(run.folder, NAME, id=name, round=row.round, at=at)

    def end(self, run: Run, result: Finished) -> None:
        """Say how it ended, and wait until all is written."""
        their_run, *_ = self.open.pop(run.folder)
        their_run.summary["status"] = result.status
        their_run.finish(exit_code=0 if result.status == "complete" else 1)
