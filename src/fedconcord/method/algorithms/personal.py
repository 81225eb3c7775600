"""Personalised methods: a model for each client beside or below the server's.

Ditto: Li, Hu, Beirami and Smith, ICML 2021, Algorithm 1, with FedAvg for its objective of all clients:
    y_i as FedAvg's;   v_i <- v_i - lr (g(v_i) + lam (v_i - x)), as many steps on the same samples.
Deviation: lr is the round's eta where it is not set, as in the released code. `with_ditto` goes around other methods.

APFL: Deng, Kamani and Mahdavi, arXiv:2003.13461, Algorithm 1, with FedAvg's local steps for w_i, from x, and
    u_i = a_i v_i + (1 - a_i) w_i;   v_i <- v_i - lr a_i g(u_i), as many steps on the same samples;
    a_i <- a_i - eta <v_i - w_i, g(u_i)>, once a round, held in [0, 1] (their adaptive mixture).
The client's own model is a_i v_i + (1 - a_i) x. Where g is exact and one step a round is taken it ends in the client's
own minimiser whatever a_i > 0 is: the mixture helps only as far as v_i has not come there. Deviations: a_i moves in the
round's first step, of whose gradient nobody pays for another; no projection; the last model and no mean over rounds.

pFedMe: Dinh, Tran and Nguyen, NeurIPS 2020, Algorithm 1, of min_x sum p_i min_t f_i(t) + lam/2 ||t - x||^2:
    theta from y_i by `steps` steps of size a on f_i(.; batch) + lam/2 ||. - y_i||^2;
    y_i <- y_i - eta lam (y_i - theta);
    x <- (1 - beta) x + beta sum w_i y_i, beta being server_lr.   The last theta is the client's own model.
Deviations: theta takes a number of steps and not as many as a precision asks for (eq. (7)); it starts at y_i in each
step, where released code goes on from the last theta. That code judges y_i in place of theta, and adds 0.001 theta to
the gradient: neither is done here.

Per-FedAvg: Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, Algorithm 1, of min_x sum p_i f_i(x - a grad f_i(x)), in its
first-order form, which leaves I - a H out:
    y_i <- y_i - eta g(y_i - a g(y_i)).
Deviation: both gradients are of one batch, where the paper draws two. The answer is one model, made to be adapted: it
is judged by what `eval.personalise` makes of it at each client.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.method.algorithms.fedavg import ServerLR, WeightsOption, fedavg
from fedconcord.method.contract import Algorithm, Client, Done, Facts, Local, Needs, model_of
from fedconcord.method.contract.identity import definition
from fedconcord.method.contract.nested import Beside, Look, Moreau
from fedconcord.method.wrappers.ditto import PLAIN, OwnLR, Pulled, with_ditto
from fedconcord.support.errors import UserError
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Chance, NotNegative, Positive, about

GROUP = "personalised"


@definition()
def ditto(
    lam: Pulled = 0.1, lr: OwnLR = None, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform"
) -> Algorithm:
    """Ditto: FedAvg, and beside it a model of each client's own that is pulled to the server's.

    Li et al., ICML 2021, Algorithm 1.
    """
    both = with_ditto(fedavg(server_lr, weights), lam, lr)
    return replace(both, facts=Facts(group=GROUP, unfit=both.facts.unfit))


class Mixed(NamedTuple):
    v: Tensor  # [d] what the client's own model has beside the server's
    share: Tensor  # [1] a_i


@definition()
def apfl(
    alpha: Annotated[Chance, about("share of the client's part in its first round"), Search(0.1, 1.0, "linear")] = 0.5,
    alpha_lr: Annotated[NotNegative | None, about("step size of the share: if none, the round's; 0 keeps it")] = None,
    lr: OwnLR = None,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """APFL: FedAvg, and each client answers with a mixture of its model and one that it trains below the mixture.

    Deng et al., 2020, Algorithm 1. With exact gradients the mixture ends in the client's own optimum for every alpha.
    """

    def start(x: Tensor, row: Mixed, client: Client) -> Local:
        v_lr, rate = (client.lr if one is None else one for one in (lr, alpha_lr))
        return Local(x, Beside(0.0, v_lr, x, row.v, row.share, rate))

    def finish(x: Tensor, row: Mixed, end: Done, client: Client) -> tuple[Tensor, Mixed]:
        beside = end.piece(Beside)
        assert beside.share is not None
        return end.x - model_of(x), Mixed(beside.v, beside.share)

    return replace(
        fedavg(server_lr, weights),
        start=start,
        finish=finish,
        init_client=lambda x: Mixed(x, x.new_full((1,), alpha)),
        client_model=lambda row, x: torch.addcmul(x, row.v - x, row.share),
        needs=Needs(x0=True, lr=lr is None or alpha_lr is None),
        facts=Facts(group=GROUP, unfit=(PLAIN,) if lr is None else ()),
    )


class Own(NamedTuple):
    theta: Tensor  # [d] the client's own model


@definition()
def pfedme(
    lam: Annotated[Positive, about("how strongly own models are pulled to the local one"), Search(1.0, 100.0)] = 15.0,
    steps: Annotated[int, Field(ge=1, description="steps of the own model in each local step")] = 5,
    a: Annotated[Positive, about("step size of the own model"), Search(0.003, 0.3)] = 0.05,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """pFedMe: the server's model is what own models, each at a distance that costs, are best pulled to.

    Dinh et al., NeurIPS 2020, Algorithm 1.

    Raises:
        UserError: a lam is 2 or more.
    """
    if a * lam >= 2:
        raise UserError(
            f"pfedme: a times lam must be below 2, or own models leave every bound; got {a:g} times {lam:g}"
        )

    def finish(x: Tensor, row: Own, end: Done, client: Client) -> tuple[Tensor, Own]:
        return end.x - model_of(x), Own(end.piece(Moreau).theta)

    return replace(
        fedavg(server_lr, weights),
        start=lambda x, row, client: Local(x, Moreau(lam, steps, a, row.theta)),
        finish=finish,
        init_client=Own,
        client_model=lambda row, x: row.theta,
        needs=Needs(x0=True),
        facts=Facts(group=GROUP),
    )


@definition()
def perfedavg(
    a: Annotated[Positive, about("step size of the adaptation that is looked ahead to"), Search(0.001, 0.3)] = 0.01,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """Per-FedAvg: the model from which one local step of size a leads far, first-order form.

    Fallah et al., NeurIPS 2020, Algorithm 1.
    """
    return replace(
        fedavg(server_lr, weights),
        start=lambda x, row, client: Local(x, Look(a)),
        facts=Facts(group=GROUP, adapted=f"finetune(steps=1,lr={a:g})"),
    )
