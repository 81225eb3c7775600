"""How much samples and clients count: alike, or with their tokens, which have a class each.

A client's loss over tokens is the mean over its T_i tokens that have a class (`losses.Loss.counts`). It is a mean over
its n_i samples as well, of the sum of a sample's losses times n_i / T_i: so the gradient of a batch of samples has no
bias, and every method minimises it, by full gradients or with control variates of samples. Clients weigh by size with
T_i, which makes the mean of all clients that of all tokens. (The mean over a batch's tokens is neither.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives.evaluation import Forward, Inputs, Samples, Scores
from fedconcord.federation.objectives.losses import Counts, Loss, valid
from fedconcord.federation.objectives.metrics import SCORES


def totals(counts: Counts | None, targets: Tensor, offsets: np.ndarray) -> np.ndarray:
    """How much the samples of each client count together [N] float64: how many they are, if each counts 1."""
    if counts is None:
        return np.diff(offsets).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(counts(targets).cpu().numpy(), dtype=np.float64)])
    return np.asarray(np.diff(sums[offsets]))


def shares(loss: Loss, targets: Tensor, offsets: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, Tensor | None]:
    """The sizes [N] of clients, and by what each sample's loss is multiplied [n] in a mean over samples; None for 1."""
    sizes, samples = totals(loss.counts, targets, offsets), np.diff(offsets)
    if loss.counts is None:
        return sizes, None
    factor = np.repeat(samples / np.maximum(sizes, 1), samples)
    return sizes, torch.as_tensor(factor, dtype=dtype, device=targets.device)


def tallies(judged: Samples, loss: Loss, target: Target) -> dict[str, np.ndarray]:
    """How much each client counts [N] in the means of `loss` and of the target's score, by name."""
    score = SCORES[target]
    every = {"loss": loss.counts, score.name: score.counts}
    return {name: totals(counts, judged.y, judged.offsets) for name, counts in every.items()}


def mean(values: Tensor, targets: Tensor, counts: Counts | None) -> float:
    """The mean of a figure of each sample [n], as they count."""
    wide = values.double()
    return float(wide.mean() if counts is None else wide.sum() / counts(targets).sum())


def by_client(values: Tensor, offsets: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean over each client's samples [N] float64 of values [n], which count [N] together; NaN for none. Summed in
    order, on the host."""
    owner = np.repeat(np.arange(len(counts)), np.diff(offsets))
    sums = np.bincount(owner, weights=values.double().cpu().numpy(), minlength=len(counts))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def validation(scores: Scores, score: str, judged: np.ndarray) -> dict[str, float]:
    """`validation_loss` and `validation_<score>` over all samples or tokens of the clients judged [N] bool, and
    `validation_client_<score>`, in which each of them weighs the same."""
    means = {}
    for name in ("loss", score):
        values = scores.values[name]
        counts = scores.counts.get(name, scores.samples)
        means[f"validation_{name}"] = float(np.average(values[judged], weights=counts[judged]))
    return means | {f"validation_client_{score}": float(scores.values[score][judged].mean())}


def of_tokens(
    forward: Forward, x: Tensor, statistics: Mapping[str, Tensor], of: tuple[Inputs, Tensor], loss: Loss
) -> tuple[Tensor, Tensor]:
    """Losses [n] and summaries [n, 2] of the model x [d] on samples and their targets: the sum of the cross-entropies
    of a sample's tokens, and how many of them have the largest output at their class. Outputs are of a batch alone."""
    losses, summaries = [], []
    for a in range(0, max(len(of[1]), 1), forward.batch):
        inputs, targets = of[0][a : a + forward.batch], of[1][a : a + forward.batch]
        [outputs] = forward.outputs(x, [inputs], statistics)
        losses.append(loss.per_sample(outputs, targets))
        total = losses[-1] if loss.counts is not None else losses[-1] * valid(targets)
        summaries.append(torch.stack([total, (outputs.argmax(-1) == targets).sum(-1)], -1))
    return torch.cat(losses), torch.cat(summaries)
