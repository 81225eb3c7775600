"""Whether samples, targets, model and loss fit, before training would only answer with NaN or a traceback."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives.evaluation import Samples, check_outputs
from fedconcord.federation.objectives.losses import Loss
from fedconcord.federation.transformers import shortened
from fedconcord.support.errors import UserError


def check_samples(of: Samples, target: Target, classes: int) -> None:
    """Refuse samples that are not finite, and targets that are not or lie outside of their kind.

    Raises:
        UserError: with the first client that has one.
    """
    owner = np.repeat(np.arange(len(of.offsets) - 1), np.diff(of.offsets))
    broken = ~of.x.finite()
    if broken.any():
        raise UserError(
            f"client {owner[broken][0]} has {int(broken[owner == owner[broken][0]].sum())} samples with NaN or "
            "infinite features; drop or fill them before the run"
        )
    outside, rule = ~torch.isfinite(of.y), "which is not finite; drop or fill such samples"
    if target == "class":
        outside, rule = (of.y < 0) | (of.y >= classes), f"outside 0 to {classes - 1}; map labels to 0, 1, ..."
    elif target == "labels":
        outside, rule = ~((of.y >= 0) & (of.y <= 1)), "not between 0 and 1; map labels to 0 and 1"
    wrong = outside.reshape(len(outside), -1).any(1).cpu().numpy()
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        label = of.y[first][outside[first]].flatten()[0].item()
        raise UserError(f"client {owner[first]} has the label {label:g}, {rule}")


def check_fit(model: nn.Module, loss: Loss, few: Tensor, targets: Tensor, classes: int, pad: int | None) -> None:
    """Refuse a model or a loss that does not fit some samples [2, *shape] and their targets.

    Args:
        pad: the token that fills samples up, if there is one.

    Raises:
        UserError: outputs or losses of another shape, or outputs that depend on the padding.
    """
    outputs = check_outputs(model, few, classes)
    if pad is not None:
        off = float((model(shortened(few, pad)) - outputs).detach().abs().max())
        if off > 1e-3 * float(outputs.detach().abs().max()):
            raise UserError(
                f"the model's outputs change by {off:.2g} with the padding of its samples (token {pad}): it looks past "
                "its attention mask; mend the mask"
            )
    each = loss.per_sample(outputs, targets)
    if each.shape != (len(few),):
        raise UserError(
            f"loss {loss.name} gives shape {tuple(each.shape)} for {len(few)} samples, and one number a sample is "
            f"needed, {(len(few),)}; take the mean over a sample's outputs only"
        )
