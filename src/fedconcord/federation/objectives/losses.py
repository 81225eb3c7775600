"""What a sample's loss is: by name, or a function of your own by import path.

A loss takes a model's outputs [..., C] and the targets of as many samples: [...] int64 classes, or [..., C] numbers or
labels; of tokens outputs [..., L, C] and classes [..., L], some of them ignored. To add one: write a factory whose
parameters are the user's options and list it in `LOSSES`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from fedconcord.federation.data.dataset import IGNORED, Target
from fedconcord.federation.objectives import kernels
from fedconcord.method.contract import LossForm
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.imports import Open, with_options
from fedconcord.support.objects import name_of
from fedconcord.support.parameters import Positive, about

KINDS: tuple[Target, ...] = ("class", "number", "labels")  # that a function of the user's may be for

Counts = Callable[[Tensor], Tensor]
"""targets [B, ...] -> [B] how much each sample counts in a mean."""


class Loss(NamedTuple):
    """The loss of a sample."""

    name: str
    targets: tuple[Target, ...]  # kinds of target that it is for
    per_sample: Callable[[Tensor, Tensor], Tensor]  # (outputs [..., B, C], targets) -> [..., B]
    delta: kernels.Delta | None = None  # its gradient in the outputs, in closed form; may overwrite them
    form: LossForm | None = None  # what it is to compiled steps
    counts: Counts | None = None  # where a client's loss is the sum of its samples' over the sum of these; None: 1 each


def cross_entropy() -> Loss:
    """Softmax cross-entropy, -log softmax(outputs)[class]; for classes."""

    def per_sample(outputs: Tensor, classes: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, -2), classes.flatten(), reduction="none")
        return each.view(classes.shape)

    return Loss("cross_entropy", ("class",), per_sample, kernels.cross_entropy, "cross_entropy")


def squared() -> Loss:
    """Half the squared error, 1/2 mean over outputs of (output - target)^2; for numbers."""
    return Loss(
        "squared",
        ("number",),
        lambda outputs, targets: (outputs - targets).square().mean(-1) / 2,
        lambda outputs, targets: outputs.sub_(targets).div_(outputs.shape[-1]),
        "squared",
    )


def huber(delta: Annotated[Positive, about("error up to which the loss is quadratic")] = 1.0) -> Loss:
    """Huber's loss (1964): squared error up to delta, linear beyond; mean over outputs; for numbers with outliers."""
    return Loss(
        "huber",
        ("number",),
        lambda outputs, targets: F.huber_loss(outputs, targets, reduction="none", delta=delta).mean(-1),
        lambda outputs, targets: outputs.sub_(targets).clamp_(-delta, delta).div_(outputs.shape[-1]),
    )


def logistic() -> Loss:
    """Logistic loss of each label by itself, log(1 + exp(-+output)), mean over labels; for labels that may co-occur."""
    return Loss(
        "logistic",
        ("labels",),
        lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1),
        lambda outputs, targets: outputs.sigmoid_().sub_(targets).div_(outputs.shape[-1]),
        "logistic",
    )


def valid(targets: Tensor) -> Tensor:
    """How many tokens [...] of each sample [..., L] have a class."""
    return (targets != IGNORED).sum(-1)


def token_cross_entropy(
    per: Annotated[
        Literal["token", "sequence"],
        about("what counts alike in a client's mean, and weighs it by size: every token, or every sample"),
    ] = "token",
) -> Loss:
    """Softmax cross-entropy of each token, mean over a client's tokens that have a class; for tokens."""

    def per_sample(outputs: Tensor, classes: Tensor) -> Tensor:
        each = F.cross_entropy(outputs.flatten(0, -2), classes.flatten(), ignore_index=IGNORED, reduction="none")
        total = each.view(classes.shape).sum(-1)
        return total if per == "token" else total / valid(classes).clamp(min=1)

    return Loss("token_cross_entropy", ("tokens",), per_sample, counts=valid if per == "token" else None)


LOSSES: dict[str, Callable[..., Loss]] = by_name(cross_entropy, squared, huber, logistic, token_cross_entropy)
DEFAULT_LOSS: Mapping[Target, str] = {
    "class": "cross_entropy",
    "number": "squared",
    "labels": "logistic",
    "tokens": "token_cross_entropy",
}


def _own_loss(function: Callable[..., Any], path: str) -> Callable[..., Loss]:
    """A factory of a function (outputs, targets, options) -> the loss of each sample."""
    called = with_options(function, path, "loss", ("outputs", "targets"))

    def make(*args: Any, **options: Any) -> Loss:
        each = functools.partial(called, *args, **options)
        return Loss(name_of(path), KINDS, each)

    make.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    return make


def losses() -> Mapping[str, Callable[..., Loss]]:
    """`LOSSES`, and losses by import path."""
    return Open(LOSSES, "loss", _own_loss)


def check_loss(loss: Loss, target: Target) -> Loss:
    """The loss, if it is for this kind of target."""
    if target not in loss.targets:
        fitting = [name for name, make in LOSSES.items() if target in make().targets]
        raise UserError(f"loss {loss.name} is not for a target of kind {target}; use {' or '.join(fitting)}")
    return loss
