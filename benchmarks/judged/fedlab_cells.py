"""FedLab: its server handlers and serial client trainers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import point  # noqa: F401  before the package: it makes torch ready
import torch
import vision  # noqa: F401  before the package, which imports torchvision
from fedlab.contrib.algorithm import basic_client, basic_server, feddyn, fednova, fedprox, qfedavg, scaffold
from point import Point, itself, main

logging.disable(logging.INFO)


class Batches:
    """What FedLab asks of a data set: as many full batches as the client has steps, the first with labels 1."""

    steps = 1

    def get_dataloader(self, i: int, batch_size: Any) -> list[Any]:
        return [(torch.tensor([i]), torch.full((1,), float(k == 0))) for k in range(self.steps)]


def judged(
    handler: type, trainer: type, server_options: dict[str, Any] | None = None, **options: float
) -> Callable[[Any, Any], None]:
    """A cell; the options of `setup_optim` of both."""

    def cell(spec: Any, answer: Any) -> None:
        n = len(spec["clients"])
        share = len(spec["rounds"][0]["clients"]) / n
        server, data = handler(Point(spec), len(spec["rounds"]), share), Batches()
        client = trainer(Point(spec), n)
        server.num_clients = n
        if server_options is not None:
            server.setup_optim(**server_options)
        client.setup_dataset(data)
        client.setup_optim(1, 1, spec["rounds"][0]["lr"], **options)
        client.criterion = itself
        for one in spec["rounds"]:
            client.lr = client.optimizer.param_groups[0]["lr"] = one["lr"]
            down = server.downlink_package
            for i, data.steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                client.local_process(down, [i])
                for message in client.uplink_package:
                    server.load(message)
            answer(server.model_parameters)

    return cell


class PulledTrainer(feddyn.FedDynSerialClientTrainer):
    """FedDyn's client with a gradient of its linear and its proximal term."""

    @property
    def model_parameters(self) -> torch.Tensor:
        """x itself while it trains, which `serialize_model` would take from `param.data`."""
        x: torch.Tensor = self._model.x
        return x if torch.is_grad_enabled() and self.in_steps else x.detach().clone()

    in_steps = False

    def train(self, i: int, model_parameters: torch.Tensor, train_loader: Any) -> Any:
        if self.L[i] is None:
            self.L[i] = torch.zeros_like(model_parameters)
        self.in_steps = True
        super().train(i, model_parameters, train_loader)
        self.in_steps = False
        self.L[i] = self.L[i].detach()
        return [self.model_parameters]


class EachHandler(feddyn.FedDynServerHandler):
    """FedDyn's server that takes its model from every client's, where FedLab takes it once from their sum."""

    def global_update(self, buffer: Any) -> None:
        models = [message[0] for message in buffer]
        self.h = self.h - self.alpha / self.num_clients * sum(x - self.model_parameters for x in models)
        self.set_model(sum(models) / len(models) - self.h / self.alpha)


class FairTrainer(qfedavg.qFedAvgClientTrainer):
    """q-FedAvg's client, which is one client alone, with the interface of the serial trainers."""

    def __init__(self, model: Any, n: int) -> None:
        super().__init__(model)

    def local_process(self, payload: Any, ids: list[int]) -> None:
        for i in ids:
            super().local_process(payload, i)

    @property
    def uplink_package(self) -> list[Any]:
        return [super().uplink_package]


class FairStartTrainer(FairTrainer):
    """q-FedAvg's client that counts the loss at the server's model alone, where FedLab adds up those of all steps."""

    def train(self, model_parameters: torch.Tensor, train_loader: Any) -> None:
        self.criterion = lambda out, labels: itself(out, labels) - (0 if labels.all() else itself(out, labels).detach())
        super().train(model_parameters, train_loader)


Serial, Sync = basic_client.SGDSerialClientTrainer, basic_server.SyncServerHandler
Nova = fednova.FedNovaSerialClientTrainer
main(
    {
        "FedAvg": judged(Sync, Serial),
        "FedProx": judged(fedprox.FedProxServerHandler, fedprox.FedProxSerialClientTrainer, mu=0.5),
        "SCAFFOLD": judged(scaffold.ScaffoldServerHandler, scaffold.ScaffoldSerialClientTrainer, {"lr": 1.0}),
        "FedDyn": judged(feddyn.FedDynServerHandler, feddyn.FedDynSerialClientTrainer, {"alpha": 0.5}, alpha=0.5),
        "FedDyn, server repaired": judged(EachHandler, feddyn.FedDynSerialClientTrainer, {"alpha": 0.5}, alpha=0.5),
        "FedDyn, repaired": judged(EachHandler, PulledTrainer, {"alpha": 0.5}, alpha=0.5),
        "FedNova": judged(fednova.FedNovaServerHandler, Nova, {}),
        "FedNova(option=uniform)": judged(fednova.FedNovaServerHandler, Nova, {"option": "uniform"}),
        "qFedAvg": judged(qfedavg.qFedAvgServerHandler, FairTrainer, q=1.0),
        "qFedAvg, repaired": judged(qfedavg.qFedAvgServerHandler, FairStartTrainer, q=1.0),
    }
)
