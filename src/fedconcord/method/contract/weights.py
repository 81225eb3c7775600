"""How the server weighs the clients of a cohort, under any sampling with known probabilities."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract.contract import Weights
from fedconcord.method.contract.round import Plan

Value = TypeVar("Value")


def to_simplex(x: Tensor) -> Tensor:
    """The closest point to x [..., k] with entries >= 0 that sum to 1 in every row (Held, Wolfe and Crowder 1974).

    Sort, keep the largest j with u_j - (u_1 + .. + u_j - 1) / j > 0, subtract that threshold.
    """
    descending = x.sort(dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    excess = (descending.cumsum(-1) - 1.0) / count
    support = (descending > excess).sum(-1, keepdim=True).clamp(min=1)  # 0 of NaN alone
    return (x - excess.gather(-1, support - 1)).clamp(min=0.0)


def objective(kind: Weights, sizes: np.ndarray) -> np.ndarray:
    """p [N], each client's weight in the objective sum_i p_i f_i: equal for `uniform`, by size otherwise."""
    p = np.ones_like(sizes) if kind == "uniform" else sizes
    return np.asarray(p / p.sum())


def minimised(kind: Weights) -> Literal["samples", "clients"]:
    """What the objective is a mean over: every sample, or every client, counts alike."""
    return "clients" if kind == "uniform" else "samples"


def once(compute: Callable[[np.ndarray], Value]) -> Callable[[np.ndarray], Value]:
    """The same function of an array, remembered for as long as that array object lives, so that a round costs O(S).

    Only for arrays that nobody changes, such as a problem's sizes: the key is the object, not its content.
    """
    memory: dict[int, tuple[weakref.ref[np.ndarray], Value]] = {}

    def remembered(array: np.ndarray) -> Value:
        key = id(array)
        entry = memory.get(key)
        if entry is not None and entry[0]() is array:
            return entry[1]

        def forget(reference: weakref.ref[np.ndarray]) -> None:
            if key in memory and memory[key][0] is reference:  # else a new array has taken the address already
                del memory[key]

        value = compute(array)
        memory[key] = (weakref.ref(array, forget), value)
        return value

    return remembered


@once
def total(sizes: np.ndarray) -> float:
    """The sum of sizes [N]."""
    return float(sizes.sum())


def share(kind: Weights, sizes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """p [S] of these clients: the bits of `objective(kind, sizes)[ids]`, in O(S)."""
    return np.full(len(ids), 1.0 / len(sizes)) if kind == "uniform" else sizes[ids] / total(sizes)


def cohort(kind: Weights, p: np.ndarray, count: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """w [S], each client's weight in the server's step.

    `uniform` and `size`: p_i renormalised over the cohort, so they sum to 1. `unbiased`: p_i / E[count_i], whose sum
    is 1 in expectation only: (N / S) p_i for uniform sampling (FedVRA eq. (21)), count_i / S for sampling by p_i with
    replacement (FedNova Theorem 3).

    Args:
        p: [S] weights in the objective.
        count: [S] how often the sampling drew the client.
        expected: [S] E[count].
    """
    weighted = p * count
    return np.asarray(weighted / expected if kind == "unbiased" else weighted / weighted.sum())


def redrawn(plan: Plan, here: np.ndarray, kind: Weights) -> Plan:
    """The plan of some of its clients, weighed as if it had been drawn so; here: [S] bool, who stays."""
    cut = Plan._make(value[here] if isinstance(value, np.ndarray) else value for value in plan)
    w, comes = np.zeros(len(cut.ids)), cut.heard
    times = np.ones(len(cut.ids)) if cut.times is None else cut.times
    expected = cut.inclusion if cut.expected is None else cut.expected
    if comes.any():
        w[comes] = cohort(kind, cut.p[comes], times[comes], expected[comes])
    w = w if cut.damping is None else w * cut.damping
    return cut._replace(w=w)


def without(plan: Plan, is_spoilt: np.ndarray, kind: Weights, everyone: bool) -> Plan:
    """The plan without those whose reply is not finite ([S] bool, of replies that come), as if they had been lost.

    The plan as it is where that leaves no reply, so that the model is lost and the run ends as diverged; so too for a
    method that needs everyone.
    """
    if everyone or not is_spoilt.any() or not (plan.heard & ~is_spoilt).any():
        return plan
    return redrawn(plan, ~is_spoilt, kind)
