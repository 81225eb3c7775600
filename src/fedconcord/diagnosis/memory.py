"""What clients remember: control variates, dual variables and tables, against the gradients that they stand for.

Each of these methods keeps at a client something that is its gradient grad f_i where the method has converged:

    SCAFFOLD, FedGamma, FedNova-VR   c_i                          Karimireddy et al., ICML 2020; c = sum_i p_i c_i
    VRL-SGD                          Delta_i = c_i - c             Liang et al., 2019
    FedDyn, FedSpeed, FedSMOO        -alpha_i h_i                  Acar et al., ICLR 2021; sum: -alpha h
    FedPD, FedADMM, ADMM, FedHybrid  -lambda_i, -y_i, -pi_i        the dual of x_i = x
    FedVRA                           lambda_i                      Wang et al., AAAI 2023, Lemma 1
    A-FedPD                          -rho (theta - mean + s_i)     A-FedPD, NeurIPS 2024; its lambda_i is minus this
    FedSaga, LoSAC, SAGA tables      the mean of the table         LoSAC, ACM TKDD 2023

How far it is from the gradient at the server's model is the dual drift that A-FedPD names: a client that was away
brings back the gradient of an old model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Algorithm, Tree
from fedconcord.diagnosis.gradients import TINY, lengths, mean_of

DUALS = (
    *("feddyn", "fedspeed", "fedsmoo", "fedpd", "fedadmm", "fedadmm_inexact", "fedhybrid", "fedvra"),
    *("afedpd", "afedpdsam"),
)


class Kept(NamedTuple):
    """What n clients remember, as gradients, and what the server makes of it."""

    what: str
    gradients: Tensor  # [n, d] what stands for grad f_i
    total: Tensor | None  # [d] what the server has for grad F; None where it keeps no such thing


def kept(algorithm: Algorithm, server: Tree, rows: Tree, p: np.ndarray, mean: Tensor) -> Kept | None:
    """What these clients remember, or None where the method's clients keep nothing that stands for a gradient.

    Args:
        rows: their states [n, ...], without a private block.
        p: [n] their weights in the objective of all clients.
        mean: [d] grad F, for what is kept relative to it.
    """
    server = inner_of(server)
    table = table_of(rows)
    if table is not None:
        scale = 1.0 if algorithm.identity.method != "losac" else _losac_scale(given_to(algorithm), table.shape[1])
        total = server.phi / (scale * table.shape[1]) if hasattr(server, "phi") else None
        return Kept("mean of its table", table.mean(1), total)
    rule = RULES.get(algorithm.identity.method)
    return (
        None if rule is None else rule(given_to(algorithm), server, inner_of(rows), torch.as_tensor(p).to(mean), mean)
    )


def inner_of(tree: Tree) -> Any:
    """The method's own state within those of its wrappers."""
    while hasattr(tree, "inner"):
        tree = tree.inner
    return tree


def table_of(rows: Tree) -> Tensor | None:
    """The table [n, M, d] of clients that keep one."""
    while not hasattr(rows, "table"):
        if not hasattr(rows, "inner"):
            return None
        rows = rows.inner
    found: Tensor = rows.table
    return found


def given_to(algorithm: Algorithm) -> dict[str, Any]:
    """The parameters of the method inside all wrappers."""
    identity = algorithm.identity
    while "algorithm" in dict(identity.parameters):
        identity = dict(identity.parameters)["algorithm"]
    return dict(identity.parameters)


def _losac_scale(given: Mapping[str, Any], blocks: int) -> float:
    return 1 / blocks if given["block_scale"] == "mean" else float(given["block_scale"])


Rule = Callable[[dict[str, Any], Any, Any, Tensor, Tensor], Kept]


def _control(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
    return Kept("control variate c_i", rows.c, server.c)


def _vrl(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
    return Kept("deviation Delta_i, with grad F added", rows.delta + mean, None)


def _dyn(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
    alpha, by_size = given["alpha"], given.get("weights") == "size"
    share = alpha / (server.n * p).to(rows.h)[:, None] if by_size else alpha
    return Kept("dual variable -alpha h_i", -share * rows.h, -alpha * server.h)


def _dual(field: str) -> Rule:
    def rule(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
        held = -getattr(rows, field)
        return Kept(
            "dual variable", held / p.to(held)[:, None] if given.get("objective") == "mean" else held, None
        )  # of p_i f_i there

    return rule


def _vra(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
    total = server.dual / server.beta if float(server.beta) > 0 else None
    return Kept("dual variable lambda_i", rows.dual, total)


def _aligned(given: dict[str, Any], server: Any, rows: Any, p: Tensor, mean: Tensor) -> Kept:
    common = server.x - server.mean
    return Kept("dual variable -lambda_i", -given["rho"] * (common + rows.s), -given["rho"] * common)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("scaffold", "fedgamma", "fednova_vr"), _control),
    **dict.fromkeys(("feddyn", "fedspeed", "fedsmoo"), _dyn),
    **dict.fromkeys(("afedpd", "afedpdsam"), _aligned),
    **dict.fromkeys(("fedpd", "fedadmm_inexact", "fedhybrid"), _dual("dual")),
    "fedadmm": _dual("y"),
    "fedvra": _vra,
    "vrlsgd": _vrl,
}


class Staleness(NamedTuple):
    """How far what clients remember is from their gradients."""

    error: np.ndarray  # [n] ||m_i - grad f_i(x^t)||
    relative: float  # sqrt(sum_i p_i error_i^2 / sum_i p_i ||grad f_i||^2); 1 where nothing is remembered
    total: float | None  # ||server's sum - grad F|| / ||grad F||
    gap: float | None  # ||server's sum - sum_i p_i m_i|| / ||grad F||: 0 where all n are all N clients


def staleness(p: np.ndarray, memory: Kept, gradients: Tensor) -> Staleness:
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
    p: np.ndarray, duals: Tensor, own: Tensor, x: Tensor, gradients: Tensor, penalty: float | Tensor
) -> Residual:
    """Of duals y_i [n, d], the clients' models w_i [n, d] with their gradients there [n, d], and theta = x [d].

    A method whose clients keep no model of their own starts from theta: w_i = theta.

    Args:
        penalty: rho, a number or one a client [n, 1].
    """
    apart = own - x
    multiplier = duals + penalty * apart
    return Residual(
        float(mean_of(p, multiplier).square().sum()),
        float(p @ lengths(gradients + multiplier) ** 2),
        float(p @ lengths(apart) ** 2),
    )
