"""FLGo 0.4: its FedAvg in the horizontal scene, uniform sampling, a benchmark of our own with a loader of slices."""

# ruff: noqa: E402  what is set below must be set before these imports
from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
import vision  # noqa: F401  before the peer
from networks import NETWORKS, accuracy, ready

at = ready()
setting = at.setting
os.environ["FLGO_FEDERATION"] = str(Path(at.args.federation).resolve())
sys.argv = sys.argv[:1]  # FLGo reads options from the command line too
os.chdir(tempfile.mkdtemp())

import flgo
import flgo_data
from flgo.algorithm import fedavg


class Server(fedavg.Server):
    def iterate(self) -> bool:
        done = super().iterate()
        at.turns.lap()
        return done


class FedAvg:
    """What FLGo takes for an algorithm."""

    Server = Server
    Client = fedavg.Client


flgo.gen_task_by_(flgo_data, task_path="task")
runner = flgo.init(
    "task",
    FedAvg,
    {
        "num_rounds": at.args.warmup + at.args.rounds,
        "proportion": setting.cohort / setting.clients,
        "sample": "uniform",
        "aggregate": "uniform",
        "num_epochs": setting.epochs or setting.steps,
        "batch_size": setting.batch or setting.samples,
        "learning_rate": setting.lr,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "no_tqdm": True,
        "no_log_console": True,
        "seed": at.args.seed,
    },
    model=flgo.convert_model(NETWORKS[setting.model], setting.model),
)
at.turns.begin()
runner.run()
at.turns.finish(
    at.args.warmup,
    accuracy=accuracy(runner.model, at.federation),
    versions={"flgo": version("flgo"), "torch": torch.__version__},
)
