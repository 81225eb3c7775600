"""APPFL: its aggregators on plain clients, and its FedProx trainer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import point
import torch
from appfl.algorithm.trainer.fedprox_trainer import FedProxTrainer
from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
from omegaconf import OmegaConf
from torch.utils.data import TensorDataset

ADAPTIVE = {
    "server_learning_rate": 0.1,
    "server_momentum_param_1": 0.9,
    "server_momentum_param_2": 0.99,
    "server_adapt_param": 1e-3,
}


def judged(name: str, trainer: type | None = None, change: Any = None, **options: Any) -> Callable[[Any, Any], None]:
    """A cell: an aggregator by name, and a trainer, or plain local steps."""

    def cell(spec: Any, answer: Any) -> None:
        cls = getattr(import_module(f"appfl.algorithm.aggregator.{name.lower()}_aggregator"), f"{name}Aggregator")
        server = cls(point.Point(spec), OmegaConf.create({**ADAPTIVE, **options}), logging.getLogger("judged"))
        if options.get("client_weights_mode") == "sample_size":
            for i, one in enumerate(spec["clients"]):
                server.set_client_sample_size(i, int(one["size"]))
        for one in spec["rounds"]:
            down, models = server.get_parameters(), {}
            for i, steps in zip(one["clients"], one["steps"]):  # noqa: B905  (its own Python runs this)
                model = Network(spec)
                if trainer is None:
                    model.load_state_dict(down)
                    point.local_steps(model, i, one)
                else:
                    configs = {
                        "mode": "step", "num_local_steps": steps, "optim": "SGD", "optim_args": {"lr": one["lr"]},
                        "train_batch_size": 10**6, "device": "cpu", "do_validation": False, "mu": 0.5,
                        "train_data_shuffle": False, "logging_id": str(i), "do_pre_validation": False,
                    }  # fmt: skip
                    client = trainer(
                        model,
                        loss_fn=point.Loss(),
                        metric=lambda labels, out: 0.0,
                        train_dataset=TensorDataset(*point.samples(spec, i)),
                        train_configs=OmegaConf.create(configs),
                        logger=Quiet(),
                    )
                    client.load_parameters(down)
                    client.train()
                    model = client.model
                models[i] = copy.deepcopy(model.state_dict())
            server.aggregate(models)
            answer(server.get_parameters()["x"])

    return cell


class Network(point.Point):
    """The model with an output of one entry, as its trainers gather outputs."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows).reshape(1)


class Quiet:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **options: None


point.main(
    {
        "FedAvg": judged("FedAvg", VanillaTrainer),
        "FedAvg(client_weights_mode=sample_size)": judged("FedAvg", client_weights_mode="sample_size"),
        "FedProx": judged("FedAvg", FedProxTrainer),
        "FedAvgM": judged("FedAvgM"),
        "FedAdam": judged("FedAdam"),
        "FedYogi": judged("FedYogi"),
        "FedAdagrad": judged("FedAdagrad"),
    }
)
