"""FedDyn: dynamic regularisation.

Acar et al., ICLR 2021, Algorithm 1, in the letters of its released code: h_i = -(1/alpha) * (gradient memory), in model
units.
    y_i <- y_i - eta (g(y_i) + alpha (y_i - x + h_i)),   h_i <- h_i + y_i - x,   x <- mean_A y_i + mean_N h_i.
The server's offset is the mean of h over *all* clients, a running sum. By size, as that code has it: alpha_i =
alpha / (N p_i), while the means stay plain. At a fixed cohort size it is
fedvra(gamma=[alpha_i], a=1, d=N/S, weights="size"). Clipping is the local solver's: its form `released` is that code's.

FedSpeed: Sun et al., ICLR 2023, as FL-Simulator has it: FedDyn with the SAM gradient. Deviations of that code from the
paper, kept: the ascended gradient alone, where the paper mixes it with the plain one, and the offset of all clients.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Radius, sharpness_aware
from fedconcord.method.contract import (
    Algorithm,
    Caution,
    Client,
    Cohort,
    Constant,
    Done,
    Facts,
    Local,
    Memory,
    Needs,
    Phases,
    Population,
    Pull,
    Recommendation,
    Sender,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Positive, about

Alpha = Annotated[Positive, about("weight of the dynamic regulariser"), Search(0.01, 1.0)]


class Server(NamedTuple):
    x: Tensor  # [d]
    mean: Tensor  # [d] participants' mean model, before the offset
    h: Tensor  # [d] mean of all h_i, by weight where that is uniform
    n: Tensor | tuple[()] = ()  # [] clients N, by size


class Down(NamedTuple):
    x: Tensor  # [d]
    n: Tensor | tuple[()]  # []


class Row(NamedTuple):
    h: Tensor  # [d]


class Sums(NamedTuple):
    move: Tensor  # [d] mean of x_i - x over the cohort
    h: Tensor  # [d] what the mean of h gains


@definition()
def feddyn(
    alpha: Alpha = 0.1,
    weights: Annotated[
        Literal["uniform", "size"],
        about("weights p_i of the objective; with size, the penalty at client i is alpha / (N p_i)"),
    ] = "uniform",
) -> Algorithm:
    """FedDyn: a linear term and a pull that align clients' and server's stationary points.

    Acar et al., ICLR 2021, Algorithm 1.
    """

    by_size = weights == "size"

    def init(x: Tensor, population: Population) -> Server:
        return Server(x, x, torch.zeros_like(x), x.new_tensor(population.n) if by_size else ())

    def start(down: Down, row: Row, client: Client) -> Local:
        penalty = alpha / (down.n * client.p) if isinstance(down.n, Tensor) else alpha
        return Local(down.x, Constant(penalty * row.h), Pull(penalty, down.x))

    def finish(down: Down, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        move = done.x - down.x
        return move, Row(row.h + move)

    def contribute(move: Tensor, sender: Sender, cohort: Cohort) -> Sums:
        if by_size:
            return Sums(move / cohort.size, move / cohort.n)
        return Sums(sender.w * move, sender.p * move)

    def update(server: Server, total: Sums, cohort: Cohort) -> Server:
        mean, h = server.x + total.move, server.h + total.h
        return Server(mean + h, mean, h, server.n)

    def gradients(server: Server, rows: Row, p: Tensor, mean: Tensor) -> Tensor:
        if by_size and isinstance(server.n, Tensor):
            return -alpha / (server.n * p).to(rows.h)[:, None] * rows.h
        return -alpha * rows.h

    return Algorithm(
        init=init,
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: Down(server.x, server.n),
        start=start,
        finish=finish,
        contribute=contribute,
        update=update,
        weights=weights,
        phases=Phases(asynchronous=None if by_size else "damped"),
        models=lambda server: {"server": server.x, "mean": server.mean},
        needs=Needs(weight=by_size),
        facts=Facts(
            group="primal-dual",
            memory=Memory("dual variable -alpha h_i", gradients, lambda server: -alpha * server.h, is_dual=True),
            invariant="h, the mean of all clients' h_i",
            remedies=("dissimilar gradients",),
            recommendations=(
                Recommendation(
                    {"skewed": 2},
                    "alpha=0.01,local.lr=0.3",
                    "a dual variable a client keeps large local steps from drifting, at FedAvg's messages",
                ),
            ),
        ),
    )


@definition()
def fedspeed(alpha: Alpha = 0.1, radius: Radius = 0.1) -> Algorithm:
    """FedSpeed: FedDyn with sharpness-aware local gradients.

    Sun et al., ICLR 2023, with the all-client mean of the released code: the paper's own server, the participants' mean
    alone, drifts on heterogeneous quadratics.
    """
    return sharpness_aware(
        feddyn(alpha), radius, Caution("seldom", "what corrects a client is of its first round or of none")
    )
