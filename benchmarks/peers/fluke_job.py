"""fluke 0.8: FedAVG over its own clients and tensor loaders, evaluation off."""

from __future__ import annotations

from importlib.metadata import version

import torch
import vision  # noqa: F401  before the peer
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from networks import accuracy, ready


class Lap(FederationObserver):
    def end_round(self, round: int) -> None:
        at.turns.lap()


at = ready()
setting = at.setting
FlukeENV().set_eval_cfg(task="classification", n_classes=10, locals=False, pre_fit=False, post_fit=False, server=False)
FlukeENV().set_seed(at.args.seed)
optimizer = OptimizerConfigurator(DDict(name="SGD", lr=setting.lr))
clients = [
    Client(
        i,
        FastDataLoader(*client, num_labels=10, batch_size=setting.batch or setting.samples, shuffle=True),
        None,
        optimizer,
        torch.nn.CrossEntropyLoss(),
        local_epochs=setting.epochs or setting.steps,
        persistency=False,
    )
    for i, client in enumerate(at.clients)
]
server = Server(at.model, None, clients)
federation = FedAVG(setting.clients, None, None, clients=clients, server=server)
federation.set_callbacks(Lap())
at.turns.begin()
federation.run(at.args.warmup + at.args.rounds, setting.cohort / setting.clients, finalize=False)
at.turns.finish(
    at.args.warmup,
    accuracy=accuracy(server.model, at.federation),
    versions={"fluke-fl": version("fluke-fl"), "torch": torch.__version__},
)
