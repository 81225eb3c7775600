"""VRL-SGD: variance-reduced local SGD, all clients every round.

Liang et al., 2019, with k local steps:
    x_i <- x_i - eta (g(x_i) - Delta_i),   x = mean_i x_i,   Delta_i <- Delta_i + (x - x_i) / (k eta).
It is SCAFFOLD option II at full participation with Delta_i = c_i - c. Undefined when clients are absent: refused. With
unequal numbers of steps sum_i Delta_i leaves 0 and the method stops elsewhere or diverges (FedNova, Fig. 2). Deviation
from the released code: no epochs of plain SGD come first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Algorithm, Client, Constant, Done, Facts, Local, Memory, Needs, Phases, Settle
from fedconcord.method.contract.identity import definition


class Row(NamedTuple):
    delta: Tensor  # [d] Delta_i
    rate: Tensor  # [] 1 / (k eta) of the last round


@definition()
def vrlsgd() -> Algorithm:
    """VRL-SGD: local SGD corrected by each client's deviation from the mean.

    Liang et al., 2019, Algorithm 1.
    """

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        rate = 1.0 / (done.normaliser * client.lr)
        return done.x - x, Row(row.delta - rate * (done.x - x), rate)

    return replace(
        fedavg(),
        init_client=lambda x: Row(torch.zeros_like(x), torch.zeros((), dtype=x.dtype, device=x.device)),
        start=lambda x, row, client: Local(x, Constant(-row.delta)),
        finish=finish,
        phases=Phases(
            settle=Settle(
                send=lambda x, server: server.x - x,
                row=lambda move, row: Row(row.delta + row.rate * move, row.rate),
            )
        ),
        needs=Needs(normaliser=True, everyone=True),
        facts=Facts(
            group="control variates",
            memory=Memory("deviation Delta_i, with grad F added", lambda server, rows, p, mean: rows.delta + mean),
            invariant="sum Delta_i = 0 over all clients",
            unfit=(("server", "its clients measure their deviations from the model, which has to be their mean"),),
        ),
    )
