"""The samples of stacked clients' steps, and their gradients over all they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Done, Drawn, Objective
from fedconcord.method.step.walk import Here

SLICE = 512  # samples of a client in one pass of a full gradient


def pick(value: float | Tensor | None, here: Here) -> Tensor:
    """These rows of a stacked value; a number or a shared vector as it is."""
    return value[here] if isinstance(value, Tensor) and value.ndim >= 2 else value  # type: ignore[return-value]


class Samples(NamedTuple):
    """The samples of every step."""

    samples: Tensor  # [S, K, B], or [S, 1, B] where all steps use the same
    weight: Tensor | None  # of the same shape; None: 1/B each

    def step(self, here: Here, k: int) -> tuple[Tensor, Tensor | None]:
        """Those of step k for these clients."""
        k = k if self.samples.shape[1] > 1 else 0
        return self.samples[here, k], None if self.weight is None else self.weight[here, k]


class Batches(NamedTuple):
    """The gradients of clients side by side (`walk.Source`)."""

    objective: Objective
    places: np.ndarray  # [S]
    samples: Samples | None  # None: all of each client, too many for one pass
    blocks: Tensor | None  # [S, K] the block of every step

    def step(self, k: int, active: np.ndarray, here: Here) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
        """`walk.Source.step`."""
        block = None if self.blocks is None else self.blocks[here, k]
        if self.samples is None:
            return lambda point: self.full(point, active), block
        samples, weight = self.samples.step(here, k)
        objective = self.objective.taking(here, k)
        return lambda point: objective.gradients(point, samples, weight), block

    def full(self, x: Tensor, active: np.ndarray) -> Tensor:
        """`walk.Source.full`."""
        objective = self.objective.taking(torch.as_tensor(active, device=x.device), 0)
        return full_gradient(objective, x, self.places[active])


class Alone(NamedTuple):
    """The gradients of one client by itself, by the objective's reference (`walk.Source`)."""

    objective: Objective
    samples: list[Tensor]  # of every step
    blocks: np.ndarray | None  # of every step
    whole: Tensor  # all samples of the client

    def step(self, k: int, active: np.ndarray, here: Here) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
        """`walk.Source.step`."""
        block = None if self.blocks is None else torch.as_tensor(self.blocks[k : k + 1], device=self.whole.device)
        objective = self.objective.taking(slice(None), k)
        has_noise = objective.conditions is not None and objective.conditions.place is not None
        if len(self.samples[k]) < min(1, len(self.whole)) and not has_noise:  # coins that all fell the other way
            return torch.zeros_like, block
        return lambda point: _gradient(objective, point, self.samples[k]), block

    def full(self, x: Tensor, active: np.ndarray) -> Tensor:
        """`walk.Source.full`."""
        return _gradient(self.objective, x, self.whole)


def _gradient(objective: Objective, point: Tensor, samples: Tensor) -> Tensor:
    return objective.gradient(point[0], samples)[None].clone()  # a problem may keep what it returns


def batches(objective: Objective, places: np.ndarray, mine: Sequence[Drawn]) -> Samples:
    """Mini-batches, moved over once."""
    arrays = [one.batches for one in mine if one.batches is not None]
    longest, widest = len(arrays[0]), max(batch.shape[1] for batch in arrays)
    local = np.full((len(arrays), longest, widest), -1, np.int64)
    for row, batch in zip(local, arrays, strict=True):
        row[: len(batch), : batch.shape[1]] = batch
    valid = local >= 0
    count = valid.sum(-1, keepdims=True)
    short = any(np.any(batch < 0) or batch.shape[1] < widest for batch in arrays)
    index = np.where(valid, local, 0) + objective.offsets[places][:, None, None]
    weight = torch.as_tensor(valid / np.maximum(count, 1)).to(objective.dtype) if short else None
    return Samples(
        torch.as_tensor(index).to(objective.device, non_blocking=True),
        None if weight is None else weight.to(objective.device, non_blocking=True),
    )


def everything(objective: Objective, places: np.ndarray) -> Samples | None:
    """All samples of each client, the same at every step; None if they are too many for one pass."""
    longest = int(objective.counts(places).max())
    if longest > SLICE:
        return None
    index, weight = _slice(objective, places, 0, longest)
    return Samples(index[:, None], None if weight is None else weight[:, None])


def _slice(objective: Objective, places: np.ndarray, begin: int, end: int) -> tuple[Tensor, Tensor | None]:
    """Samples `begin` to `end` of each client [S, B] and their weights in its mean; None for 1/B each."""
    first, counts = objective.offsets[places], objective.counts(places)
    position = np.arange(begin, end)[None, :]
    valid = position < counts[:, None]
    index = torch.as_tensor(first[:, None] + np.where(valid, position, 0)).to(objective.device)
    if begin == 0 and (counts == end).all():
        return index, None
    return index, torch.as_tensor(valid / counts[:, None]).to(dtype=objective.dtype, device=objective.device)


def blocks_of(objective: Objective, mine: Sequence[Drawn]) -> Tensor:
    """The block [S, K] of every step."""
    arrays = [one.blocks for one in mine if one.blocks is not None]
    out = np.zeros((len(arrays), len(arrays[0])), np.int64)
    for row, block in zip(out, arrays, strict=True):
        row[: len(block)] = block
    return torch.as_tensor(out).to(objective.device)


def full_gradient(objective: Objective, x: Tensor, places: np.ndarray) -> Tensor:
    """Gradients [S, d] over all samples of each client, in slices of bounded memory."""
    longest = int(objective.counts(places).max())
    g = None
    for begin in range(0, longest, SLICE):
        part = objective.gradients(x, *_slice(objective, places, begin, min(begin + SLICE, longest)))
        g = part if g is None else g.add_(part)
    assert g is not None
    return g


def with_features(objective: Objective, algorithm: Algorithm, end: Done, places: np.ndarray) -> Done:
    """What the steps of clients came to, with the sums of features that prototypes are made of, where they are."""
    if algorithm.step.prototypes is None:
        return end
    assert objective.feature_sums is not None
    sums = objective.feature_sums(end.x.reshape(len(places), -1), places)
    return end._replace(features=sums.reshape(*end.x.shape[:-1], *sums.shape[1:]))


def losses(objective: Objective, x: Tensor, places: np.ndarray) -> Tensor:
    """The losses [S] of clients over all their samples, at an x [S, d] of each or at one x [d]: they are no gradients.

    At one x the samples of all clients are one list, in slices: a small model's passes take less than their calls.
    """
    with torch.no_grad():
        if x.ndim == 1 and objective.each is not None and len(places):
            ends = zip(objective.offsets[places], objective.offsets[places + 1], strict=True)
            samples = torch.as_tensor(np.concatenate([np.arange(*pair) for pair in ends]), device=x.device)
            each = torch.cat([objective.each(x, samples[a : a + SLICE]) for a in range(0, len(samples), SLICE)])
            lengths = torch.as_tensor(objective.counts(places), device=x.device)
            return torch.segment_reduce(each, "mean", lengths=lengths)
        x = x.expand(len(places), -1)
        apart = [
            objective.taking(slice(k, k + 1), 0).loss(x[k], objective.samples(place))
            for k, place in enumerate(places.tolist())
        ]
    return torch.stack(apart) if apart else x.new_zeros(0)
