"""FedCM: client-level momentum.

Xu et al., 2021. Local direction alpha g + (1 - alpha) D with D = -mean_A Delta_i / (K_i eta), each client's move over
its own number of steps (the released code, where all K_i are equal, uses their common value).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.algorithms.fedavg import ServerLR, WeightsOption
from fedconcord.core import Algorithm, Cohort, Local, Sender
from fedconcord.identity import definition


class Server(NamedTuple):
    x: Tensor  # [d]
    direction: Tensor  # [d] D, the last round's mean direction


@definition()
def fedcm(
    alpha: Annotated[float, Field(gt=0, le=1, description="weight of the client's own gradient")] = 0.1,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedCM: clients follow the last round's global direction.

    Xu et al., 2021.
    """

    def contribute(move: Tensor, sender: Sender, cohort: Cohort) -> Server:
        return Server(sender.w * move, -sender.w * move / (sender.steps * sender.lr))

    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, linear=(1 - alpha) * down.direction, scale=alpha),
        finish=lambda down, row, done, client: (done.x - down.x, row),
        contribute=contribute,
        update=lambda server, total, cohort: Server(server.x + server_lr * total.x, total.direction),
        weights=weights,
    )
