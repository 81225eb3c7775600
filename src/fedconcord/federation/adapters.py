"""Low-rank adapters on any model: `--adapters "lora(where='query|value')"`.

LoRA (Hu et al., ICLR 2022): the weight of a linear layer becomes W + s B A with A [rank, in], B [out, rank] and
s = alpha / rank; W and all else of the model is frozen, held once for all clients and neither trained nor sent. A
starts as torch's linear layers do, B at 0, so that training starts at the model as it was.

Methods see the factors as their x. The mean of clients' factors is no mean of their products: with both factors FedAvg
is what others call FedIT. With B alone (FFA-LoRA, Sun et al., ICLR 2024) A is one draw that all share, and the mean of
the products is exact. A run's final model has the products added to its weights: it is the plain model again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

from torch import Tensor, nn

from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Count, Positive, about

A, B, BASE = "lora_A", "lora_B", "base"


class Adapted(nn.Module):
    """A linear layer with its frozen weights and two factors."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_A = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * (x @ self.lora_A.mT @ self.lora_B.mT)
        return out


class Adapters(NamedTuple):
    """What makes a model one with adapters, in place."""

    attach: Callable[[nn.Module], nn.Module]


def lora(
    where: Annotated[str, about("regular expression that the names of the linear layers match")] = ".*",
    rank: Annotated[Count, about("rank of the products")] = 8,
    alpha: Annotated[Positive, about("the products are alpha / rank times B A")] = 16.0,
    also: Annotated[str, about("regular expression of layers that are trained whole; if empty, none")] = "",
    train: Annotated[
        Literal["both", "B"], about("which factors are trained: both; B alone, as FFA-LoRA, whose mean is exact")
    ] = "both",
) -> Adapters:
    """LoRA: frozen weights and low-rank factors.

    Hu et al., ICLR 2022; with train=B it is FFA-LoRA (Sun et al., ICLR 2024).

    Raises:
        UserError: no layer matches, an expression is none, or a layer has no such rank.
    """

    def attach(model: nn.Module) -> nn.Module:
        linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name]
        whole = [name for name, _ in model.named_parameters() if also and _matches(also, name)]
        layers = [name for name in linear if _matches(where, name) and not (also and _matches(also, name))]
        if not layers:
            raise UserError(
                f"adapters lora: no linear layer of the model matches where {where!r}; its linear layers are "
                f"{', '.join(linear) or 'none'}"
            )
        if also and not whole:
            raise UserError(f"adapters lora: no parameter of the model matches also {also!r}")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in whole)
        for name in layers:
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            most = min(layer.in_features, layer.out_features)
            if rank > most:
                raise UserError(f"adapters lora: rank {rank} is above the {most} that layer {name!r} can have")
            pair = Adapted(layer, rank, alpha / rank)
            pair.lora_A.requires_grad_(train == "both")
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, pair)
        return model

    return Adapters(attach)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise UserError(f"adapters lora: {pattern!r} is no regular expression: {error}") from None


ADAPTERS: dict[str, Callable[..., Adapters]] = by_name(lora)
"""Adapters by name."""


def merged(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the model as it was before `attach`, with the products added to its weights."""
    plain = dict(state)
    for name, layer in model.named_modules():
        if isinstance(layer, Adapted):
            prefix = f"{name}."
            product = plain.pop(f"{prefix}{B}") @ plain.pop(f"{prefix}{A}")
            weight = plain.pop(f"{prefix}{BASE}.weight")
            plain[f"{prefix}weight"] = (weight.double() + layer.scale * product.double()).to(product.dtype)
            if layer.base.bias is not None:
                plain[f"{prefix}bias"] = plain.pop(f"{prefix}{BASE}.bias")
    return plain
