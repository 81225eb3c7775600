"""FedGamma: SCAFFOLD with the SAM gradient.

Dai et al., IEEE TNNLS 2023; as in A-FedPD's simulator: SCAFFOLD option II, every gradient at the ascent point,
    y_i <- y_i - eta (g(y_i + e) + c - c_i),   e = radius g(y_i) / (||g(y_i)|| + 1e-7).
"""

from __future__ import annotations

from fedconcord.algorithms.fedavg import Radius, ServerLR, WeightsOption, sharpness_aware
from fedconcord.algorithms.scaffold import scaffold
from fedconcord.core import Algorithm
from fedconcord.core.identity import definition


@definition()
def fedgamma(radius: Radius = 0.01, server_lr: ServerLR = 1.0, weights: WeightsOption = "uniform") -> Algorithm:
    """FedGamma: SCAFFOLD with sharpness-aware local gradients.

    Dai et al., IEEE TNNLS 2023.
    """
    return sharpness_aware(scaffold(2, server_lr, weights), radius)
