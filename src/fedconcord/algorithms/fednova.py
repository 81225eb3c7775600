"""FedNova: normalised averaging, for any local solver.

Wang et al., IEEE TSP 2021, eqs. (15)-(17): vanilla, proximal (mu > 0), and with the local solver's momentum. With the
gradients of a client's steps as the columns of G_i and what the local solver makes of them in a_i,
    x_i - x = -eta G_i a_i,   d_i = G_i a_i / ||a_i||_1,   x <- x - tau_eff eta sum_A w_i d_i.
The solver reports ||a_i||_1, so this file knows no solver:
    tau_i for plain SGD,   [tau_i - rho (1 - rho^tau_i) / (1 - rho)] / (1 - rho) with momentum rho,
    [1 - (1 - eta mu)^tau_i] / (eta mu) with the pull mu.
tau_eff: sum w_i ||a_i||_1 (`a`, the paper's default) or sum w_i tau_i (`tau`, the paper's choice for its proximal
table). Deviation from the released code: the pull of mu stays outside the momentum buffer, and ||a_i||_1 is exact
there.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from torch import Tensor

from fedconcord.algorithms.fedavg import Server, ServerLR, WeightsOption
from fedconcord.basis.parameters import NotNegative, about
from fedconcord.core import Algorithm, Caution, Client, Cohort, Done, Facts, Local, Needs, Pull
from fedconcord.core.identity import definition


class Message(NamedTuple):
    move: Tensor  # [d] x_i - x
    a: Tensor  # [] ||a_i||_1
    tau: Tensor  # [] local steps


@definition()
def fednova(
    mu: Annotated[NotNegative, about("weight of the pull to the server's model")] = 0.0,
    tau_eff: Annotated[
        Literal["a", "tau"],
        about("effective number of steps: a, the mean of ||a_i||_1; tau, the mean number of steps"),
    ] = "a",
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "size",
) -> Algorithm:
    """FedNova: normalise each client's move by its own amount of work.

    Wang et al., IEEE TSP 2021 (NeurIPS 2020), eqs. (15)-(17).
    """

    def finish(x: Tensor, row: tuple[()], done: Done, client: Client) -> tuple[Message, tuple[()]]:
        return Message(done.x - x, done.normaliser, done.steps), row

    def update(server: Server, total: Message, cohort: Cohort) -> Server:
        effective = total.a if tau_eff == "a" else total.tau
        return Server(server.x + server_lr * effective * total.move)

    return Algorithm(
        init=lambda x, population: Server(x),
        start=lambda x, row, client: Local(x, Pull(mu, x)),
        finish=finish,
        contribute=lambda up, sender, cohort: Message(sender.w / up.a * up.move, sender.w * up.a, sender.w * up.tau),
        update=update,
        weights=weights,
        needs=Needs(normaliser=True),
        facts=Facts(
            group="normalised averaging",
            remedies=("unequal work",),
            cautions=(
                Caution(
                    "equal work",
                    "there is nothing to normalise, so that it is FedAvg",
                    "Wang et al. 2021, eq. (15); measured",
                ),
            ),
        ),
    )
