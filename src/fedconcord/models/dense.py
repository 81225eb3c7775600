"""Models of linear layers alone, for samples of any shape."""

from __future__ import annotations

import math

from torch import nn


def logreg(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer, any sample shape (convex)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


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
