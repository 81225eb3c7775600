"""Low-rank adapters on any model: `--adapters "lora(where='query|value')"`.

LoRA (Hu et al., ICLR 2022): the weight of a linear layer becomes W + s B A with A [rank, in], B [out, rank] and
s = alpha / rank; W and all else of the model is frozen, held once for all clients and neither trained nor sent. A
starts as torch's linear layers do, B at 0, so that training starts at the model as it was.

Methods see the factors as their x. The mean of clients' factors is no mean of their products: with both factors FedAvg
is what others call FedIT. With B alone (FFA-LoRA, Sun et al., ICLR 2024) A is one draw that all share, and the mean of
the products is exact; other ways to have it so are rules of `wrappers.factors`, which a job names as its `aggregate`. A
run's final model has the products added to its weights: it is the plain model again.

Ranks may differ between clients: the server has factors of the largest rank r, and client i the first r_i rows of A and
columns of B, with s = alpha / r for all. Memory and arithmetic of a simulation are those of r.

With R alone the weight is W + s B R A with R [rank, rank], which starts at 0; A and B are the leading singular vectors
of W, those in B times the singular values (LoRA-XS, Balazy et al. 2024, arXiv 2405.17604). rank^2 numbers are sent, and
the mean of the products is exact. In Fed-SB (Singhal et al. 2025, arXiv 2502.15436) A and B are the leading singular
vectors of what a first step of the whole model changes W by, and R starts at their singular values over s: the first
step, as far as the rank goes, is taken. The released code steps by the sign of a gradient on a part of the data; here
the step is any run of the whole model, `first`, so that clients' gradients are messages like others. The papers'
abstracts were read.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedconcord.method.contract.flat import Layout
from fedconcord.method.contract.pairs import Pair
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Count, Positive, about

A, B, R, BASE = "lora_A", "lora_B", "lora_R", "base"
Trained = Literal["both", "B", "R"]
Ranks = Annotated[list[Count], Field(min_length=1)]


class Adapted(nn.Module):
    """A linear layer with its frozen weights and two factors, or three.

    Args:
        fan_in_fan_out: the weight is [in, out], as in GPT-2's Conv1D, and not [out, in].
        ranks: of clients in turn, where they differ.
        change: what a first step changed the weight [out, in] by, float64, of which the factors are made.
    """

    def __init__(
        self,
        base: nn.Module,
        rank: int,
        scale: float,
        fan_in_fan_out: bool = False,
        train: Trained = "both",
        ranks: tuple[int, ...] = (),
        change: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.base, self.scale, self.fan_in_fan_out, self.ranks = base, scale, fan_in_fan_out, ranks
        weight = _weight(base).detach()
        weight = weight.mT if fan_in_fan_out else weight
        outputs, inputs = weight.shape
        self.lora_A = nn.Parameter(weight.new_empty(rank, inputs), train == "both")
        self.lora_B = nn.Parameter(weight.new_zeros(outputs, rank), train != "R")
        self.lora_R = nn.Parameter(weight.new_zeros(rank, rank)) if train == "R" else None
        if self.lora_R is None:
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            return
        source = weight.double() if change is None else change
        u, s, v = (part.to(weight.dtype) for part in torch.linalg.svd(source, full_matrices=False))
        signs = v.gather(1, v.abs().argmax(1, keepdim=True)).sign()  # [least of both, 1], which no rounding turns
        self.lora_A.data.copy_((signs * v)[:rank])
        self.lora_B.data.copy_(((u * s if change is None else u) * signs.mT)[:, :rank])
        if change is not None:
            self.lora_R.data.copy_(torch.diag(s[:rank] / scale))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)  # first: gradients are added up in the reverse order, which moves last bits
        inner = x @ self.lora_A.mT
        inner = inner if self.lora_R is None else inner @ self.lora_R.mT
        return out + self.scale * (inner @ self.lora_B.mT)


class Adapters(NamedTuple):
    """What makes a model one with adapters, in place."""

    attach: Callable[[nn.Module], nn.Module]


def lora(
    where: Annotated[str, about("regular expression that the names of the linear layers match")] = ".*",
    rank: Annotated[
        Count | Ranks,
        about(
            "rank of the products; or a list such as [2,4,8], which clients have in turn by their numbers, for "
            "aggregate flora or hlora"
        ),
    ] = 8,
    alpha: Annotated[Positive, about("the products are alpha / rank times B A; of several ranks the largest")] = 16.0,
    also: Annotated[str, about("regular expression of layers trained whole, beside a head that starts at random")] = "",
    train: Annotated[
        Trained,
        about(
            "which factors are trained: both; B alone, as FFA-LoRA; or R alone, rank x rank between B and A of the "
            "frozen weight's singular vectors, as LoRA-XS. The means of B alone and of R alone are exact"
        ),
    ] = "both",
    first: Annotated[
        str,
        about(
            "folder of a run of the whole model, as of one round of fedsgd: with train=R, A and B are the singular "
            "vectors of what it changed, as Fed-SB"
        ),
    ] = "",
) -> Adapters:
    """LoRA: frozen weights and low-rank factors.

    Hu et al., ICLR 2022; with train=B it is FFA-LoRA (Sun et al., ICLR 2024), with R LoRA-XS (Balazy et al. 2024)
    or, after a first run, Fed-SB (Singhal et al. 2025).

    Raises:
        UserError: no layer matches, an expression is none, a layer has no such rank, clients of different ranks are to
            train one factor alone, or the first run is not of such a model or changed a layer by less than the rank.
    """
    ranks = tuple(rank) if isinstance(rank, list) else (rank,)
    largest, differ = max(ranks), len(set(ranks)) > 1
    if differ and train != "both":
        raise UserError(
            f"adapters lora: ranks that differ between clients are of A and B, given train={train}; leave train out, "
            "or give one rank"
        )

    if first and train != "R":
        raise UserError(f"adapters lora: first is for train=R, given train={train}; leave first out, or train R")

    def attach(model: nn.Module) -> nn.Module:
        linear = [name for name, layer in model.named_modules() if name and is_linear(layer)]
        fresh: Sequence[str] = getattr(model, "fresh", ())  # nobody trained them before; see `hf`
        whole = [name for name, _ in model.named_parameters() if name in fresh or (also and _matches(also, name))]
        layers = [name for name in linear if _matches(where, name) and f"{name}.weight" not in whole]
        if not layers:
            raise UserError(
                f"adapters lora: no linear layer of the model matches where {where!r}; its linear layers are "
                f"{', '.join(linear) or 'none'}"
            )
        if also and not any(_matches(also, name) for name in whole):
            raise UserError(f"adapters lora: no parameter of the model matches also {also!r}")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in whole)
        for name in layers:
            layer = model.get_submodule(name)
            most = min(_weight(layer).shape)
            if largest > most:
                raise UserError(f"adapters lora: rank {largest} is above the {most} that layer {name!r} can have")
            parent, _, last = name.rpartition(".")
            change = _change(Path(first), name, layer, largest) if first else None
            pair = Adapted(layer, largest, alpha / largest, is_conv1d(layer), train, ranks if differ else (), change)
            setattr(model.get_submodule(parent), last, pair)
        return model

    return Adapters(attach)


def is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or is_conv1d(layer)


def is_conv1d(layer: nn.Module) -> bool:
    """Whether it is transformers' linear layer with a weight [in, out], of GPT-2."""
    return type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int)


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def _change(run: Path, name: str, layer: nn.Module, rank: int) -> Tensor:
    """What a run changed the weight [out, in] of a layer by, float64."""
    before, path = _weight(layer).detach().double(), run / "model.safetensors"
    try:
        with safe_open(path, "pt") as file:
            after: Tensor = file.get_tensor(f"{name}.weight").double()
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"adapters lora: first names {run}, whose model.safetensors cannot be read or has no {name}.weight "
            f"({str(error)[:120]}); give the folder of a run of the same model without adapters"
        ) from None
    change = after - before if after.shape == before.shape else before.new_zeros(1, 1)
    if not 0 < change.norm() < before.norm() or int(torch.linalg.matrix_rank(change)) < rank:
        raise UserError(
            f"adapters lora: the run {run} of first changed layer {name!r} by less than rank {rank}, or by more than "
            "all that it was; give a short run that trained this layer of this model, which has to start alike at "
            "every seed, as one of a folder does, or a lower rank"
        )
    return change.mT if is_conv1d(layer) else change


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise UserError(f"adapters lora: {pattern!r} is no regular expression: {error}") from None


ADAPTERS: dict[str, Callable[..., Adapters]] = by_name(lora)
"""Adapters by name."""


def _adapted(model: nn.Module) -> list[tuple[str, Adapted]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Adapted)]


def bases(model: nn.Module) -> list[str]:
    """The names of the frozen weights below factors."""
    return [f"{name}.{BASE}.weight" for name, _ in _adapted(model)]


def pairs(model: nn.Module, layout: Layout) -> tuple[Pair, ...]:
    """Where factors are in x that are both trained, in the order of `bases`."""
    begins = dict(zip(layout.sizes, itertools.accumulate(layout.sizes.values(), initial=0), strict=False))
    every: list[Pair] = []
    for name, layer in _adapted(model):
        if layer.lora_A.requires_grad:
            (rank, inputs), (outputs, _) = layer.lora_A.shape, layer.lora_B.shape
            begin = every[-1].weight + every[-1].size if every else 0
            a, b = (begins[f"{name}.{factor}"] for factor in (A, B))
            every.append(Pair(a, b, rank, outputs, inputs, layer.scale, layer.fan_in_fan_out, begin, layer.ranks))
    return tuple(every)


def merged(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the model as it was before `attach`, with the products added to its weights."""
    plain = dict(state)
    for name, layer in _adapted(model):
        prefix = f"{name}."
        product = plain.pop(f"{prefix}{A}")
        product = product if layer.lora_R is None else plain.pop(f"{prefix}{R}") @ product
        product = plain.pop(f"{prefix}{B}") @ product
        product = product.mT if layer.fan_in_fan_out else product
        weight = plain.pop(f"{prefix}{BASE}.weight")
        plain[f"{prefix}weight"] = (weight.double() + layer.scale * product.double()).to(product.dtype)
        if layer.base.bias is not None:
            plain[f"{prefix}bias"] = plain.pop(f"{prefix}{BASE}.bias")
    return plain


def unmerged(model: nn.Module, layout: Layout, plain: Mapping[str, Tensor]) -> Tensor:
    """The model [d + D] that `merged` makes such a state of, its factors 0; [d] without adapters."""
    state, additions = dict(plain), []
    for name, _ in _adapted(model):
        weight = layout.constants[f"{name}.{BASE}.weight"]
        additions.append((state.pop(f"{name}.weight").to(weight) - weight).reshape(-1))
        factors = (f"{name}.{factor}" for factor in (A, B, R))
        state |= {factor: weight.new_zeros(layout.shapes.get(factor, ())) for factor in factors}
    return torch.cat([layout.vector(state), *additions])
