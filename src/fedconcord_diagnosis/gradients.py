"""Clients' gradients at the server's model: how far they agree, their mini-batch noise, and how curved the losses are.

Symbols: g_i = grad f_i(x^t) of n clients, p_i their weights (sum 1), grad F = sum_i p_i g_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
