"""FedAvg and the methods that are FedAvg with one thing changed.

FedAvg: McMahan et al., AISTATS 2017, Algorithm 1:
    y_i = x, then K_i times y_i <- y_i - eta g(y_i);   Delta_i = y_i - x;   x <- x + eta_g sum_A w_i Delta_i.
Weights w_i: uniform, by size (renormalised over the cohort), or the unbiased form x + (N/S) sum_A p_i Delta_i of FedVRA
eq. (21), whose weights sum to 1 in expectation only.

FedSGD: ibid., one full local gradient a round: x <- x - eta eta_g sum_A w_i grad f_i(x).

FedSAM: Qu et al., ICML 2022: FedAvg with the SAM gradient, as FL-Simulator has it (1e-7 in the denominator):
    g at y_i + radius g(y_i) / (||g(y_i)|| + 1e-7), on the same mini-batch.

FedProx: Li et al., MLSys 2020, Algorithm 2, inexact local solution by SGD:
    y_i <- y_i - eta (g(y_i) + mu (y_i - x)).
Its rule that averages clients drawn by size is sampling with weights uniform, its released code's is weights by size.

FedPAQ: Reisizadeh et al., AISTATS 2020, Algorithm 1: periodic averaging, partial participation and the low-precision
quantiser (QSGD's). With s levels,
    x <- x + eta_g sum_A w_i Q(Delta_i),   Q(v)_j = ||v|| sign(v_j) l_j / s,
and l_j is one of the two integers beside s |v_j| / ||v||, at random so that Q is unbiased. A message is the norm and
one integer an entry; entries take whole bytes and no further coding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Caution,
    Facts,
    Local,
    Oracle,
    Phases,
    Pull,
    Recommendation,
    Step,
    Weights,
    model_of,
)
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.support.factories import Search
from fedconcord.support.parameters import NotNegative, Positive, about

ServerLR = Annotated[Positive, about("server step size")]
Radius = Annotated[Positive, about("radius of the ascent step of SAM"), Search(0.005, 0.5)]
WeightsOption = Annotated[Weights, about("how the server weighs the cohort")]


class Server(NamedTuple):
    x: Tensor  # [d]


@definition()
def fedavg(server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedAvg: average the clients' moves.

    McMahan et al., AISTATS 2017, Algorithm 1.
    """
    return Algorithm(
        init=lambda x, population: Server(x),
        start=lambda x, row, client: Local(x),
        finish=lambda down, row, done, client: (done.x - model_of(down), row),
        contribute=lambda move, sender, cohort: sender.w * move,
        update=lambda server, move, cohort: Server(server.x + server_lr * move),
        weights=weights,
        phases=Phases(asynchronous="damped"),
        facts=Facts(group="averaging", recommendations=(Recommendation({"any": 5}, "local.lr=0.3", "the simplest"),)),
    )


@definition()
def fedsgd(server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedSGD: one full local gradient a client and round.

    McMahan et al., AISTATS 2017; baseline of FedADMM (ICDE 2022).
    """
    return replace(
        fedavg(server_lr, weights), step=Step(oracle=Oracle("full"), steps=1), facts=Facts(group="averaging")
    )


def sharpness_aware(method: Algorithm, radius: float, *cautions: Caution) -> Algorithm:
    """The same method with the SAM gradient in its local steps; where it is worth tuning was measured without."""
    facts = method.facts._replace(group="sharpness-aware", remedies=(), recommendations=(), cautions=cautions)
    return replace(method, step=Step(oracle=Oracle("sam", radius)), facts=facts)


@definition()
def fedsam(radius: Radius = 0.1, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedSAM: FedAvg with sharpness-aware local gradients.

    Qu et al., ICML 2022; g at x + radius g / (||g|| + 1e-7) on the same mini-batch.
    """
    return sharpness_aware(fedavg(server_lr, weights), radius)


@definition()
def fedprox(
    mu: Annotated[NotNegative, about("weight of the pull to the server's model"), Search(0.001, 1.0)] = 0.1,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedProx: FedAvg with a proximal pull to the server's model.

    Li et al., MLSys 2020, Algorithm 2.
    """
    return replace(
        fedavg(server_lr, weights),
        start=lambda x, row, client: Local(x, Pull(mu, x)),
        facts=Facts(group="proximal", cautions=(Caution("any", "tuned, it ends where FedAvg does"),)),
    )


@definition()
def fedpaq(
    levels: Annotated[
        int, Field(ge=1, le=32767, description="magnitudes above zero; one byte an entry up to 127, then two")
    ] = 127,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedPAQ: FedAvg with quantised uploads.

    Reisizadeh et al., AISTATS 2020, Algorithm 1.
    """
    return replace(with_uploads(fedavg(server_lr, weights), quantise(levels)), facts=Facts(group="compressed uploads"))
