"""Models of linear layers alone: for samples of any shape, and over the embeddings of symbols."""

from __future__ import annotations

import math
from typing import Annotated

from torch import nn

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, about


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


def charlm(
    shape: tuple[int, ...],
    classes: int,
    /,
    embedding: Annotated[Count, about("size of the embedding of a symbol")] = 16,
    hidden: Annotated[Count, about("number of units of the hidden layer")] = 128,
) -> nn.Sequential:
    """Next symbol from the embeddings of the last ones side by side, one tanh layer (Bengio et al., JMLR 2003).

    Samples are symbols [context], integers from 0 to classes - 1; 63,345 parameters on topics.

    Raises:
        UserError: samples are no row of symbols.
    """
    if len(shape) != 1:
        raise UserError(f"model 'charlm' needs samples that are a row of symbols, given samples of shape {shape}")
    return nn.Sequential(
        nn.Embedding(classes, embedding),
        nn.Flatten(),
        nn.Linear(shape[0] * embedding, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )
