"""The gradient oracles, an axis of its own: which gradient of f_i a local step uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from fedconcord.basis.factories import by_name
from fedconcord.core import Oracle


def minibatch() -> Oracle:
    """The gradient on the step's mini-batch."""
    return Oracle()


def full() -> Oracle:
    """The gradient on all samples of the client, at every step."""
    return Oracle("full")


def sam(radius: Annotated[float, Field(gt=0, description="length of the ascent step")] = 0.1) -> Oracle:
    """The gradient at x + radius * g / ||g||, on the same mini-batch: two gradients a step.

    Foret et al., ICLR 2021; FedSAM, Qu et al., ICML 2022.
    """
    return Oracle("sam", radius)


def svrg() -> Oracle:
    """g(x) - g(x^t) + grad f_i(x^t), on the step's mini-batch: two gradients a step and a full one a round.

    Johnson and Zhang, NeurIPS 2013.
    """
    return Oracle("svrg")


def saga(
    blocks: Annotated[int, Field(ge=1, description="number of blocks M that a client's samples are divided into")] = 5,
) -> Oracle:
    """g_j(x) - y_j + mean_j y_j with a table of the last gradients of a client's M blocks, kept across rounds.

    Defazio et al., NeurIPS 2014; with FedAvg it is FedSaga (LoSAC, ACM TKDD 2023, Algorithm 1).
    """
    return Oracle("saga", blocks=blocks)


ORACLES: dict[str, Callable[..., Oracle]] = by_name(minibatch, full, sam, svrg, saga)
"""Gradients of a local step by name."""
