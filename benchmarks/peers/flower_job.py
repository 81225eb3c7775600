"""Flower 1.42: FedAvg strategy of the message API, run_simulation with one ray worker a core; data cached by worker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import flower_client
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import accuracy, ready

parser = argparse.ArgumentParser()
parser.add_argument("--processes", type=int, default=2, help="ray workers")
at = ready(parser)
setting = at.setting


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    total = at.args.warmup + at.args.rounds

    def after(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round == 0:
            at.turns.begin()
        else:
            at.turns.lap()
        return None

    strategy = FedAvg(
        fraction_train=setting.cohort / setting.clients,
        fraction_evaluate=0.0,
        min_train_nodes=setting.cohort,
        min_available_nodes=setting.clients,
    )
    found = strategy.start(grid, ArrayRecord(at.model.state_dict()), num_rounds=total, evaluate_fn=after)
    at.model.load_state_dict(found.arrays.to_torch_state_dict())


os.environ[flower_client.FEDERATION] = str(Path(at.args.federation).resolve())  # the workers inherit it
os.environ[flower_client.SETTING] = json.dumps(setting)
run_simulation(
    server_app,
    flower_client.app,
    num_supernodes=setting.clients,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": at.args.processes, "include_dashboard": False},
    },
)
if len(at.turns.seconds) < at.args.warmup + at.args.rounds:
    sys.exit("the simulation ended early")
at.turns.finish(
    at.args.warmup,
    accuracy=accuracy(at.model, at.federation),
    versions={"flwr": version("flwr"), "ray": version("ray"), "torch": torch.__version__},
)
