"""The gradients of local steps with differential privacy of samples: DP-SGD (Abadi et al., CCS 2016, Algorithm 1).

    g = (sum over the samples of a step of clip(grad f_ij(x), C) + z C N(0, I)) / (q n_i)

Each sample is in a step by a coin of its own of chance q, so that the denominator is what comes on average, whoever
came; a step that nobody is in has noise alone. The sum is rounded to whole numbers once, and so is the noise one
(`contract.grid`): one sample moves the rounded sum by no more than C, as there is room for what rounding adds.

Without coins each sample is in one of the M steps of a pass, q = 1/M, and the noise of step t is N_t - N_{t-1}: that of
tree aggregation (DP-FTRL, Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, ICML 2021, restarted in every pass and
completed at its end; without Honaker's refinement, whose weights are no whole numbers). N_t is the sum of the noises of
the nodes, aligned blocks of 2^j steps, that cover 1..t as the digits of t say; the last step is covered by the root
alone. So every step adds one node, whose noise is drawn then, and takes off those of the nodes that it covers.

    **What is seen** is the nodes: whole numbers y_v = sum of the rounded G_s of the steps s of v, and the node's noise.
    G_t + N_t - N_{t-1} is a difference of sums of them, and all that a client does is made of such.
    **How far one sample moves them.** It is in one step, whose G_s it moves by a whole vector of SIGMA / z at most. By
    that very vector it moves the nodes above s, ceil(log2 M) + 1 at most (those that end at step 1, 2, 4, ... and the
    root above the first step), and no others. A last pass of fewer steps in a round has the nodes of these.
    **What it costs.** Given the nodes before, the G_s of all other steps are the same with and without the sample: they
    look at the samples through those nodes alone. So each node above s is one more discrete Gaussian, of noise z, after
    what was seen; they compose as adaptive Gaussian mechanisms do, within a pass, over passes and over rounds.
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
    covers: Sequence[
        dict[int, np.ndarray]
    ]  # of each: noises of the nodes that cover its pass so far, by their last step


def with_noise(objective: Objective, rule: StepNoise, counts: np.ndarray, orders: Sequence[Orders]) -> Objective:
    """The objective of a round's clients whose gradients are clipped sample by sample and have noise, step by step.

    Args:
        counts: [S] samples of each client.
        orders: of each client, in the order of the rows of x.
    """
    places = torch.arange(len(counts), device=objective.device)[:, None]
    conditions = (objective.conditions or Conditions())._replace(place=places)
    return _under(objective, _Round(rule, counts, orders, [{} for _ in orders]), conditions)


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
            noise = torch.as_tensor(_noise(of, place, conditions.step, len(x))).to(total.device)
            total = grid.numbers(grid.rounded(total) + noise, torch.float64)
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


def _noise(of: _Round, place: int, step: int, d: int) -> np.ndarray:
    """N_t - N_{t-1} [d] int64 of a client's step; a step is taken once, and in its order."""
    rule, order, cover = of.rule, of.orders[place], of.covers[place]
    t = step % rule.leaves + 1
    assert max(cover, default=0) == t - 1
    noise = rule.draw(d, order.seed, order.round, order.id, step)
    is_root = rule.leaves == t or order.steps == step + 1
    before = 0 if is_root else t & (t - 1)  # t without its lowest digit: the new node is of the steps behind it
    difference = noise - sum(cover.pop(last) for last in [*cover] if last > before)
    if not is_root:
        cover[t] = noise
    return difference


def nodes(steps: int, leaves: int) -> int:
    """In how many nodes one sample of a client is at most, in so many steps of a round with so many below a tree."""
    passes, rest = divmod(steps, leaves)
    return sum(1 + (n - 1).bit_length() for n in (*[leaves] * passes, rest) if n)


def _of_samples(inner: Objective, conditions: Conditions, row: int, samples: int) -> Objective:
    """The objective of so many samples of a client, a row each, under what the client's step is taken under."""
    if inner.conditions is None:
        return inner
    assert inner.under is not None
    mine = conditions._replace(place=None).of(torch.full((samples,), row), conditions.step)
    if mine.masks is not None:  # a sample's own: its place in the batch is what the masks of a batch go by
        mine = mine._replace(masks=mine.masks + torch.arange(samples, device=mine.masks.device)[:, None])
    return inner.under(mine)
