"""FedPD: primal-dual with communication skipping, all clients every round.

Zhang et al., IEEE TSP 2021 (arXiv 2005.11418), Algorithm 1 with oracle I (SGD from the client's own x_i):
    x_i ~ argmin f_i(x) + <lambda_i, x - x_0i> + 1/(2 eta) ||x - x_0i||^2,   lambda_i += (x_i - x_0i) / eta,
    x+_0i = x_i + eta lambda_i; with probability 1 - p_skip x_0i = mean_j x+_0j, else x_0i = x+_0i and nothing is sent.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Server
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Constant,
    Done,
    Facts,
    Local,
    Memory,
    Needs,
    Phases,
    Pull,
    Settle,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import BelowOne, Positive, about


class Row(NamedTuple):
    x: Tensor  # [d] x_i
    dual: Tensor  # [d] lambda_i
    anchor: Tensor  # [d] x_0i, the client's own copy of the global model


@definition()
def fedpd(
    eta: Annotated[Positive, about("inverse penalty of the augmented Lagrangian"), Search(0.3, 30.0)] = 1.0,
    p_skip: Annotated[BelowOne, about("probability that a round is not communicated")] = 0.0,
) -> Algorithm:
    """FedPD: local augmented Lagrangians, averaged only with some probability.

    Zhang et al., IEEE TSP 2021, Algorithm 1.
    """

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        dual = row.dual + (done.x - row.anchor) / eta
        own = done.x + eta * dual
        return own, Row(done.x, dual, own)

    return Algorithm(
        init=lambda x, population: Server(x),
        init_client=lambda x: Row(x, torch.zeros_like(x), x),
        start=lambda x, row, client: Local(row.x, Constant(row.dual), Pull(1.0 / eta, row.anchor)),
        finish=finish,
        contribute=lambda own, sender, cohort: sender.w * own,
        update=lambda server, mean, cohort: Server(mean),
        phases=Phases(
            settle=Settle(
                send=lambda x, server: server.x,
                row=lambda mean, row: row._replace(anchor=mean.expand_as(row.anchor)),
            ),
            communicates=lambda cohort: cohort.coin >= p_skip,
        ),
        needs=Needs(everyone=True, x0=True),
        facts=Facts(
            group="primal-dual",
            memory=Memory("dual variable", lambda server, rows, p, mean: -rows.dual, is_dual=True),
            invariant="a model that is the mean of x_i + eta lambda_i over all clients",
        ),
    )
