"""Whether samples, targets, model and loss fit, before training would only answer with NaN or a traceback."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedconcord.federation.data.dataset import IGNORED, Target
from fedconcord.federation.objectives.evaluation import Samples, check_outputs
from fedconcord.federation.objectives.losses import Loss, valid
from fedconcord.federation.transformers import shortened
from fedconcord.support.errors import UserError


def check_samples(of: Samples, target: Target, classes: int, pad: int | None = None) -> None:
    """Refuse samples that are not finite, and targets that are not or lie outside of their kind.

    Args:
        pad: the token that fills samples up, if there is one, which has no class.

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
    elif target == "tokens":
        outside = ((of.y < 0) | (of.y >= classes)) & (of.y != IGNORED)
        rule = f"outside 0 to {classes - 1}; map labels to 0, 1, ..., and to {IGNORED} where there is none"
        if pad is not None and not outside.any() and of.y.shape == of.x.shape:
            outside = (of.y != IGNORED) & (of.x[:] == pad)
            rule = f"where its sample is filled up (token {pad}); write {IGNORED} there"
    elif target == "labels":
        outside, rule = ~((of.y >= 0) & (of.y <= 1)), "not between 0 and 1; map labels to 0 and 1"
    wrong = outside.reshape(len(outside), -1).any(1).cpu().numpy()
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        label = of.y[first][outside[first]].flatten()[0].item()
        raise UserError(f"client {owner[first]} has the label {label:g}, {rule}")
    if target == "tokens":
        without = np.setdiff1d(owner, owner[valid(of.y).cpu().numpy() > 0])
        if len(without):
            raise UserError(
                f"client {without[0]} has no token with a class among those of its {of.split} samples (all are "
                f"{IGNORED}); leave it out"
            )


def check_fit(
    model: nn.Module, loss: Loss, few: Tensor, targets: Tensor, target: Target, classes: int, pad: int | None
) -> None:
    """Refuse a model or a loss that does not fit some samples [2, *shape] and their targets.

    Args:
        pad: the token that fills samples up, if there is one.

    Raises:
        UserError: outputs or losses of another shape, or outputs that depend on the padding.
    """
    per_token = target == "tokens"
    outputs = check_outputs(model, few, classes, targets.shape[1] if per_token else None)
    if pad is not None:
        short = shortened(few, pad)
        change, size = model(short).detach() - (outputs[:, : short.shape[1]] if per_token else outputs), outputs
        if per_token:
            change, size = change[short != pad], outputs[few != pad]  # padding may answer anything
        off = float(change.abs().max())
        if off > 1e-3 * float(size.detach().abs().max()):
            raise UserError(
                f"the model's outputs change by {off:.2g} with the padding of its samples (token {pad}): it looks past "
                "its attention mask; mend the mask"
            )
    each: object = loss.per_sample(outputs, targets)
    if not isinstance(each, Tensor) or each.shape != (len(few),):
        gives = f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"a {type(each).__name__}"
        raise UserError(
            f"loss {loss.name} gives {gives} for {len(few)} samples, and one number a sample is "
            f"needed, {(len(few),)}; take the mean over a sample's outputs only"
        )
