"""Layers that training computes by rules of this package, put in the place of torch's by their type.

Batch normalisation: local steps normalise with the batch, without what fills it up; what judges a model normalises with
statistics of all clients' samples at that model (`Measured`), or with constants of the model.

Dropout: a mask is a hash of a key of the sample, the layer's number in the forward pass, and the element. No state is
drawn from, so that masks are the same in every order of clients, on every engine, and after every resume; whatever asks
twice in one local step, as sharpness-aware steps do, gets the same masks twice.

The hash is splitmix64 (Steele, Lea and Flood, OOPSLA 2014, Fig. 14) in int64 arithmetic that wraps: element by element,
and the same bits on every device. A key seeds one such generator, whose numbers can be made in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

from fedconcord.method.contract.flat import is_constant
from fedconcord.support.errors import UserError

GOLDEN = 0x9E3779B97F4A7C15  # odd part of 2^64 / golden ratio: the distance of the hash's inputs
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # its multipliers
HALF = 2**31


def _wrapped(n: int) -> int:
    """n modulo 2^64, as int64 holds it."""
    return (n + 2**63) % 2**64 - 2**63


def mixed(z: Tensor) -> Tensor:
    """splitmix64's output function of every entry of an int64 tensor, which it overwrites."""
    for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
        high = (z >> shift).bitwise_and_(2 ** (64 - shift) - 1)  # int64 shifts copies of the sign in
        z = z.bitwise_xor_(high)
        z = z if factor == 1 else z.mul_(_wrapped(factor))
    return z


def numbers(seeds: Tensor, run: int, count: int) -> Tensor:
    """Numbers [..., count] int64 of the generators with these seeds [...], from number 2^32 run + 1 on."""
    return mixed((seeds + _wrapped((run * 2**32 + 1) * GOLDEN))[..., None] + _counter(count, seeds.device))


@lru_cache(maxsize=64)
def _counter(count: int, device: torch.device) -> Tensor:
    """What the state of a generator is ahead of the first of so many numbers [count]."""
    return torch.arange(count, device=device).mul_(_wrapped(GOLDEN))


def sample_keys(streams: Tensor, step: int, samples: int) -> Tensor:
    """The keys [S, B] int64 of the samples of a step.

    Args:
        streams: [S, 1] int64, of clients in the round.
        step: of the round, from 0.
        samples: B; a sample's key goes by its position alone, so that padding at the end changes none.
    """
    return numbers(streams[:, 0], step, samples)


class Measured(NamedTuple):
    """What normalises in place of a batch."""

    mean: Tensor  # [C]
    var: Tensor  # [C]


class Sums:
    """Count, sum and sum of squares of a layer's inputs by channel, float64: sums of clients' are those of all."""

    def __init__(self) -> None:
        self.count, self.first, self.second = 0, torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Take inputs [B, C, ...] in."""
        wide, axes = x.double(), [0, *range(2, x.ndim)]
        self.count += x.numel() // x.shape[1]
        self.first = self.first.to(x.device) + wide.sum(axes)
        self.second = self.second.to(x.device) + wide.square().sum(axes)

    def statistics(self, dtype: torch.dtype) -> Measured:
        """The mean and the variance over all, the unbiased one as torch keeps it."""
        mean = self.first / self.count
        var = (self.second - self.count * mean.square()).clamp(min=0) / max(self.count - 1, 1)
        return Measured(mean.to(dtype), var.to(dtype))


class EndedError(Exception):
    """A pass has come as far as was asked of it."""


class Pass:
    """What layers are told of the forward pass they are in, beside their inputs."""

    def __init__(self) -> None:
        self.in_training = False  # of a local step
        self.keys: Tensor | None = None  # [B] int64 of the samples; None: nothing is dropped
        self.weights: Tensor | None = None  # [B] of the samples in the step's mean, 0 for what fills it up; None: 1/B
        self.dropped = 0  # dropout layers that the pass has been through: a layer that is used twice draws twice
        self.normalised: set[str] = set()  # layers that the pass has been through
        self.measured: dict[str, Measured] | None = None  # of layers whose statistics are known, where they are made
        self.sums: dict[str, Sums] = {}  # of the next layer
        self.is_whole = False  # all samples are in the one pass, so that it need not end at the next layer

    @contextmanager
    def of_step(self, keys: Tensor | None, weights: Tensor | None) -> Iterator[None]:
        """Around one forward pass of training."""
        self.in_training, self.keys, self.weights, self.dropped = True, keys, weights, 0
        self.normalised.clear()
        try:
            yield
        finally:
            self.in_training, self.keys, self.weights = False, None, None

    def bits(self, layer: str, samples: int, each: int) -> Tensor:
        """Bits [B, each] int32 for the next layer: the halves of numbers of each sample's generator.

        Raises:
            UserError: the layer's inputs are no batch of samples.
        """
        assert self.keys is not None
        if len(self.keys) != samples:
            raise UserError(
                f"layer {layer!r} drops entries of an input whose first axis has {samples} entries for "
                f"{len(self.keys)} samples, so that no mask is of one sample; keep samples on the first axis there, "
                "or set its p to 0"
            )
        self.dropped += 1
        return numbers(self.keys, self.dropped, -(-each // 2)).view(torch.int32)[:, :each]


class KeyedDropout(nn.Module):
    """Dropout, in training, of entries [B, ...] or of whole channels of them [B, C, ...]; else nothing.

    What is kept is divided by 1 - p. The rate is p to 2^-33.
    """

    def __init__(self, name: str, p: float, has_channels: bool, of: Pass) -> None:
        super().__init__()
        self.name, self.p, self.has_channels, self.of = name, p, has_channels, of

    def forward(self, x: Tensor) -> Tensor:
        if self.of.keys is None:
            return x
        what = x.flatten(2)[..., 0] if self.has_channels and x.ndim > 2 else x
        bits = self.of.bits(self.name, len(x), what[0].numel())
        if self.p == 1.0:
            return torch.zeros_like(x)
        stays = (bits >= min(round(self.p * 2**32) - HALF, HALF - 1)).view(*what.shape, *[1] * (x.ndim - what.ndim))
        return x * stays.to(x.dtype).div_(1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Normalisation(nn.Module):
    """Batch normalisation of channels [B, C, ...] (Ioffe and Szegedy, ICML 2015), with the parameters and buffers of a
    layer of torch's and their names.

    In training by the weighted mean and variance of the batch, else by `running_mean` and `running_var`.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, name: str, layer: _BatchNorm, of: Pass | None) -> None:
        super().__init__()
        self.name, self.eps, self.of = name, layer.eps, of  # None: its statistics are constants
        self.weight, self.bias = layer.weight, layer.bias
        for key, value in layer.named_buffers():
            self.register_buffer(key, value)

    def forward(self, x: Tensor) -> Tensor:
        of = self.of
        if of is None or not of.in_training:
            mean, var = self._statistics(x)
            return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        if self.name in of.normalised:
            raise UserError(
                f"layer {self.name!r} normalises at two places of the model, and its statistics are of one; give each "
                "place a layer of its own"
            )
        of.normalised.add(self.name)
        if of.weights is None and len(x) > 1:
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        mean, var = self._of_batch(x if x.dtype == torch.float64 else x.float(), of.weights)
        shape = (-1, *[1] * (x.ndim - 2))
        factor = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            factor = factor * self.weight
        out = (x - mean.view(shape)) * factor.view(shape)
        return (out if self.bias is None else out + self.bias.view(shape)).to(x.dtype)

    def _statistics(self, x: Tensor) -> Measured:
        """What normalises inputs outside of training; where statistics are made, inputs of the next layer are added."""
        if self.of is None or self.of.measured is None:
            return Measured(self.running_mean, self.running_var)
        if self.name not in self.of.measured:
            sums = self.of.sums.setdefault(self.name, Sums())
            sums.add(x)
            if not self.of.is_whole:
                raise EndedError
            self.of.measured[self.name] = sums.statistics(x.dtype)
        return self.of.measured[self.name]

    @staticmethod
    def _of_batch(x: Tensor, weights: Tensor | None) -> Measured:
        """The mean and the biased variance of a batch, in which samples have these weights."""
        places = x.reshape(*x.shape[:2], -1)  # [B, C, P]
        if weights is None:
            mean = places.mean((0, 2))
            return Measured(mean, (places - mean[:, None]).square().mean((0, 2)))
        weights = weights.to(x.dtype)
        mean = weights @ places.mean(2)
        return Measured(mean, weights @ (places - mean[:, None]).square().mean(2))

    def extra_repr(self) -> str:
        return f"{len(self.running_mean)}, eps={self.eps}"


def measured(of: Pass, layers: int, batches: Sequence[Callable[[], object]], dtype: torch.dtype) -> dict[str, Measured]:
    """The statistics of so many layers over all samples, by name: each with those before it at their own.

    The statistics of a layer are sums over what the layers before it make of the samples, so that a model of L layers
    takes L passes, each as far as the next layer, and one where all samples are in one batch.

    Args:
        batches: each sends samples through the model; together all of them, once.
    """
    each: dict[str, Measured] = {}
    for _ in range(layers):
        sums = sums_of_next(of, each, batches, is_whole=len(batches) == 1)
        if len(batches) == 1 or not sums:
            break
        each |= {name: one.statistics(dtype) for name, one in sums.items()}
    return each


def sums_of_next(
    of: Pass, measured: dict[str, Measured], batches: Sequence[Callable[[], object]], is_whole: bool = False
) -> dict[str, Sums]:
    """Sums of what the next layer gets, by its name, those before it at theirs; in one pass with those after it where
    all samples are in it, whose statistics come into `measured`."""
    of.measured, of.sums, of.is_whole = measured, {}, is_whole
    try:
        for batch in batches:
            with suppress(EndedError):
                batch()
        return of.sums
    finally:
        of.measured, of.sums = None, {}


# -- a model with these layers ---------------------------------------------------------------------------------------

Norm = Literal["pooled", "frozen", "silo"]
"""How batch normalisation is done: local steps by the batch, and what is judged by the statistics of all clients'
samples, or by those of the client's own (SiloBN); or all by statistics that are constants of the model."""


class Replaced(NamedTuple):
    """A model with the layers of this module."""

    model: nn.Module
    of: Pass
    drops: str | None  # the first layer that drops, if any does
    normalises: tuple[str, ...]  # the layers that normalise by the batch

    @property
    def statistics(self) -> tuple[str, ...]:
        """The buffers that are functions of the model and the data."""
        kinds = ("running_mean", "running_var", "num_batches_tracked")
        buffers = {name for name, _ in self.model.named_buffers()}
        return tuple(f"{name}.{kind}" for name in self.normalises for kind in kinds if f"{name}.{kind}" in buffers)


def replaced(model: nn.Module, norm: Norm = "pooled") -> Replaced:
    """The model with its dropout and batch normalisation replaced. The model that is passed stays as it is.

    Raises:
        UserError: a layer that has no such form, or that is in evaluation mode.
    """
    if not any(name and _is_replaced(layer) for name, layer in model.named_modules()):
        if norm != "pooled":
            raise UserError(f"norm {norm} is of batch normalisation, and the model has none that trains; leave it out")
        return Replaced(model, Pass(), None, ())
    model, of = copy.deepcopy(model), Pass()
    new: dict[int, KeyedDropout | Normalisation] = {}  # by the layer that it replaces, which may have several names
    for name, layer in [*model.named_modules(remove_duplicate=False)]:
        if not (name and _is_replaced(layer)):
            continue
        if id(layer) not in new:
            new[id(layer)] = _form(name, layer, norm, of)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new[id(layer)])
    drops = next((one.name for one in new.values() if isinstance(one, KeyedDropout)), None)
    normalises = (one.name for one in new.values() if isinstance(one, Normalisation) and one.of is not None)
    return Replaced(model, of, drops, tuple(normalises))


def _is_replaced(layer: nn.Module) -> bool:
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    return isinstance(layer, _BatchNorm) and not is_constant(layer)


def _form(name: str, layer: nn.Module, norm: Norm, of: Pass) -> KeyedDropout | Normalisation:
    """What replaces a layer."""
    if isinstance(layer, _DropoutNd):
        _check_dropout(name, layer)
        return KeyedDropout(name, layer.p, isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d), of)
    assert isinstance(layer, _BatchNorm)
    _check_normalisation(name, layer, norm)
    return Normalisation(name, layer, None if norm == "frozen" else of)


def _check_dropout(name: str, layer: _DropoutNd) -> None:
    if type(layer) not in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        raise UserError(
            f"layer {name!r} is {type(layer).__name__}, whose masks have no keyed form here; use torch.nn.Dropout in "
            "its place, or set its p to 0"
        )
    if not layer.training:
        raise UserError(
            f"layer {name!r} is {type(layer).__name__} in evaluation mode, in which it drops nothing; call train() on "
            "it for the masks of training, or set its p to 0"
        )


def _check_normalisation(name: str, layer: _BatchNorm, norm: Norm) -> None:
    kind = type(layer).__name__
    if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        raise UserError(
            f"layer {name!r} is {kind}, which has no form here; use BatchNorm1d, BatchNorm2d or BatchNorm3d there"
        )
    if layer.running_mean is None:
        raise UserError(
            f"layer {name!r} is {kind} without running statistics, so that its answers depend on what else is asked; "
            f"leave track_running_stats at True, or use torch.nn.GroupNorm(2, {layer.num_features}) in its place"
        )
    if norm != "frozen" and not layer.training:
        raise UserError(
            f"layer {name!r} is {kind} in evaluation mode, in which its statistics are constants; set norm to frozen "
            "for that, or call train() on it to normalise by the batch"
        )


def refuse_draws(model: nn.Module, few: Tensor, of: Pass) -> None:
    """Refuse a model that draws from torch's generator as it takes a few samples [B, *shape] in training.

    Raises:
        UserError: with the innermost layer that does, or a layer whose masks are of no sample.
    """
    streams = torch.zeros(1, 1, dtype=torch.int64, device=few.device)
    with of.of_step(sample_keys(streams, 0, len(few))[0], None), torch.no_grad():
        model(few)
    devices = [few.device] if few.device.type == "cuda" else []
    before: list[Tensor] = []  # of the layers that the pass is in
    layers: list[str] = []  # those in which something was drawn, the innermost first

    def state() -> Tensor:
        return torch.cat([torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)])

    def enter(module: nn.Module, inputs: object) -> None:
        before.append(state())

    def leave(name: str, module: nn.Module, inputs: object, out: object) -> None:
        if not torch.equal(before.pop(), state()):
            layers.append(name or "model")

    hooks: list[RemovableHandle] = []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        first = state()
        model(few)
        if torch.equal(first, state()):
            return
        for name, module in model.named_modules():
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(partial(leave, name))]
        try:
            model(few)
        finally:
            for hook in hooks:
                hook.remove()
    raise UserError(
        f"the model draws random numbers outside of nn.Dropout (in {layers[0]!r}), which no seed governs; set its "
        "dropout to 0"
    )
