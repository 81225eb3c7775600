"""The jobs' networks in plain torch, and what a contestant needs that knows nothing of the library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from settings import Federation, Setting, arguments, load
from torch import Tensor, nn
from turns import Turns


def two_nn() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def cnn1() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def logreg() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def pfl_cnn() -> nn.Sequential:
    """The CNN of pfl-research's CIFAR-10 job without its two dropout layers; 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12_544, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


NETWORKS = {"2nn": two_nn, "cnn1": cnn1, "logreg": logreg, "pfl_cnn": pfl_cnn}


class Ready(NamedTuple):
    """What a contestant in torch starts from."""

    args: argparse.Namespace
    setting: Setting
    federation: Federation
    clients: list[tuple[Tensor, Tensor]]  # samples [n_i, *shape] and labels [n_i] of each
    model: nn.Sequential
    turns: Turns


def ready(extra: argparse.ArgumentParser | None = None) -> Ready:
    """Read the command line, the data and the network; torch has the threads asked for."""
    args, setting = arguments(extra)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    federation = load(Path(args.federation))
    clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in federation.clients]
    turns = Turns(args.warmup + args.rounds)
    return Ready(args, setting, federation, clients, NETWORKS[setting.model](), turns)


@torch.no_grad()
def accuracy(model: nn.Module, federation: Federation) -> float:
    """Share of the test samples that the model labels right."""
    model.eval()
    device = next(model.parameters()).device
    y = torch.from_numpy(federation.test_y).to(device)
    parts = torch.from_numpy(federation.test_x).to(device).split(1000)
    return float((torch.cat([model(x).argmax(1) for x in parts]) == y).float().mean())
