"""TensorBoard: an event file in the folder of each run; `tensorboard --logdir OUT` shows all below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedconcord.basis.files import folder_name
from fedconcord.jobs import Row
from fedconcord.runs.events import Finished, Run
from fedconcord.tracking.common import package, values


class TensorBoard:
    """Scalars of every round, and the settings as text."""

    def __init__(
        self,
        dir: Annotated[
            str | None, Field(description="folder with a folder for each run; if none, the folder of each run")
        ] = None,
    ) -> None:
        self.dir = dir
        self.writer = package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.open: dict[Path, Any] = {}

    def start(self, run: Run) -> None:
        """Open the run's event file; readers forget what an earlier one has from this round on."""
        name = folder_name(f"{run.label}-seed-{run.seed}")
        folder = run.folder / "tensorboard" if self.dir is None else Path(self.dir) / name
        self.open[run.folder] = writer = self.writer(str(folder), purge_step=run.begins)
        if run.begins == 0:
            writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=2)}\n```", 0)

    def row(self, run: Run, row: Row) -> None:
        """Scalars at the step of the round; in the file at once, for a run may be killed."""
        writer = self.open[run.folder]
        for name, value in values(row).items():
            writer.add_scalar(name, value, row.round)
        writer.flush()

    def end(self, run: Run, result: Finished) -> None:
        """Close the file."""
        self.open.pop(run.folder).close()
