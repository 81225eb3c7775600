"""SCAFFOLD: stochastic controlled averaging.

Karimireddy et al., ICML 2020, Algorithm 1, options I and II:
    y_i <- y_i - eta (g(y_i) + c - c_i),   x <- x + eta_g sum_A w_i (y_i - x),   c <- c + sum_A p_i (c_i+ - c_i),
    c_i+ = grad f_i(x) (option I),   c_i+ = c_i - c + (x - y_i) / (K_i eta) (option II).
c = sum_i p_i c_i holds at all times: the server adds p_i times the *change* of c_i (1/N for uniform weights). Option II
divides by the solver's own ||a_i||_1 = K_i for plain SGD, which is the right constant under local momentum too; under a
local optimiser, whose moves are no gradients, c_i+ is the mean of the round's gradients, as it is for plain SGD.
Deviation: none for the paper's setting.

FedGamma: Dai et al., IEEE TNNLS 2023; as in A-FedPD's simulator: option II, every gradient at the ascent point,
    y_i <- y_i - eta (g(y_i + e) + c - c_i),   e = radius g(y_i) / (||g(y_i)|| + 1e-7).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Radius, ServerLR, WeightsOption, sharpness_aware
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
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.parameters import about


class Corrected(NamedTuple):
    x: Tensor  # [d]
    c: Tensor  # [d] control variate


class Message(NamedTuple):
    x: Tensor  # [d] the client's move
    c: Tensor  # [d] change of its control variate


class Row(NamedTuple):
    c: Tensor  # [d] the client's control variate


CONTROL = Facts(
    group="control variates",
    memory=Memory("control variate c_i", lambda server, rows, p, mean: rows.c, lambda server: server.c),
    invariant="c = sum p_i c_i over all clients",
)


@definition()
def scaffold(
    option: Annotated[
        Literal[1, 2],
        about("how the control variate is updated: 1, by the full gradient at x; 2, by the mean local direction"),
    ] = 2,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """SCAFFOLD: control variates cancel client drift.

    Karimireddy et al., ICML 2020, Algorithm 1.
    """

    def finish(down: Corrected, row: Row, done: Done, client: Client) -> tuple[Message, Row]:
        if option == 1:
            assert client.gradient is not None
            c = client.gradient
        elif done.gradient is not None:
            c = done.gradient
        else:
            c = row.c - down.c + (down.x - done.x) / (done.normaliser * client.lr)
        return Message(done.x - down.x, c - row.c), Row(c)

    def update(server: Corrected, total: Message, cohort: Cohort) -> Corrected:
        return Corrected(server.x + server_lr * total.x, server.c + total.c)

    return Algorithm(
        init=lambda x, population: Corrected(x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Constant(down.c - row.c)),
        finish=finish,
        contribute=lambda up, sender, cohort: Message(sender.w * up.x, sender.p * up.c),
        update=update,
        weights=weights,
        phases=Phases(asynchronous="damped"),
        needs=Needs(full_gradient=option == 1, normaliser=option == 2, mean_gradient=option == 2),
        facts=CONTROL._replace(
            remedies=("drift", "dissimilar gradients"),
            cautions=(
                Caution("seldom", "what corrects a client is of its first round or of none"),
                Caution(
                    "rare",
                    "its control variates allow small steps only, so that it ends near FedAvg at twice the messages",
                ),
            ),
        ),
    )


@definition()
def fedgamma(radius: Radius = 0.01, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedGamma: SCAFFOLD with sharpness-aware local gradients.

    Dai et al., IEEE TNNLS 2023.
    """
    return sharpness_aware(scaffold(2, server_lr, weights), radius)
