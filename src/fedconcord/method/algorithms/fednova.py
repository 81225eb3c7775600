"""FedNova and FedNova-VR: normalised averaging, for any local solver.

Wang et al., IEEE TSP 2021, eqs. (6), (8) and (20): vanilla, proximal (mu > 0), and with the local solver's momentum.
With the gradients of a client's steps as the columns of G_i and what the local solver makes of them in a_i,
    x_i - x = -eta G_i a_i,   d_i = G_i a_i / ||a_i||_1,   x <- x - tau_eff eta sum_A w_i d_i.
The solver reports ||a_i||_1, so this file knows no solver:
    tau_i for plain SGD,   [tau_i - rho (1 - rho^tau_i) / (1 - rho)] / (1 - rho) with momentum rho,
    [1 - (1 - eta mu)^tau_i] / (eta mu) with the pull mu.
tau_eff: sum w_i ||a_i||_1 (`a`, the paper's default) or sum w_i tau_i (`tau`, the paper's choice for its proximal
table). Deviation from the released code: the pull of mu stays outside the momentum buffer, and ||a_i||_1 is exact
there.

FedNova-VR: ibid., section VI; with the local solver's momentum it is FedNova momentum + VR:
    local direction g + c - c_i,   c_i+ = (x - x_i) / (eta ||a_i||_1) + c_i - c,   c = sum_i p_i c_i,
and the server's step is FedNova's. c_i is the *uncorrected* normalised gradient. The paper writes the correction with
d_i; only this reading of it (normalised raw gradients) is unbiased.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Server, ServerLR, WeightsOption
from fedconcord.method.algorithms.scaffold import CONTROL, Corrected, Row
from fedconcord.method.contract import (
    Algorithm,
    Caution,
    Client,
    Cohort,
    Constant,
    Done,
    Facts,
    Local,
    Needs,
    Phases,
    Pull,
    Sender,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.parameters import NotNegative, about

Mu = Annotated[NotNegative, about("weight of the pull to the server's model")]
TauEff = Annotated[
    Literal["a", "tau"], about("effective number of steps: a, the mean of ||a_i||_1; tau, the mean number of steps")
]


class Message(NamedTuple):
    move: Tensor  # [d] x_i - x
    a: Tensor  # [] ||a_i||_1
    tau: Tensor  # [] local steps


class Varied(NamedTuple):
    move: Tensor  # [d] x_i - x
    c: Tensor  # [d] change of c_i
    a: Tensor  # [] ||a_i||_1
    tau: Tensor  # [] local steps


M = TypeVar("M", Message, Varied)


def normalised(up: M, sender: Sender) -> M:
    return up._replace(move=sender.w / up.a * up.move, a=sender.w * up.a, tau=sender.w * up.tau)


@definition()
def fednova(
    mu: Mu = 0.0, tau_eff: TauEff = "a", server_lr: ServerLR = 1.0, weights: WeightsOption = "size"
) -> Algorithm:
    """FedNova: normalise each client's move by its own amount of work.

    Wang et al., IEEE TSP 2021 (NeurIPS 2020), eqs. (6) and (20).
    """

    def update(server: Server, total: tuple[Message | Varied, Tensor], cohort: Cohort) -> Server:
        sums, w = total
        effective = sums.a if tau_eff == "a" else sums.tau
        effective = effective / w if weights == "unbiased" else effective  # a mean, whatever the w sum to
        return Server(server.x + server_lr * effective * sums.move)

    return Algorithm(
        init=lambda x, population: Server(x),
        start=lambda x, row, client: Local(x, Pull(mu, x)),
        finish=lambda x, row, done, client: (Message(done.x - x, done.normaliser, done.steps), row),
        contribute=lambda up, sender, cohort: (normalised(up, sender), sender.w),
        update=update,
        weights=weights,
        phases=Phases(asynchronous="undamped"),
        needs=Needs(normaliser=True, lr=tau_eff == "tau"),
        facts=Facts(
            group="normalised averaging",
            unfit=(("step_schedule", "tau_eff tau counts steps as if all were equally long"),)
            if tau_eff == "tau"
            else (),
            remedies=("unequal work",),
            cautions=(
                Caution(
                    "equal work",
                    "there is nothing to normalise, so that it is FedAvg",
                    "Wang et al. 2021, eq. (20); measured",
                ),
            ),
        ),
    )


@definition()
def fednova_vr(
    mu: Mu = 0.0, tau_eff: TauEff = "a", server_lr: ServerLR = 1.0, weights: WeightsOption = "size"
) -> Algorithm:
    """FedNova-VR: normalised averaging with control variates.

    Wang et al., IEEE TSP 2021, section VI.
    """
    nova = fednova(mu, tau_eff, server_lr, weights)

    def finish(down: Corrected, row: Row, done: Done, client: Client) -> tuple[Varied, Row]:
        change = (down.x - done.x) / (done.normaliser * client.lr) - down.c
        return Varied(done.x - down.x, change, done.normaliser, done.steps), Row(row.c + change)

    return replace(
        nova,
        init=lambda x, population: Corrected(x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Constant(down.c - row.c), Pull(mu, down.x)),
        finish=finish,
        contribute=lambda up, sender, cohort: (normalised(up, sender)._replace(c=sender.p * up.c), sender.w),
        update=lambda server, total, cohort: Corrected(nova.update(server, total, cohort).x, server.c + total[0].c),
        facts=CONTROL._replace(remedies=("drift",), unfit=nova.facts.unfit),
    )
