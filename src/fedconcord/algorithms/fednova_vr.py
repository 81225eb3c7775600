"""FedNova-VR: normalised averaging with variance-reduced local directions.

Wang et al., IEEE TSP 2021, section V-D; with the local solver's momentum it is FedNova momentum + VR:
    local direction g + c - c_i,   c_i+ = (x - x_i) / (eta ||a_i||_1) + c_i - c,   c = sum_i p_i c_i,
and the server's step is FedNova's. c_i is the *uncorrected* normalised gradient. The paper writes the correction with
d_i; only this reading of it (normalised raw gradients) is unbiased.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.algorithms.fedavg import ServerLR, WeightsOption
from fedconcord.algorithms.scaffold import Row, Server
from fedconcord.basis.parameters import NotNegative, about
from fedconcord.core import Algorithm, Client, Cohort, Constant, Done, Facts, Local, Memory, Needs, Pull, Sender
from fedconcord.core.identity import definition


class Message(NamedTuple):
    move: Tensor  # [d] x_i - x
    c: Tensor  # [d] change of c_i
    a: Tensor  # [] ||a_i||_1
    tau: Tensor  # [] local steps


@definition()
def fednova_vr(
    mu: Annotated[NotNegative, about("weight of the pull to the server's model")] = 0.0,
    tau_eff: Annotated[
        Literal["a", "tau"],
        about("effective number of steps: a, the mean of ||a_i||_1; tau, the mean number of steps"),
    ] = "a",
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "size",
) -> Algorithm:
    """FedNova-VR: normalised averaging with control variates.

    Wang et al., IEEE TSP 2021, section V-D.
    """

    def finish(down: Server, row: Row, done: Done, client: Client) -> tuple[Message, Row]:
        change = (down.x - done.x) / (done.normaliser * client.lr) - down.c
        return Message(done.x - down.x, change, done.normaliser, done.steps), Row(row.c + change)

    def contribute(up: Message, sender: Sender, cohort: Cohort) -> Message:
        return Message(sender.w / up.a * up.move, sender.p * up.c, sender.w * up.a, sender.w * up.tau)

    def update(server: Server, total: Message, cohort: Cohort) -> Server:
        effective = total.a if tau_eff == "a" else total.tau
        return Server(server.x + server_lr * effective * total.move, server.c + total.c)

    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Constant(down.c - row.c), Pull(mu, down.x)),
        finish=finish,
        contribute=contribute,
        update=update,
        weights=weights,
        needs=Needs(normaliser=True),
        facts=Facts(
            group="control variates",
            memory=Memory("control variate c_i", lambda server, rows, p, mean: rows.c, lambda server: server.c),
            invariant="c = sum p_i c_i over all clients",
            remedies=("drift",),
        ),
    )
