"""The unified view of FedVRA: which (a, d, gamma) is which method, and which of them its theory allows.

Wang et al., AAAI 2023: section 3 (the reductions), Remark 1 and Theorem 1 (conditions (17) and (18)). Symbols here and
there: gamma is gamma_i, lr is eta_i, steps is Q_i, p the probability p_i that client i is active in a round, and
    Q~ = [1 - (1 - gamma lr)^steps] / (gamma lr),
the sum of the weights of a client's steps: nearly `steps` while gamma lr steps is small, at most 1 / (gamma lr).

SCAFFOLD and VRL-SGD are no members. With a = 1 / (gamma lr Q), d = 1 and gamma -> 0 they share the *local direction*
g + c - c_i (eqs. (23), (24)): lambda_i becomes the client's mean gradient, SCAFFOLD's c_i. Algorithm 1 itself diverges
there, because its server step -beta lambda has beta = 1 / gamma while the clients move by O(lr): (23) silently measures
from another point. Use `scaffold`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedconcord.support.errors import UserError


class Member(NamedTuple):
    """Options of `fedvra`: `fedvra(**member._asdict())`."""

    gamma: float
    a: float
    d: float | Literal["fednova"]
    weights: Literal["uniform", "size"]


def as_fedvra(
    method: Literal["fedavg", "fedprox", "fednova", "feddyn"],
    n: int,
    cohort: int,
    penalty: float = 0.1,
    weights: Literal["uniform", "size"] = "uniform",
) -> Member:
    """The member of FedVRA's family that is another method, step for step.

    Under uniform sampling without replacement and with the same local solver, plain SGD. `fedavg` and `fedprox` are the
    unbiased forms x + (N/m) sum_A omega_i Delta_i of eq. (21): those methods' weights="unbiased" for omega by size, and
    "uniform" for omega uniform. `fednova` is the vanilla one. `feddyn` is the uniform one; the paper calls it an
    approximation because it compares an exact local solution with SGD: with one local solver the two are identical.

    Args:
        n: clients N in all.
        cohort: clients m of a round.
        penalty: FedProx's mu, FedDyn's alpha; the others have none.
        weights: omega, over all clients.

    Raises:
        UserError: no such member, a cohort that is none, a penalty that is not positive, or FedDyn by size.
    """
    if method not in ("fedavg", "fedprox", "fednova", "feddyn"):
        raise UserError(f"FedVRA holds fedavg, fedprox, fednova and feddyn, given {method!r}")
    if not 1 <= cohort <= n:
        raise UserError(f"cohort must be between 1 and n, given cohort {cohort} of n {n}")
    if method in ("fedavg", "fednova"):
        return Member(0.0, 0.0, n / cohort if method == "fedavg" else "fednova", weights)
    if penalty <= 0:
        raise UserError(f"{method} needs a penalty > 0, given {penalty}")
    if method == "feddyn" and weights != "uniform":
        raise UserError(
            "FedDyn by size has a penalty a client, fedvra(gamma=[alpha / (N p_i), ...], a=1, d=N/S, weights=size); "
            "give weights uniform"
        )
    return Member(penalty, 1.0 if method == "feddyn" else 0.0, n / cohort, weights)


def q_tilde(gamma: float, lr: float, steps: int) -> float:
    """Q~ = [1 - (1 - gamma lr)^steps] / (gamma lr); `steps` where gamma is 0."""
    return (1 - (1 - gamma * lr) ** steps) / (gamma * lr) if gamma * lr else float(steps)


def remark_1(p: float, gamma: float, lr: float, steps: int) -> tuple[float, float]:
    """Remark 1: (a, d) with d = 1 / p and the largest a with (a + d) lr gamma Q~ <= 1.

    For unequal clients give the largest of their lr gamma Q~ (the most steps) and the smallest p.

    Raises:
        UserError: gamma is 0 (there is no dual variable to choose a for), or d alone exceeds the bound.
    """
    if not (0 < p <= 1 and gamma > 0 and lr > 0 and steps >= 1):
        given = f"given p {p}, gamma {gamma}, lr {lr}, steps {steps}"
        raise UserError(f"Remark 1 needs 0 < p <= 1, gamma > 0, lr > 0 and steps >= 1, {given}")
    unit, d = lr * gamma * q_tilde(gamma, lr, steps), 1 / p
    if d * unit >= 1:
        raise UserError(
            f"no a > 0 satisfies (a + d) lr gamma Q~ <= 1: d = 1/p = {d:.3g} alone gives {d * unit:.3g}; "
            "take fewer steps, a smaller lr or a smaller gamma"
        )
    return 1 / unit - d, d


class Condition(NamedTuple):
    """One inequality of Theorem 1: left <= right."""

    formula: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether it does, up to rounding."""
        return self.left <= self.right * (1 + 1e-12)


def conditions(
    p: float, a: float, d: float, gamma: float, lr: float, steps: int, smoothness: float | None = None
) -> list[Condition]:
    """Theorem 1's sufficient conditions for one client and round, as the paper prints them.

    (17): gamma_i >= L_i/2 + 13 L_i / (2 p_i a_i gamma_i eta_i Q~_i).
    (18): eta_i <= min{1 / (sqrt(6) Q~_i L_i), 1 / gamma_i, 1 / ((a_i + d_i) gamma_i Q~_i)}, here three products <= 1.

    With the last part of (18), (17) asks for gamma > 6.5 L / p, far above any gamma in the paper's experiments: it is
    sufficient, not a guide. Remark 1 keeps the last part of (18) alone.

    Args:
        p, a, d, gamma, lr, steps: p_i, a_i, d_i, gamma_i, eta_i, Q_i.
        smoothness: L_i, the Lipschitz constant of grad f_i; without it the conditions that need it are left out.
    """
    q = q_tilde(gamma, lr, steps)
    free = [
        Condition("(18) gamma lr <= 1", gamma * lr, 1.0),
        Condition("(18) (a + d) lr gamma Q~ <= 1", (a + d) * lr * gamma * q, 1.0),
    ]
    if smoothness is None:
        return free
    dual = 2 * p * a * gamma * lr * q
    bound = smoothness / 2 + 13 * smoothness / dual if dual > 0 else math.inf
    return [
        Condition("(17) L/2 + 13 L / (2 p a gamma lr Q~) <= gamma", bound, gamma),
        Condition("(18) sqrt(6) lr Q~ L <= 1", math.sqrt(6) * lr * q * smoothness, 1.0),
        *free,
    ]


class StepSizeWarning(UserWarning):
    """Step sizes that FedVRA's theory does not cover."""


def check(found: Sequence[Condition]) -> bool:
    """Whether all conditions hold; a `StepSizeWarning` gives the numbers of those that do not.

    FedVRA may work all the same: the paper's own MNIST run with unequal clients has (a + d) lr gamma Q~ = 1.17.
    """
    broken = [f"{c.formula} has {c.left:.3g} on the left, {c.right:.3g} on the right" for c in found if not c.holds]
    if broken:
        warnings.warn(f"outside FedVRA's sufficient conditions: {'; '.join(broken)}", StepSizeWarning, stacklevel=2)
    return not broken
