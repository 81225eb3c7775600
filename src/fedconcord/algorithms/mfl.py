"""MFL: momentum federated learning.

Liu et al., IEEE TPDS 2020: local heavy ball whose d starts from the server's and is averaged with the models:
    d_i <- momentum d_i + g(y_i),   y_i <- y_i - eta d_i;   x <- x + eta_g sum_A w_i (y_i - x),   d <- sum_A w_i d_i.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.algorithms.fedavg import ServerLR, WeightsOption
from fedconcord.basis.factories import Search
from fedconcord.basis.parameters import BelowOne, about
from fedconcord.core import Algorithm, Client, Cohort, Done, Facts, Local, Momentum, Step, Tree, tree_map
from fedconcord.core.identity import definition


class Server(NamedTuple):
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

    def finish(down: Server, row: Tree, done: Done, client: Client) -> tuple[Server, Tree]:
        return Server(done.x - down.x, done.piece(Momentum).buffer), row

    def update(server: Server, total: Server, cohort: Cohort) -> Server:
        return Server(server.x + server_lr * total.x, total.buffer)

    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Momentum(momentum, down.buffer)),
        finish=finish,
        contribute=lambda up, sender, cohort: tree_map(lambda leaf: sender.w * leaf, up),
        update=update,
        weights=weights,
        step=Step(fixed=True),
        facts=Facts(group="client momentum"),
    )
