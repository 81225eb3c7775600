"""Trackers: callbacks that write what runs measure for TensorBoard, MLflow, and Weights & Biases.

To add one: a class that is a `Callback` and whose arguments are its options, and its line in `TRACKERS`. Each imports
its package when it is made, and says how to install it where it is missing.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedconcord.execution.job import Row
from fedconcord.study.runs.events import Callback, Finished, Run
from fedconcord.study.settings.sources import Source, prepare
from fedconcord.support import factories, files
from fedconcord.support.errors import UserError
from fedconcord.support.files import folder_name
from fedconcord.support.grammar import flatten
from fedconcord.support.imports import open_factories

ROUND = "round"
STATUS = {"complete": "FINISHED", "interrupted": "KILLED"}  # else FAILED
LONGEST = 6000  # characters of a parameter that MLflow takes


def package(name: str, extra: str) -> Any:
    """A module of a tracker's package, imported without its warnings, which are for its authors.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"tracking with {extra} needs a package that is missing ({error}); pip install 'fedconcord[{extra}]'"
        ) from None


def values(row: Row) -> dict[str, float]:
    """Metrics, where the round was evaluated, bytes and gradients until now, and the seconds of the round."""
    numbers: dict[str, float] = {name.replace(":", "/"): value for name, value in (row.metrics or {}).items()}
    numbers |= {"bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "gradient_steps": row.gradient_steps}
    numbers["seconds"] = row.seconds
    return {**numbers, "simulated_seconds": row.simulated_seconds} if row.simulated_seconds else numbers


def marked(folder: Path, tracker: str) -> dict[str, Any]:
    """What a tracker has noted in the folder of a run; empty where it has not."""
    try:
        notes: dict[str, Any] = json.loads((folder / f"{tracker}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes


def mark(folder: Path, tracker: str, **noted: object) -> None:
    """Note for when the run is resumed."""
    files.write_json(folder / f"{tracker}.json", noted)


class TensorBoard:
    """An event file in the folder of each run, with scalars of every round and the settings as text.

    `tensorboard --logdir OUT` shows all below.
    """

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
        # At every start: what a killed run had not yet written is gone, and a resumed one may have other settings.
        writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=2)}\n```", run.begins)
        writer.flush()

    def row(self, run: Run, row: Row) -> None:
        """Scalars at the step of the round; in the file at once, for a run may be killed."""
        writer = self.open[run.folder]
        for name, value in values(row).items():
            writer.add_scalar(name, value, row.round)
        writer.flush()

    def end(self, run: Run, result: Finished) -> None:
        """Close the file."""
        self.open.pop(run.folder).close()


class MLflow:
    """A run of MLflow's for each run, in an SQLite file beside the results or at a tracking server.

    Settings are its parameters, and metrics are of every round.
    """

    def __init__(
        self,
        uri: Annotated[
            str | None, Field(description="tracking server or store; if none, mlflow.db beside the results")
        ] = None,
        experiment: Annotated[str, Field(min_length=1, description="name of the experiment")] = "fedconcord",
    ) -> None:
        self.uri, self.experiment = uri, experiment
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves the machine that nobody asked for
        self.package = package("mlflow", "mlflow")
        package("sqlalchemy", "mlflow")
        package("alembic", "mlflow")
        for noisy in ("alembic", "mlflow"):  # they tell of every table that they make
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self.clients: dict[str, Any] = {}  # by uri
        self.open: dict[Path, tuple[Any, str, int]] = {}  # client, id, the last round that it has

    def start(self, run: Run) -> None:
        """Take up the run that the folder names, if it is resumed and there, else begin one."""
        uri = self.uri or f"sqlite:///{(run.root / 'mlflow.db').absolute()}"
        if uri not in self.clients:
            self.clients[uri] = self.package.MlflowClient(tracking_uri=uri)
        client, known = self.clients[uri], marked(run.folder, "mlflow")
        if run.begins > 0 and known.get("uri") == uri:
            known_run = client.get_run(known["id"])
            client.update_run(known["id"], status="RUNNING")
            self.open[run.folder] = client, known["id"], int(known_run.data.metrics.get(ROUND, -1))
            return
        existing = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if existing is None else existing.experiment_id
        name = f"{run.label}, seed {run.seed}"
        run_id = client.create_run(experiment, run_name=name, tags={"fedconcord.folder": str(run.folder)}).info.run_id
        entities = self.package.entities
        settings = [
            entities.Param(key, str(value)[:LONGEST]) for key, value in flatten(run.settings).items() if value != {}
        ]
        client.log_batch(run_id, params=settings)
        mark(run.folder, "mlflow", uri=uri, id=run_id)
        self.open[run.folder] = client, run_id, -1

    def row(self, run: Run, row: Row) -> None:
        """Metrics at the step of the round, unless MLflow has it from before the run was killed."""
        client, run_id, last = self.open[run.folder]
        if row.round <= last:
            return
        now, metric = int(1000 * time.time()), self.package.entities.Metric
        every = {**values(row), ROUND: row.round}
        client.log_batch(run_id, metrics=[metric(name, value, now, row.round) for name, value in every.items()])

    def end(self, run: Run, result: Finished) -> None:
        """Say how it ended."""
        client, run_id, _ = self.open.pop(run.folder)
        client.set_tag(run_id, "fedconcord.status", result.status)
        client.set_terminated(run_id, status=STATUS.get(result.status, "FAILED"))


class WandB:
    """A run of Weights & Biases for each run, offline unless asked otherwise; `wandb sync` sends it later.

    Settings are its configuration, and its history has every round.
    """

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
        self.package = package("wandb", "wandb")
        self.open: dict[Path, tuple[Any, str, int, float]] = {}  # their run, its id, last round, when begun

    def start(self, run: Run) -> None:
        """Begin a run, or go on under the id of the one that the folder names; offline that is one more folder."""
        known = marked(run.folder, "wandb") if run.begins > 0 else {}
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
        mark(run.folder, "wandb", id=name, round=last, at=at)

    def row(self, run: Run, row: Row) -> None:
        """The history at the step of the round, unless it was sent before the run was killed."""
        their_run, name, last, at = self.open[run.folder]
        if row.round <= last:
            return
        their_run.log({**values(row), "round": row.round}, step=row.round)
        mark(run.folder, "wandb", id=name, round=row.round, at=at)

    def end(self, run: Run, result: Finished) -> None:
        """Say how it ended, and wait until all is written."""
        their_run, *_ = self.open.pop(run.folder)
        their_run.summary["status"] = result.status
        their_run.finish(exit_code=0 if result.status == "complete" else 1)


TRACKERS: dict[str, Callable[..., Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def trackers(texts: Sequence[str]) -> list[Callback]:
    """The trackers of these texts, as in `tensorboard` or `wandb(project=digits)`; or classes by import path.

    Raises:
        UserError: one is unknown, or its package is missing.
    """
    registry = open_factories(TRACKERS, "tracker", ())
    return [factories.build(registry, "tracker", text) for text in texts]


def check(sources: Sequence[Source]) -> None:
    """Refuse trackers that cannot work, before anything is planned.

    Raises:
        UserError: as `trackers`.
    """
    for source in sources:
        texts = prepare("track", source.values.get("track", []))
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):  # else `resolve` refuses it
            trackers(texts)
