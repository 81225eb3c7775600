"""The gradients of local steps with differential privacy of samples: DP-SGD (Abadi et al., CCS 2016, Algorithm 1).

    g = (sum over the samples of a step of clip(grad f_ij(x), C) + z C N(0, I)) / (q n_i)

Each sample is in a step by a coin of its own of chance q, so that the denominator is what comes on average, whoever
came; a step that nobody is in has noise alone. The sum is rounded to whole numbers once, and so is the noise one
(`contract.grid`): one sample moves the rounded sum by no more than C, as there is room for what rounding adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Conditions, Objective, Orders
from fedconcord.method.contract.facts import StepNoise
from fedconcord.method.contract.grid import Grid

AT_ONCE = 2**20  # numbers in the gradients of samples that lie in memory side by side


class _Round(NamedTuple):
    """What the steps of a round's clients have in common."""

    rule: StepNoise
    counts: np.ndarray  # [S] samples of each client
    orders: Sequence[Orders]  # of each


def with_noise(objective: Objective, rule: StepNoise, counts: np.ndarray, orders: Sequence[Orders]) -> Objective:
    """The objective of a round's clients whose gradients are clipped sample by sample and have noise, step by step.

    Args:
        counts: [S] samples of each client.
        orders: of each client, in the order of the rows of x.
    """
    places = torch.arange(len(counts), device=objective.device)[:, None]
    conditions = (objective.conditions or Conditions())._replace(place=places)
    return _under(objective, _Round(rule, counts, orders), conditions)


def _under(inner: Objective, of: _Round, conditions: Conditions) -> Objective:
    rule, places = of.rule, conditions.place
    assert places is not None

    def sum_of(row: int, x: Tensor, samples: Tensor, clip: float) -> Tensor:
        """The sum [d] float64 of gradients at x [d] clipped to such a norm; what is not finite counts as zeros."""
        total = x.new_zeros(len(x), dtype=torch.float64)
        for some in torch.split(samples, max(1, AT_ONCE // len(x))) if len(samples) else ():
            each = _of_samples(inner, conditions, row, len(some)).gradients(
                x.expand(len(some), -1), some[:, None], None
            )
            norm = torch.linalg.vector_norm(each, dim=1, dtype=torch.float64)
            share = (clip / norm).clamp(max=1.0)
            if not bool(norm.isfinite().all()):
                share, each = share.nan_to_num(0.0), each.nan_to_num(0.0, 0.0, 0.0)
            total += share @ each.double()
        return total

    def one(row: int, x: Tensor, samples: Tensor) -> Tensor:
        place, grid = int(places[row, 0]), Grid(rule.clip, rule.noise)
        total = sum_of(row, x, samples, grid.room(len(x), int(of.counts[place])) if rule.noise else rule.clip)
        if rule.noise:
            order = of.orders[place]
            noise = rule.draw(len(x), order.seed, order.round, order.id, conditions.step)
            total = grid.numbers(grid.rounded(total) + torch.as_tensor(noise).to(total.device), torch.float64)
        return (total / (rule.probability * int(of.counts[place]))).to(x.dtype)

    def gradients(x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        came = samples if weight is None else [mine[share > 0] for mine, share in zip(samples, weight, strict=True)]
        return torch.stack([one(row, x[row], mine) for row, mine in enumerate(came)])

    return replace(
        inner,
        gradient=lambda x, samples: one(0, x, samples),
        gradients=gradients,
        each=None,
        accumulate=None,
        network=None,
        hessian=None,
        train=None,
        conditions=conditions,
        under=lambda other: _under(inner, of, other),
    )


def _of_samples(inner: Objective, conditions: Conditions, row: int, samples: int) -> Objective:
    """The objective of so many samples of a client, a row each, under what the client's step is taken under."""
    if inner.conditions is None:
        return inner
    assert inner.under is not None
    mine = conditions._replace(place=None).of(torch.full((samples,), row), conditions.step)
    if mine.masks is not None:  # a sample's own: its place in the batch is what the masks of a batch go by
        mine = mine._replace(masks=mine.masks + torch.arange(samples, device=mine.masks.device)[:, None])
    return inner.under(mine)
