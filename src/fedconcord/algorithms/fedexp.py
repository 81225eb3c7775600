"""FedExP: FedAvg with extrapolation at the server.

Jhunjhunwala, Wang, Joshi, ICLR 2023, Algorithm 1, with Delta = sum_A w_i Delta_i of FedAvg:
    x <- x + max(1, sum_A w_i ||Delta_i||^2 / (2 (||Delta||^2 + eps))) Delta.
The rule, how weights enter it and the deviations from the released
code are in transforms.server: there any method can have it (`server = extrapolation`), as the paper's SCAFFOLD-ExP.
"""

from __future__ import annotations

from fedconcord.algorithms.fedavg import WeightsOption, fedavg
from fedconcord.algorithms.fedopt import listed
from fedconcord.core import Algorithm
from fedconcord.core.identity import definition
from fedconcord.transforms.server import Eps, extrapolation, with_server


@definition()
def fedexp(eps: Eps = 1e-3, weights: WeightsOption = "uniform") -> Algorithm:
    """FedExP: longer server steps where the clients' moves disagree.

    Jhunjhunwala, Wang, Joshi, ICLR 2023, Algorithm 1; the answer is the mean of the last two models.
    """
    return listed(with_server(fedavg(weights=weights), extrapolation(eps)))
