"""Quadratic clients f_i(x) = mean_j 1/2 x'H_ij x - b_ij'x: the problems whose optimum and wrong optima are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedconcord.basis.parameters import Count, NotNegative, Positive, about
from fedconcord.core import Evaluator, Objective, Regulariser, Roster, objective_of, rng, roster_of
from fedconcord.problems.alone import alone


class Quadratic:
    """Clients with quadratic objectives; the j-th block of client i is its j-th sample.

    Args:
        H: [N, M, d, d] symmetric.
        b: [N, M, d].
        sizes: [N] what weights by size are proportional to; equal if not given.
        x0: [d] the start of every seed; zero if not given.
    """

    def __init__(
        self,
        H: Tensor,
        b: Tensor,
        sizes: np.ndarray | None = None,
        x0: Tensor | None = None,
        regulariser: Regulariser | None = None,
    ) -> None:
        n, m, self.dim = b.shape
        self.H, self.b = H.reshape(n * m, self.dim, self.dim), b.reshape(n * m, self.dim)
        self.dtype, self.device, self.regulariser = b.dtype, b.device, regulariser
        self.offsets = np.arange(n + 1, dtype=np.int64) * m
        self.sizes = np.full(n, float(m)) if sizes is None else np.asarray(sizes, np.float64)
        self.x0 = torch.zeros_like(b[0, 0]) if x0 is None else x0
        self.H_mean, self.b_mean = H.mean(1), b.mean(1)  # [N, d, d], [N, d]
        self._optimum = self.optimum(self.sizes / self.sizes.sum())

    def optimum(self, p: np.ndarray) -> Tensor:
        """The minimiser [d] of sum_i p_i f_i for client weights p [N]."""
        weight = torch.as_tensor(p, dtype=self.dtype, device=self.device)
        H = torch.einsum("n,nij->ij", weight, self.H_mean)
        minimiser: Tensor = torch.linalg.solve(H, weight @ self.b_mean)
        return minimiser

    @cached_property
    def objective(self) -> Objective:
        of = objective_of(self, lambda place: alone(self, place, ("H", "b"), ("H_mean", "b_mean")).objective)
        return replace(of, regulariser=self.regulariser)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def init(self, seed: int) -> Tensor:
        return self.x0.clone()

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return (self.H[samples] @ x - self.b[samples]).mean(0)

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        value: Tensor = (0.5 * torch.einsum("i,bij,j->b", x, self.H[samples], x) - self.b[samples] @ x).mean()
        return value

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.H[samples].mean(0)

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        each = torch.einsum("sbij,sj->sbi", self.H[samples], x) - self.b[samples]
        return each.mean(1) if weight is None else torch.einsum("sb,sbi->si", weight, each)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`loss`: sum_i p_i f_i(x) with p by size; `distance`: to the minimiser of that sum, l2."""
        p = torch.as_tensor(self.sizes / self.sizes.sum(), dtype=self.dtype, device=self.device)
        values = 0.5 * torch.einsum("i,nij,j->n", x, self.H_mean, x) - self.b_mean @ x
        return {"loss": float(p @ values), "distance": float(torch.linalg.vector_norm(x - self._optimum))}

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


def quadratics(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    dim: Annotated[Count, about("dimension d")] = 20,
    blocks: Annotated[Count, about("number of samples (blocks) of a client")] = 3,
    condition: Annotated[
        float, Field(ge=1, description="ratio of the largest to the smallest curvature of a block")
    ] = 10.0,
    spread: Annotated[NotNegative, about("distance scale between the clients' own minimisers")] = 1.0,
) -> Quadratic:
    """Heterogeneous random quadratics with a known optimum.

    Every block has its own curvature (eigenvalues log-uniform in [1/condition, 1]) and its own minimiser, so that
    clients drift; sizes are unequal.
    """
    H = np.empty((n_clients, blocks, dim, dim))
    b = np.empty((n_clients, blocks, dim))
    sizes = np.empty(n_clients)
    for i in range(n_clients):
        draw = rng.generator(seed, rng.Purpose.DATA, client=i)
        centre = spread * draw.standard_normal(dim)
        sizes[i] = draw.integers(50, 500)
        for j in range(blocks):
            basis, _ = np.linalg.qr(draw.standard_normal((dim, dim)))
            H[i, j] = (basis * condition ** -draw.random(dim)) @ basis.T
            b[i, j] = H[i, j] @ (centre + 0.3 * spread * draw.standard_normal(dim))
    return Quadratic(
        torch.as_tensor(H, dtype=dtype, device=device), torch.as_tensor(b, dtype=dtype, device=device), sizes
    )


def fednova_quadratics(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    dim: Annotated[Count, about("dimension d")] = 10,
    std: Annotated[Positive, about("standard deviation of the minimisers' coordinates")] = 0.1,
    start: Annotated[float, about("value of every coordinate of x^0 (not stated in the paper)")] = 0.0,
) -> Quadratic:
    """FedNova's Fig. 2: f_i(x) = 1/2 ||x - e_i||^2 with e_i ~ N(0, std^2 I).

    Wang et al., IEEE TSP 2021, section III. FedAvg's limit here is known in closed form (Lemma 1).
    """
    e = np.stack([rng.generator(seed, rng.Purpose.DATA, client=i).normal(0.0, std, dim) for i in range(n_clients)])
    H = torch.eye(dim, dtype=dtype, device=device).expand(n_clients, 1, dim, dim)
    x0 = torch.full((dim,), start, dtype=dtype, device=device)
    return Quadratic(H, torch.as_tensor(e, dtype=dtype, device=device)[:, None], x0=x0)
