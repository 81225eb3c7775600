"""MLflow: a run of MLflow's for each run, in an SQLite file beside the results or at a tracking server."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedconcord.basis.grammar import flatten
from fedconcord.jobs import Row
from fedconcord.runs.events import Finished, Run
from fedconcord.tracking.common import mark, marked, package, values

NAME, ROUND = "mlflow", "round"
STATUS = {"complete": "FINISHED", "interrupted": "KILLED"}  # else FAILED
LONGEST = 6000  # characters of a parameter that MLflow takes


class MLflow:
    """Settings as parameters, and metrics of every round."""

    def __init__(
        self,
        uri: Annotated[
            str | None, Field(description="tracking server or store; if none, mlflow.db beside the results")
        ] = None,
        experiment: Annotated[str, Field(min_length=1, description="name of the experiment")] = "fedconcord",
    ) -> None:
        self.uri, self.experiment = uri, experiment
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves the machine that nobody asked for
        self.package = package("mlflow", NAME)
        package("sqlalchemy", NAME)
        package("alembic", NAME)
        for noisy in ("alembic", "mlflow"):  # they tell of every table that they make
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self.clients: dict[str, Any] = {}  # by uri
        self.open: dict[Path, tuple[Any, str, int]] = {}  # client, id, the last round that it has

    def start(self, run: Run) -> None:
        """Take up the run that the folder names, if it is resumed and there, else begin one."""
        uri = self.uri or f"sqlite:///{(run.root / 'mlflow.db').absolute()}"
        if uri not in self.clients:
            self.clients[uri] = self.package.MlflowClient(tracking_uri=uri)
        client, known = self.clients[uri], marked(run.folder, NAME)
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
        mark(run.folder, NAME, uri=uri, id=run_id)
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
