"""FedVRA's step sizes against its theory: conditions (17) and (18) of every client, and what Remark 1 would choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconcord.algorithms import family
from fedconcord.basis.errors import UserError


class Checked(NamedTuple):
    """One inequality left <= right over n clients."""

    formula: str
    holds: int  # clients of n
    of: int  # n
    left: float  # of the client that is worst by left / right
    right: float


class Steps(NamedTuple):
    """Conditions, and Remark 1's (a, d) for the client with the most steps, or why there are none."""

    conditions: list[Checked]
    suggested: tuple[float, float] | None
    why_none: str | None


def steps(
    given: Mapping[str, Any], ids: np.ndarray, inclusion: np.ndarray, work: np.ndarray, lr: float, smooth: np.ndarray
) -> Steps:
    """Of clients ids [n] that take part with probability inclusion [n] and do work [n] local steps.

    Args:
        given: fedvra's parameters.
        smooth: [n] bounds of L_i from below; what fails for them fails.
    """
    gamma = given["gamma"]
    penalty = np.array([gamma[i] if isinstance(gamma, list | tuple) else gamma for i in ids], np.float64)
    rule = given["d"]
    mean = float(work.mean())
    found = []
    for k in range(len(ids)):
        d = 1 / inclusion[k] if rule == "inverse_p" else mean / work[k] if rule == "fednova" else float(rule)
        at = inclusion[k], given["a"], d, penalty[k], lr, int(work[k]), float(smooth[k])
        found.append(family.conditions(*at))
    checked = []
    for one in zip(*found, strict=True):
        worst = max(one, key=lambda c: c.left / c.right if c.right else np.inf)
        checked.append(Checked(worst.formula, sum(c.holds for c in one), len(ids), worst.left, worst.right))
    most = int(np.argmax([p * family.q_tilde(p, lr, int(s)) for p, s in zip(penalty, work, strict=True)]))
    try:
        pair = family.remark_1(float(inclusion.min()), float(penalty[most]), lr, int(work[most]))
    except UserError as error:
        return Steps(checked, None, str(error))
    return Steps(checked, pair, None)
