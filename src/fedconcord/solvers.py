"""The local solver: what a local step does with a gradient. One definition, used by every engine."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedconcord.core import Oracle


class SGD(NamedTuple):
    """Local SGD. A step is x <- x - eta * (filter(clip(g) * scale + wd * x + linear) + prox * (x - anchor)).

     The momentum buffer is the direction itself on the first step of a round and `momentum * buffer + direction` after;
     it never outlives a round. The proximal pull stays outside the buffer, so that FedNova's a_i is a linear recursion
    . Clipping acts on the stochastic gradient alone, before weight decay and dual terms.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # largest l2 norm of a client's stochastic gradient
    oracle: Oracle = Oracle()


def normaliser(steps: Tensor, prox: float | Tensor, lr: float, momentum: float) -> Tensor:
    """||a_i||_1 of FedNova (IEEE TSP 2021, section IV): the local step run on the scalar gradient 1.

    It is (x_start - x_end) / eta when every gradient is 1 and the anchor is the start; weight decay counts as gradient.

    Args:
        steps: local steps of each client, any shape.
        prox: the proximal weight, a number or one a client.
        lr: local step size.
        momentum: of the local solver.

    Returns: the shape of `steps`; equal to `steps` for plain SGD.
    """
    if momentum == 0.0 and not isinstance(prox, Tensor) and prox == 0.0:
        return steps
    moved, buffer = torch.zeros_like(steps), 0.0
    for k in range(int(steps.max())):
        buffer = momentum * buffer + 1.0
        moved = torch.where(steps > k, moved + buffer - lr * prox * moved, moved)
    return moved


def clipped(g: Tensor, limit: float | None) -> Tensor:
    """g [..., d] with each row's l2 norm at most `limit`."""
    if limit is None:
        return g
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    scaled: Tensor = g * (limit / norm.clamp(min=limit))
    return scaled


def ascent(x: Tensor, g: Tensor, radius: float) -> Tensor:
    """The SAM point x + radius * g / (||g|| + 1e-7), per row (Foret et al. 2021; FedSAM, A-FedPDSAM)."""
    point: Tensor = x + radius * g / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-7)
    return point
