"""The step sizes of FedVRA's family against its theory: conditions (17) and (18) for every client, and Remark 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconcord.method.algorithms.family import conditions, q_tilde, remark_1
from fedconcord.method.contract import Inequality, StepTheory
from fedconcord.support.errors import UserError


def step_theory(
    gamma: float | Sequence[float],
    a: float | Sequence[float],
    d: float | Sequence[float] | str,
    ids: np.ndarray,
    inclusion: np.ndarray,
    steps: np.ndarray,
    lr: float,
    smoothness: np.ndarray,
) -> StepTheory:
    """Conditions (17) and (18) for n clients of one round, and what Remark 1 chooses for the one with the most steps.

    Args:
        gamma, a, d: the parameters of `fedvra`, lists by client among them.
        ids: [n].
        inclusion: [n] p_i.
        steps: [n] Q_i.
        smoothness: [n] bounds of L_i from below; what fails for them fails.
    """
    penalty, dual = _of(gamma, ids), _of(a, ids)
    rules = {"inverse_p": 1 / inclusion, "fednova": steps.mean() / (steps * inclusion.mean())}
    scale = rules[d] if isinstance(d, str) else _of(d, ids)
    by_client = [
        conditions(inclusion[k], dual[k], scale[k], penalty[k], lr, int(steps[k]), float(smoothness[k]))
        for k in range(len(ids))
    ]
    checked = []
    for one in zip(*by_client, strict=True):
        worst = max(one, key=lambda c: c.left / c.right if c.right else np.inf)
        holds = sum(c.holds for c in one)
        checked.append(Inequality(worst.formula, holds, len(ids), float(worst.left), float(worst.right)))
    most = int(np.argmax([g * q_tilde(g, lr, int(k)) for g, k in zip(penalty, steps, strict=True)]))
    suggested = None
    try:
        pair = remark_1(float(inclusion.min()), float(penalty[most]), lr, int(steps[most]))
        suggested = dict(zip("ad", pair, strict=True))
        advice = f"Remark 1 would choose a = {suggested['a']:.3g} and d = {suggested['d']:.3g} here."
    except UserError as error:
        advice = f"Remark 1 gives no (a, d) here: {error}."
    return StepTheory(checked, "(17) asks for far more than any published run has.", advice, suggested)


def _of(value: float | Sequence[float], ids: np.ndarray) -> np.ndarray:
    numbers = np.asarray(value, np.float64)
    return numbers[ids] if numbers.ndim else np.full(len(ids), numbers)
