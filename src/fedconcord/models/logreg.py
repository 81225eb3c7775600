"""Multinomial logistic regression."""

from __future__ import annotations

import math

from torch import nn


def logreg(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer, any sample shape (convex)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
