"""FedDyn: dynamic regularisation.

Acar et al., ICLR 2021, Algorithm 1, in the letters of its released code: h_i = -(1/alpha) * (gradient memory), in model
units. The server's offset is the mean of h over *all* clients, a running sum. FedSpeed is it with the SAM gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.algorithms.fedavg import Radius
from fedconcord.core import Algorithm, Client, Cohort, Done, Local, Oracle
from fedconcord.identity import definition

Alpha = Annotated[float, Field(gt=0, description="weight of the dynamic regulariser")]


class Server(NamedTuple):
    x: Tensor  # [d]
    mean: Tensor  # [d] participants' mean model, before the offset
    h: Tensor  # [d] sum_i p_i h_i


class Row(NamedTuple):
    h: Tensor  # [d]


class Sums(NamedTuple):
    move: Tensor  # [d] sum w_i (x_i - x)
    h: Tensor  # [d] sum p_i (x_i - x)


@definition()
def feddyn(alpha: Alpha = 0.1) -> Algorithm:
    """FedDyn: a linear term and a pull that align clients' and server's stationary points.

    Acar et al., ICLR 2021, Algorithm 1.
    """

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        move = done.x - x
        return move, Row(row.h + move)

    def update(server: Server, total: Sums, cohort: Cohort) -> Server:
        mean, h = server.x + total.move, server.h + total.h
        return Server(mean + h, mean, h)

    return Algorithm(
        init=lambda x, population: Server(x, x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        start=lambda x, row, client: Local(x, linear=alpha * row.h, prox=alpha, anchor=x),
        finish=finish,
        contribute=lambda move, sender, cohort: Sums(sender.w * move, sender.p * move),
        update=update,
        models=lambda server: {"server": server.x, "mean": server.mean},
    )


@definition()
def fedspeed(alpha: Alpha = 0.1, radius: Radius = 0.1) -> Algorithm:
    """FedSpeed: FedDyn with sharpness-aware local gradients.

    Sun et al., ICLR 2023, with the all-client mean of the released code: the paper's own server, the participants' mean
    alone, drifts on heterogeneous quadratics.
    """
    return replace(feddyn(alpha), oracle=Oracle("sam", radius))
