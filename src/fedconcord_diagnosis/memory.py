"""What clients remember: control variates, dual variables and tables, against the gradients that they stand for.

A method says in `Algorithm.facts.memory` what it keeps at a client that is the client's gradient grad f_i where the
method has converged. How far that is from the gradient at the server's model is the dual drift that A-FedPD names: a
client that was away brings back the gradient of an old model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Memory, Tree
from fedconcord_diagnosis.gradients import TINY, lengths, mean_of


class StoredState(NamedTuple):
    """What n clients remember, as gradients, and what the server makes of it."""

    what: Memory
    gradients: Tensor  # [n, d] what stands for grad f_i
    total: Tensor | None  # [d] what the server has for grad F; None where it keeps no such thing


def kept(algorithm: Algorithm, server: Tree, rows: Tree, p: np.ndarray, mean: Tensor) -> StoredState | None:
    """What these clients remember, or None where the method's clients keep nothing that stands for a gradient.

    Args:
        rows: their states [n, ...], without a private block.
        p: [n] their weights in the objective of all clients.
        mean: [d] grad F, for what is kept relative to it.
    """
    memory = algorithm.facts.memory
    if memory is None:
        return None
    return StoredState(memory, memory.gradients(server, rows, torch.as_tensor(p).to(mean), mean), memory.total(server))


class Staleness(NamedTuple):
    """How far what clients remember is from their gradients."""

    error: np.ndarray  # [n] ||m_i - grad f_i(x^t)||
    relative: float  # sqrt(sum_i p_i error_i^2 / sum_i p_i ||grad f_i||^2); 1 where nothing is remembered
    total: float | None  # ||server's sum - grad F|| / ||grad F||
    gap: float | None  # ||server's sum - sum_i p_i m_i|| / ||grad F||: 0 where all n are all N clients


def staleness(p: np.ndarray, memory: StoredState, gradients: Tensor) -> Staleness:
    """Of what n clients with weights p [n] remember, against gradients [n, d] at the server's model."""
    error, mean = lengths(memory.gradients - gradients), mean_of(p, gradients)
    full = max(float(torch.linalg.vector_norm(mean)), TINY)
    relative = float(np.sqrt(p @ error**2 / max(float(p @ lengths(gradients) ** 2), TINY)))
    if memory.total is None:
        return Staleness(error, relative, None, None)
    to_true, to_sum = (
        float(torch.linalg.vector_norm(memory.total - other)) / full for other in (mean, mean_of(p, memory.gradients))
    )
    return Staleness(error, relative, to_true, to_sum)


class Residual(NamedTuple):
    """V^t of FedADMM (Gong, Li, Freris, ICDE 2022, eq. (7)), weighed by p: 0 at stationary points alone."""

    server: float  # ||sum_i p_i (y_i + rho (w_i - theta))||^2
    local: float  # sum_i p_i ||grad f_i(w_i) + y_i + rho (w_i - theta)||^2
    consensus: float  # sum_i p_i ||w_i - theta||^2

    @property
    def value(self) -> float:
        """V^t, over N: the paper sums where this weighs by p_i."""
        return self.server + self.local + self.consensus


def residual(
    p: np.ndarray, duals: Tensor, models: Tensor, x: Tensor, gradients: Tensor, penalty: float | Tensor
) -> Residual:
    """Of duals y_i [n, d], the clients' models w_i [n, d] with their gradients there [n, d], and theta = x [d].

    A method whose clients keep no model of their own starts from theta: w_i = theta.

    Args:
        penalty: rho, a number or one a client [n, 1].
    """
    apart = models - x
    multiplier = duals + penalty * apart
    return Residual(
        float(mean_of(p, multiplier).square().sum()),
        float(p @ lengths(gradients + multiplier) ** 2),
        float(p @ lengths(apart) ** 2),
    )
