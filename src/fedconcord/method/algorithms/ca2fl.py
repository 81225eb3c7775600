"""CA2FL: FedBuff with each client's last move remembered, so that fast clients do not bias the model.

Wang et al., ICLR 2024 (cache-aided asynchronous federated learning), with D_i = y_i - z, z the model that the client
was given, and h_i the last move that it sent, 0 before its first:
    v = h + 1/|A| sum_A (D_i - h_i),   x <- x + eta_g v,   then   h_i <- D_i,   h = 1/N sum_N h_i.
Here 1/|A| is w_i, p_i over the cohort's sum, and 1/N is p_i. The paper keeps all h_i at the server; h_i is the client's
row here, which sends D_i - h_i: the same numbers, and the server keeps h alone. A factor of staleness is in w_i; h has
none, so that h = sum p_i h_i at every update.
Where nothing moves, h_i = D_i and h = 0, whoever replies how often and by any factor: sum p_i D_i = 0, FedAvg's
point, which is the optimum where clients take one step each. In rounds it is FedAvg where all take part, and with one
step a client it is SAGA (Defazio et al., 2014) with the clients as its terms.
The paper was not read, its abstract and reviews were; the order, v from the old h, is that of the unofficial code in
LiwenWang919/FedGMD.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import ServerLR, WeightsOption
from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Facts, Local, Phases, Sender, model_of
from fedconcord.method.contract.identity import definition


class Server(NamedTuple):
    x: Tensor  # [d]
    h: Tensor  # [d] sum of p_i h_i


class Row(NamedTuple):
    h: Tensor  # [d] the move that the client sent last


class Sums(NamedTuple):
    move: Tensor  # [d] sum of w_i (D_i - h_i)
    h: Tensor  # [d] what h gains, sum of p_i (D_i - h_i)


@definition()
def ca2fl(server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """CA2FL: the mean of all clients' last moves, corrected by those that reply.

    Wang et al., ICLR 2024.
    """

    def finish(down: Tensor, row: Row, end: Done, client: Client) -> tuple[Tensor, Row]:
        move = end.x - model_of(down)
        return move - row.h, Row(move)

    def contribute(change: Tensor, sender: Sender, cohort: Cohort) -> Sums:
        return Sums(sender.w * change, sender.p * change)

    def update(server: Server, total: Sums, cohort: Cohort) -> Server:
        return Server(server.x + server_lr * (server.h + total.move), server.h + total.h)

    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        start=lambda x, row, client: Local(x),
        finish=finish,
        contribute=contribute,
        update=update,
        weights=weights,
        phases=Phases(asynchronous="damped"),
        facts=Facts(group="averaging", invariant="h = sum p_i h_i over all clients"),
    )
