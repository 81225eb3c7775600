"""The two-layer perceptron of LoSAC (ACM TKDD 2023)."""

from __future__ import annotations

import math

from torch import nn


def two_nn(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Perceptron d-200-200-classes with ReLU, any sample shape (LoSAC); 199,210 parameters on MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )
