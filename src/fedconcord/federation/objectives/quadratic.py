"""Quadratic clients: those whose optimum and wrong optima are known, and low-rank matrix estimation.

`Quadratic`: f_i(x) = mean_j 1/2 x'H_ij x - b_ij'x.

`Matrix`: LoSAC (ACM TKDD 2023), section 5.5, eqs. (20)-(21): f_i(X) = mean over its samples of (<X, D_j> - y_j)^2,
psi = lam ||X||_*. The loss is the mean of eq. (14), not the sum that section 5.5 prints: with a sum no step size of the
paper is stable (one sample alone has curvature 2 ||D||^2).
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedconcord.federation.objectives.common import alone
from fedconcord.federation.objectives.regularisers import nuclear, singular_values
from fedconcord.method.contract import Evaluator, Objective, Regulariser, Roster, objective_of, rng, roster_of
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count, NotNegative, Positive, about

# -- quadratic clients ---------------------------------------------------------------------------------------------

Dimension = Annotated[Count, about("dimension d")]
Blocks = Annotated[Count, about("number of samples (blocks) of a client")]
RATIO = "ratio of the largest to the smallest curvature of a block"
Condition = Annotated[float, Field(ge=1, description=RATIO)]
Spread = Annotated[NotNegative, about("distance scale between the clients' own minimisers")]
Std = Annotated[Positive, about("standard deviation of the minimisers' coordinates")]
Start = Annotated[float, about("value of every coordinate of x^0 (not stated in the paper)")]


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
        def one(place: int) -> Objective:
            return alone(self, place, ("H", "b"), ("H_mean", "b_mean")).objective

        return objective_of(self, one, self.regulariser)

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
    dim: Dimension = 20,
    blocks: Blocks = 3,
    condition: Condition = 10.0,
    spread: Spread = 1.0,
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
    curvatures, slopes = (torch.as_tensor(values, dtype=dtype, device=device) for values in (H, b))
    return Quadratic(curvatures, slopes, sizes)


def fednova_quadratics(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    dim: Dimension = 10,
    std: Std = 0.1,
    start: Start = 0.0,
) -> Quadratic:
    """FedNova's Fig. 2: f_i(x) = 1/2 ||x - e_i||^2 with e_i ~ N(0, std^2 I).

    Wang et al., IEEE TSP 2021, section III. FedAvg's limit here is known in closed form (Lemma 1).
    """
    e = np.stack([rng.generator(seed, rng.Purpose.DATA, client=i).normal(0.0, std, dim) for i in range(n_clients)])
    H = torch.eye(dim, dtype=dtype, device=device).expand(n_clients, 1, dim, dim)
    x0 = torch.full((dim,), start, dtype=dtype, device=device)
    return Quadratic(H, torch.as_tensor(e, dtype=dtype, device=device)[:, None], x0=x0)


# -- low-rank matrix estimation ------------------------------------------------------------------------------------

RANK_FLOOR = 1e-3  # singular values above it count as rank (section 5.5)


class Matrix:
    """Clients with linear measurements of one matrix X [rows, columns], handled as a flat vector.

    Args:
        D: [N, n, rows, columns] the measurements of each client; its blocks are slices of its samples.
        y: [N, n] what they gave.
        truth: [rows, columns] the matrix to recover.
        x0: [rows * columns] the start of every seed; zero if not given.
    """

    def __init__(
        self, D: Tensor, y: Tensor, truth: Tensor, regulariser: Regulariser | None = None, x0: Tensor | None = None
    ) -> None:
        n, m = y.shape
        self.shape, self.dim = tuple(truth.shape), truth.numel()
        self.D, self.y, self.truth = D.reshape(n * m, self.dim), y.reshape(-1), truth.reshape(-1)
        for name, values in (("D", self.D), ("y", self.y)):
            if not torch.isfinite(values).all():
                client = int((~torch.isfinite(values.reshape(n, -1))).any(1).nonzero()[0])
                raise UserError(f"client {client} has entries of {name} that are not finite; clean its samples")
        self.dtype, self.device, self.regulariser = y.dtype, y.device, regulariser
        self.offsets = np.arange(n + 1, dtype=np.int64) * m
        self.sizes = np.full(n, float(m))
        self.x0 = torch.zeros_like(self.truth) if x0 is None else x0

    @cached_property
    def objective(self) -> Objective:
        return objective_of(self, lambda place: alone(self, place, ("D", "y")).objective, self.regulariser)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def init(self, seed: int) -> Tensor:
        return self.x0.clone()

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        D = self.D[samples]
        return 2.0 / len(samples) * ((D @ x - self.y[samples]) @ D)

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return (self.D[samples] @ x - self.y[samples]).square().mean()

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        D = self.D[samples]
        return 2.0 / len(samples) * (D.T @ D)

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        D = self.D[samples]  # [S, B, d]
        residual = (D @ x[..., None])[..., 0] - self.y[samples]
        residual = residual * (2.0 / samples.shape[1]) if weight is None else 2.0 * weight * residual
        return (residual[:, None] @ D)[:, 0]

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`error` ||X - X_G||_F, `rank` (singular values > 1e-3), `loss` over all samples, `objective` loss + psi."""
        loss = float((self.D @ x - self.y).square().mean())
        psi = 0.0 if self.regulariser is None else float(self.regulariser.value(x))
        finite = bool(torch.isfinite(x).all())
        singular = singular_values(x.reshape(self.shape)) if finite else x
        return {
            "error": float(torch.linalg.vector_norm(x - self.truth)),
            "rank": float((singular > RANK_FLOOR).sum()) if finite else float("nan"),
            "loss": loss,
            "objective": loss + psi,
        }

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return {"X": x.reshape(self.shape)}


def low_rank(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    dim: Annotated[Count, about("number of rows and of columns of X")] = 64,
    rank: Annotated[int, Field(ge=0, description="rank r of the truth diag(I_r, 0)")] = 8,
    samples: Annotated[Count, about("measurements of each client (not stated in the paper)")] = 100,
    lam: Annotated[NotNegative, about("weight of the nuclear norm (not stated in the paper)")] = 0.1,
    mean: Annotated[float, about("mean of the entries of D, of variance 1")] = 0.1,
    noise: Annotated[NotNegative, about("standard deviation of the noise in y")] = 0.1,
) -> Matrix:
    """Low-rank matrix estimation with a nuclear norm: LoSAC's generator (section 5.5).

    D has entries N(0.1, 1), y = <X_G, D> + N(0, 0.1), X_G = diag(I_r, 0).

    Raises:
        UserError: the rank is larger than the matrix.
    """
    if rank > dim:
        raise UserError(f"low_rank: a {dim} x {dim} matrix has no rank {rank}; give a rank of 0 to {dim}")
    truth = torch.zeros(dim, dim, dtype=dtype)
    truth.diagonal()[:rank] = 1.0
    D = torch.empty(n_clients, samples, dim, dim, dtype=dtype)
    y = torch.empty(n_clients, samples, dtype=dtype)
    for i in range(n_clients):
        draw = rng.generator(seed, rng.Purpose.DATA, client=i)
        entries = draw.normal(mean, 1.0, (samples, dim, dim))
        D[i] = torch.as_tensor(entries)
        y[i] = torch.as_tensor(np.einsum("jaa->j", entries[:, :rank, :rank]) + draw.normal(0.0, noise, samples))
    return Matrix(D.to(device), y.to(device), truth.to(device), nuclear(lam, dim))
