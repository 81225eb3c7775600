"""FedAvg's aggregate handed to a server optimiser.

With Delta = sum_A w_i Delta_i of FedAvg, and squares and roots by coordinate: FedAvgM, Hsu et al., 2019:
    b <- beta b + Delta,   x <- x + lr b.
FedAdam, FedYogi, FedAdagrad: Reddi et al., ICLR 2021, Algorithm 2, from m = 0 and v = tau^2:
    m <- beta1 m + (1 - beta1) Delta,   x <- x + lr m / (sqrt(v) + tau), with
    v <- beta2 v + (1 - beta2) Delta^2                               FedAdam
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)                   FedYogi
    v <- v + Delta^2                                                 FedAdagrad; beta1 is 0 in the paper's experiments
FedExP: Jhunjhunwala, Wang, Joshi, ICLR 2023, Algorithm 1:
    x <- x + max(1, sum_A w_i ||Delta_i||^2 / (2 (||Delta||^2 + eps))) Delta.
What their options are for, how weights enter FedExP's rule and its deviations from the released code are in
wrappers.server: there any method can have them (`server = extrapolation` with SCAFFOLD is the paper's SCAFFOLD-ExP).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedconcord.method.algorithms.fedavg import WeightsOption, fedavg
from fedconcord.method.contract import Algorithm, Facts, Recommendation, Weights
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers import server
from fedconcord.support.factories import Search
from fedconcord.support.parameters import BelowOne, about


def served(weights: Weights, optimiser: server.Optimizer, *recommendations: Recommendation) -> Algorithm:
    """FedAvg with a server optimiser."""
    facts = Facts(group="server optimiser", server_optimiser=True, recommendations=recommendations)
    return replace(server.with_server(fedavg(weights=weights), optimiser), facts=facts)


@definition()
def fedavgm(
    server_momentum: Annotated[BelowOne, about("momentum of the server"), Search(0.0, 0.95, "linear")] = 0.9,
    server_lr: server.LR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedAvgM: FedAvg with momentum at the server.

    Hsu et al., 2019.
    """
    return served(
        weights,
        server.momentum(server_momentum, server_lr),
        Recommendation(
            {"any": 4},
            "server_momentum=0.5,local.lr=0.3",
            "the server's momentum outlives each cohort, and clients need no memory",
        ),
    )


@definition()
def fedadam(
    server_lr: server.LR = 0.1,
    beta1: server.Beta1 = 0.9,
    beta2: server.Beta2 = 0.99,
    tau: server.Tau = 1e-3,
    weights: WeightsOption = "uniform",
    v0: server.V0 = None,
    bias_correction: server.Correction = False,
    eps_root: server.EpsRoot = 0.0,
) -> Algorithm:
    """FedAdam: FedAvg with Adam at the server.

    Reddi et al., ICLR 2021, Algorithm 2.
    """
    return served(
        weights,
        server.adam(server_lr, beta1, beta2, tau, v0, bias_correction, eps_root),
        Recommendation(
            {"any": 3},
            "server_lr=0.03,local.lr=0.3",
            "the server's Adam makes large steps of small common moves, and clients need no memory",
        ),
    )


@definition()
def fedyogi(
    server_lr: server.LR = 0.1,
    beta1: server.Beta1 = 0.9,
    beta2: server.Beta2 = 0.99,
    tau: server.Tau = 1e-3,
    weights: WeightsOption = "uniform",
    v0: server.V0 = None,
    bias_correction: server.Correction = False,
    eps_root: server.EpsRoot = 0.0,
    m0: server.M0 = 0.0,
) -> Algorithm:
    """FedYogi: FedAvg with Yogi at the server.

    Reddi et al., ICLR 2021, Algorithm 2.
    """
    return served(weights, server.yogi(server_lr, beta1, beta2, tau, v0, bias_correction, eps_root, m0))


@definition()
def fedadagrad(
    server_lr: server.LR = 0.1,
    beta1: server.Beta1 = 0.9,
    tau: server.Tau = 1e-3,
    weights: WeightsOption = "uniform",
    v0: server.V0 = None,
    eps_root: server.EpsRoot = 0.0,
) -> Algorithm:
    """FedAdagrad: FedAvg with Adagrad at the server.

    Reddi et al., ICLR 2021, Algorithm 2.
    """
    return served(weights, server.adagrad(server_lr, beta1, tau, v0, eps_root))


@definition()
def fedexp(eps: server.Eps = 1e-3, weights: WeightsOption = "uniform") -> Algorithm:
    """FedExP: longer server steps where the clients' moves disagree.

    Jhunjhunwala, Wang, Joshi, ICLR 2023, Algorithm 1; the answer is the mean of the last two models.
    """
    return served(weights, server.extrapolation(eps))
