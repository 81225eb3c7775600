"""Fairness between clients: what is minimised weighs those more who are worse off.

q-FFL: Li, Sanjabi, Beirami and Smith, ICLR 2020, Algorithm 2 (q-FedAvg), of min_x sum p_i F_i^(q+1) / (q + 1). With
F_i the client's loss at x, y_i where its local steps end and L = 1 / eta for the Lipschitz constant, as there,
    x <- x - sum_A w_i F_i^q (x - y_i) / sum_A w_i (q F_i^(q-1) ||x - y_i||^2 / eta + F_i^q).
q = 0 is FedAvg with weights that sum to 1. As in released code, 1e-10 is added to F_i; a loss below 0 counts as 0.

AFL: Mohri, Sivek and Suresh, ICML 2019, Algorithm Stochastic-AFL, of min_x max_lambda sum lambda_i F_i(x) over the
simplex:
    x <- x + sum lambda_i (y_i - x),   lambda <- the point of the simplex next to lambda + step (F_1, ..., F_N).
Deviations: clients take their local steps between two of lambda's, one step each is the paper's; the answer is the
last x and not the mean over rounds, of which its bound is; lambda starts at the clients' weights p. The server holds N
numbers for each client of a cohort while it adds up their losses.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import WeightsOption
from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Facts, Local, Needs, Phases, Sender
from fedconcord.method.contract.identity import definition
from fedconcord.method.contract.weights import to_simplex
from fedconcord.support.factories import Search
from fedconcord.support.parameters import NotNegative, Positive, about


class Server(NamedTuple):
    x: Tensor  # [d]


class Weighted(NamedTuple):
    """What a client sends to q-FFL, and the sum of it."""

    move: Tensor  # [d] F^q (x - y)
    scale: Tensor  # []


@definition()
def qffl(
    q: Annotated[NotNegative, about("how much more losses count; 0 is FedAvg"), Search(0.1, 5.0)] = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """q-FFL: clients with larger losses weigh more.

    Li et al., ICLR 2020, Algorithm 2.
    """

    def finish(x: Tensor, row: tuple[()], end: Done, client: Client) -> tuple[Weighted, tuple[()]]:
        assert client.loss is not None
        back, loss = x - end.x, client.loss.clamp(min=0) + 1e-10
        length = back.square().sum(-1, keepdim=client.loss.ndim > 0)
        return Weighted(loss**q * back, q * loss ** (q - 1) * length / client.lr + loss**q), row

    return Algorithm(
        init=lambda x, population: Server(x),
        start=lambda x, row, client: Local(x),
        finish=finish,
        contribute=lambda up, sender, cohort: Weighted(sender.w * up.move, sender.w * up.scale),
        update=lambda server, total, cohort: Server(server.x - total.move / total.scale),
        weights=weights,
        needs=Needs(loss=True, lr=True),
        facts=Facts(group="fairness"),
    )


class Agnostic(NamedTuple):
    x: Tensor  # [d]
    weights: Tensor  # [N] lambda


class Told(NamedTuple):
    """What a client sends to AFL."""

    move: Tensor  # [d] y - x
    loss: Tensor  # [] F(x)


class Spread(NamedTuple):
    """A client's share of AFL's total, and the total."""

    move: Tensor  # [d] y_i - x; sum lambda_i (y_i - x)
    losses: Tensor  # [N] F_i at the client's place, 0 elsewhere; all of them


@definition()
def afl(
    lambda_lr: Annotated[Positive, about("step size of the clients' weights lambda"), Search(0.001, 1.0)] = 0.1,
) -> Algorithm:
    """AFL: the weights of clients that are worst for the model, learnt beside it.

    Mohri et al., ICML 2019, Algorithm Stochastic-AFL.
    """

    def contribute(up: Told, sender: Sender, cohort: Cohort) -> Spread:
        place = torch.arange(cohort.n, device=sender.id.device) == sender.id
        return Spread(up.move, torch.where(place, up.loss, torch.zeros_like(up.loss)))

    def combine(server: Agnostic, shares: Spread, senders: Sender, cohort: Cohort) -> Spread:
        weights = server.weights[senders.id[:, 0]]
        return Spread((weights[:, None] * shares.move).sum(0), shares.losses.sum(0))

    def update(server: Agnostic, total: Spread, cohort: Cohort) -> Agnostic:
        return Agnostic(server.x + total.move, to_simplex(server.weights + lambda_lr * total.losses))

    def finish(x: Tensor, row: tuple[()], end: Done, client: Client) -> tuple[Told, tuple[()]]:
        assert client.loss is not None
        return Told(end.x - x, client.loss), row

    return Algorithm(
        init=lambda x, population: Agnostic(x, population.p.to(x.dtype)),
        start=lambda x, row, client: Local(x),
        finish=finish,
        broadcast=lambda server: server.x,
        contribute=contribute,
        update=update,
        phases=Phases(combine=combine),
        needs=Needs(everyone=True, loss=True),
        facts=Facts(group="fairness"),
    )
