"""FedPD where some clients are absent, as A-FedPD's slides describe it: the method whose duals drift.

"Average in [P]" of models and of duals, in the letters of FedDyn (h_i = lambda_i / rho, in model units):
    x_i from theta by steps on f_i(x) + rho <h_i, x - theta> + rho/2 ||x - theta||^2,   h_i += x_i - theta,
    theta = mean of x_i + h_i over the clients of the round; the others keep their h_i, however old.
With all clients in every round it is `feddyn`. It is not among the library's methods, as it is wrong: an absent
client's dual refers to a theta of long ago, and the mean of h_i over a cohort does not follow that over all clients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.afedpd import Rho
from fedconcord.method.algorithms.fedavg import Server
from fedconcord.method.contract import Algorithm, Client, Constant, Done, Local, Pull
from fedconcord.method.contract.identity import definition


class Row(NamedTuple):
    h: Tensor  # [d] lambda_i / rho


@definition()
def fedpd_partial(rho: Rho = 0.1) -> Algorithm:
    """FedPD whose server averages models and duals of the active clients alone.

    A-FedPD, NeurIPS 2024, slides: "When Primal Dual meets Partial Participation". Zhang et al., IEEE TSP 2021, define
    FedPD for full participation, which is `fedpd`.
    """

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        move = done.x - x
        h = row.h + move
        return move + h, Row(h)

    return Algorithm(
        init=lambda x, population: Server(x),
        init_client=lambda x: Row(torch.zeros_like(x)),
        start=lambda x, row, client: Local(x, Constant(rho * row.h), Pull(rho, x)),
        finish=finish,
        contribute=lambda up, sender, cohort: sender.w * up,
        update=lambda server, mean, cohort: Server(server.x + mean),
        weights="uniform",
    )
