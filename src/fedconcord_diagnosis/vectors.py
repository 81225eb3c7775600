"""What clients' vectors at the server's model x^t come to: gradients, the moves of local steps, what is remembered.

Gradients: how far they agree, their mini-batch noise, and how curved the losses are. Symbols: g_i = grad f_i(x^t) of n
clients, p_i their weights (sum 1), grad F = sum_i p_i g_i.

Client drift: where local steps end, away from where they go together; whose it is, and what would remove it. Symbols:
Delta_i = x_i^K - x^t, Delta = sum_i p_i Delta_i, a_i = ||a_i||_1 the client's local steps as FedNova weighs them, eta
the local step size.

What clients remember: control variates, dual variables and tables, against the gradients that they stand for. A method
says in `Algorithm.facts.memory` what it keeps at a client that is the client's gradient grad f_i where the method has
converged. How far that is from the gradient at the server's model is the dual drift that A-FedPD names: a client that
was away brings back the gradient of an old model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Memory, Tree

TINY = 1e-300  # in place of a length of 0 that divides


class Agreement(NamedTuple):
    """How far n clients' vectors agree."""

    norms: np.ndarray  # [n] ||g_i||
    full: float  # ||sum_i p_i g_i||
    spread: float  # sum_i p_i ||g_i - grad F||^2
    dissimilarity: float  # B^2 = sum_i p_i ||g_i||^2 / ||grad F||^2, at least 1 (FedProx, Definition 3)
    alignment: np.ndarray  # [n] cosine of g_i and grad F; 0 where one of them is 0


def agreement(p: np.ndarray, vectors: Tensor) -> Agreement:
    """Of vectors [n, d] with weights p [n].

    B^2 is Li et al. (FedProx), MLSys 2020, Definition 3; its reciprocal is the gradient diversity of Yin et al.
    (AISTATS 2018) up to the factor n, and the spread is kappa^2 of FedNova's Assumption 3 with beta^2 = 1.
    """
    mean = mean_of(p, vectors)
    norms, full = lengths(vectors), float(torch.linalg.vector_norm(mean))
    cosine = (vectors @ mean).double().cpu().numpy() / np.maximum(norms * full, TINY)
    squares = float(p @ norms**2)
    return Agreement(norms, full, spread(p, vectors), squares / max(full**2, TINY), cosine)


def mean_of(p: np.ndarray, vectors: Tensor) -> Tensor:
    """sum_i p_i v_i [d] of vectors [n, d]."""
    mean: Tensor = torch.as_tensor(p).to(vectors) @ vectors
    return mean


def lengths(vectors: Tensor) -> np.ndarray:
    """l2 norms [n] of vectors [n, d]."""
    norms: np.ndarray = torch.linalg.vector_norm(vectors, dim=1).double().cpu().numpy()
    return norms


def spread(p: np.ndarray, vectors: Tensor) -> float:
    """sum_i p_i ||v_i - v||^2 about the mean v = sum_i p_i v_i."""
    return float(p @ lengths(vectors - mean_of(p, vectors)) ** 2)


def cohort_noise(variance: float, length: float, n: int, size: int) -> float:
    """Deviation of the mean of `size` of n vectors, drawn uniformly without replacement, over the length of the mean.

    variance: mean squared distance of the n vectors to their mean. sqrt(variance (n - size) / (size (n - 1))) / length.
    """
    left = 0.0 if n < 2 else variance * (n - size) / (size * (n - 1))
    return float(np.sqrt(max(left, 0.0)) / max(length, TINY))


def noise(mean: Tensor, batches: Tensor) -> float:
    """sigma^2: the mean of ||g(batch) - g||^2 over gradients [M, d] of mini-batches, g [d] that of all samples."""
    return float((batches - mean).square().sum(1).mean())


def largest_curvature(
    loss: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, iterations: int = 30, tolerance: float = 1e-3
) -> float:
    """The largest |eigenvalue| of the Hessian of a loss at x [d], by power iteration on Hessian-vector products.

    It comes from below, and ends where it moves by less than `tolerance`, relatively. Where the loss is smooth it
    bounds L, the Lipschitz constant of the gradient, from below.

    Args:
        start: [d] not 0.
    """
    at = x.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(at), at, create_graph=True)
    if not gradient.requires_grad:  # the loss is linear
        return 0.0
    v, largest = start / torch.linalg.vector_norm(start), 0.0
    for _ in range(iterations):
        (product,) = torch.autograd.grad(gradient, at, v, retain_graph=True)
        length = float(torch.linalg.vector_norm(product))
        if length == 0 or abs(length - largest) <= tolerance * length:
            return length
        v, largest = product / length, length
    return largest


def secant(change: Tensor, move: Tensor) -> np.ndarray:
    """||grad f_i(y) - grad f_i(x)|| / ||y - x|| [n] between two points of each client; 0 where it did not move.

    L_i is at least that: the gradient's Lipschitz constant along the client's own path.
    """
    far = lengths(move)
    return np.where(far > 0, lengths(change) / np.maximum(far, TINY), 0.0)


class Drift(NamedTuple):
    """What the local steps of one round come to."""

    move: np.ndarray  # [n] ||Delta_i||: SCAFFOLD's client drift is the mean of its square
    away: np.ndarray  # [n] ||Delta_i - Delta||
    share: np.ndarray  # [n] of p_i ||Delta_i - Delta||^2 in the sum, sum 1
    mean: float  # ||Delta||
    ratio: float  # sum_i p_i ||Delta_i - Delta||^2 / ||Delta||^2


def drift(p: np.ndarray, moves: Tensor) -> Drift:
    """Of moves [n, d] with weights p [n]."""
    mean = mean_of(p, moves)
    away = lengths(moves - mean)
    parts, length = p * away**2, float(torch.linalg.vector_norm(mean))
    total = float(parts.sum())
    share = parts / total if total > 0 else np.zeros_like(parts)
    return Drift(lengths(moves), away, share, length, total / max(length**2, TINY))


class Remedies(NamedTuple):
    """The share of the drift, sum_i p_i ||Delta_i - Delta||^2, that a change would remove; below 0: it would add."""

    equal_work: float  # as many steps' worth from everyone: FedNova's normalised averaging
    control: float  # control variates refreshed at this model: SCAFFOLD


def remedies(p: np.ndarray, moves: Tensor, work: np.ndarray, steered: Tensor) -> Remedies:
    """Of moves [n, d] that clients made without corrections, doing work a [n].

    Equal work: Delta_i a / a_i, with a = sum_i p_i a_i (Wang et al., IEEE TSP 2021, eq. (20)).

    Args:
        steered: [n, d] the moves of the same steps on the same batches, taken with `control(...)` in their direction.
    """
    before = max(spread(p, moves), TINY)
    equal = moves * (float(p @ work) / torch.as_tensor(work).to(moves)[:, None])
    return Remedies(1 - spread(p, equal) / before, 1 - spread(p, steered) / before)


def control(p: np.ndarray, moves: Tensor, work: np.ndarray, lr: float) -> Tensor:
    """c - c_i [n, d] with c_i = -Delta_i / (eta a_i), the client's mean gradient on its way, and c = sum_i p_i c_i.

    Karimireddy et al., ICML 2020, Algorithm 1, option II, as it is just after a round of all clients.
    """
    variates = -moves / (lr * torch.as_tensor(work).to(moves)[:, None])
    return mean_of(p, variates) - variates


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two columns [n], ties at their mean rank; 0 where one does not vary."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped]  # half a second

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b).statistic)


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
