"""Local steps by hand, for tests."""

from __future__ import annotations

import numpy as np
import torch

from fedconcord.method.contract.pieces import Momentum, Pull, Scale
from fedconcord.method.step.sizes import Fixed
from fedconcord.method.step.walk import Chain, Walked, response
from plain_step import falling


def response_of(
    tau: int, mu: float, eta: float, momentum: float, decay: float = 1.0, scale: float = 1.0, nesterov: bool = False
) -> float:
    """||a_i||_1 of a client that took tau steps from the anchor."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    chain = Chain(zero, (Scale(scale), Momentum(momentum, zero, nesterov), Pull(mu, zero)), Fixed(eta, falling(decay)))
    return float(response(chain, Walked(zero, (), chain.size, np.array([tau]))))
