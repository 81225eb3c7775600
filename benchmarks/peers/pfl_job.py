"""pfl-research 0.6: FederatedAveraging in a SimulatedBackend, data as tensors; --processes 2 shards each cohort."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from networks import accuracy, ready
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Network(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Lap(TrainingProcessCallback):
    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        at.turns.lap()
        return False, Metrics()


parser = argparse.ArgumentParser()
parser.add_argument("--processes", type=int, default=1)
second = os.environ.get(RANK, "0") != "0"
if second:
    os.environ.pop("BENCHMARK_TURNS", None)  # it follows the first process
at = ready(parser)
setting = at.setting
if at.args.processes > 1 and not second:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    os.environ[ADDRESSES] = ",".join([address] * at.args.processes)
    for rank in range(1, at.args.processes):
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, RANK: str(rank)})
    os.environ[RANK] = "0"

np.random.seed(at.args.seed)
users = [PyTorchTensorDataset(client, user_id=str(i)) for i, client in enumerate(at.clients)]
network = Network(at.model)
model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
backend = SimulatedBackend(
    training_data=FederatedDataset(users.__getitem__, lambda: np.random.randint(setting.clients)),
    val_data=None,
)
total = at.args.warmup + at.args.rounds
if not second:
    at.turns.begin()
FederatedAveraging().run(
    backend=backend,
    model=model,
    # an evaluation frequency beyond the last round: only round 0, which warms up, evaluates its users
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=total,
        evaluation_frequency=total + 1,
        train_cohort_size=setting.cohort,
        val_cohort_size=0,
    ),
    model_train_params=NNTrainHyperParams(
        local_num_epochs=setting.epochs or setting.steps,
        local_learning_rate=setting.lr,
        local_batch_size=setting.batch,
    ),
    callbacks=[] if second else [Lap()],
    send_metrics_to_platform=False,
)
if not second:
    at.turns.finish(
        at.args.warmup,
        accuracy=accuracy(network, at.federation),
        versions={"pfl": version("pfl"), "torch": torch.__version__},
    )
