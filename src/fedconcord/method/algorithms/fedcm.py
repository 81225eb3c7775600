"""FedCM, MoFedSAM and MFL: momentum at the clients.

FedCM: Xu et al., 2021 (arXiv 2106.10874):
    y_i <- y_i - eta (alpha g(y_i) + (1 - alpha) D),   x <- x + eta_g sum_A w_i Delta_i,
    D+ = -sum_A w_i Delta_i / (k_i eta).
k_i is what a client's local steps make of a direction that is 1 in every step: the steps K_i that it took, and with
momentum or steps of other sizes their response to it, ||a_i||_1 of FedNova over alpha. The client sends it (the
released code, where all K_i are equal, uses their common value).

MoFedSAM: Qu et al., ICML 2022: the same with the SAM gradient.

MFL: Liu et al., IEEE TPDS 2020: local heavy ball whose d starts from the server's and is averaged with the models:
    d_i <- momentum d_i + g(y_i),   y_i <- y_i - eta d_i;   x <- x + eta_g sum_A w_i (y_i - x),   d <- sum_A w_i d_i.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Radius, ServerLR, WeightsOption, sharpness_aware
from fedconcord.method.contract import (
    Algorithm,
    Constant,
    Facts,
    Local,
    Momentum,
    Needs,
    Phases,
    Recommendation,
    Scale,
    Step,
    tree_map,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import BelowOne, Fraction, about


class Server(NamedTuple):
    x: Tensor  # [d]
    direction: Tensor  # [d] D, the last round's mean direction


class Message(NamedTuple):
    move: Tensor  # [d] x_i - x
    response: Tensor  # [] k_i; the local steps taken, for plain SGD


Alpha = Annotated[Fraction, about("weight of the client's own gradient"), Search(0.02, 1.0)]


@definition(version=3)
def fedcm(alpha: Alpha = 0.1, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedCM: clients follow the last round's global direction.

    Xu et al., 2021.
    """
    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Scale(alpha), Constant((1 - alpha) * down.direction)),
        finish=lambda down, row, done, client: (Message(done.x - down.x, done.normaliser / alpha), row),
        contribute=lambda up, sender, cohort: Server(
            sender.w * up.move, -sender.w * up.move / (up.response * sender.lr)
        ),
        update=lambda server, total, cohort: Server(server.x + server_lr * total.x, total.direction),
        weights=weights,
        needs=Needs(normaliser=True),
        phases=Phases(asynchronous="damped"),
        facts=Facts(
            group="client momentum",
            recommendations=(
                Recommendation(
                    {"skewed": 3, "any": 2},
                    "alpha=0.3,local.lr=1",
                    "clients follow the last round's common direction, and need no memory",
                ),
            ),
        ),
    )


@definition(version=2)
def mofedsam(
    alpha: Alpha = 0.1, radius: Radius = 0.1, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform"
) -> Algorithm:
    """MoFedSAM: FedCM with sharpness-aware local gradients.

    Qu et al., ICML 2022.
    """
    return sharpness_aware(fedcm(alpha, server_lr, weights), radius)


class Averaged(NamedTuple):
    x: Tensor  # [d]
    buffer: Tensor  # [d] momentum


@definition()
def mfl(
    momentum: Annotated[
        BelowOne,
        about("momentum that is kept across rounds and averaged"),
        Search(0.0, 0.95, "linear"),
    ] = 0.9,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """MFL: local momentum that is kept across rounds and averaged with the models.

    Liu et al., IEEE TPDS 2020.
    """
    return Algorithm(
        init=lambda x, population: Averaged(x, torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Momentum(momentum, down.buffer)),
        finish=lambda down, row, done, client: (Averaged(done.x - down.x, done.piece(Momentum).buffer), row),
        contribute=lambda up, sender, cohort: tree_map(lambda leaf: sender.w * leaf, up),
        update=lambda server, total, cohort: Averaged(server.x + server_lr * total.x, total.buffer),
        weights=weights,
        phases=Phases(asynchronous="damped"),
        step=Step(fixed=True),
        facts=Facts(group="client momentum", unfit=(("upload", "its clients send their momentum as it is"),)),
    )
