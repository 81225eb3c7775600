"""Layers that training computes by rules of this package, put in the place of torch's by their type.

Dropout: a mask is a hash of a key of the sample, the layer's number in the forward pass, and the element. No state is
drawn from, so that masks are the same in every order of clients, on every engine, and after every resume; whatever asks
twice in one local step, as sharpness-aware steps do, gets the same masks twice.

The hash is splitmix64 (Steele, Lea and Flood, OOPSLA 2014, Fig. 14) in int64 arithmetic that wraps: element by element,
and the same bits on every device. A key seeds one such generator, whose numbers can be made in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

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


class Keys:
    """What the dropout layers of a model make their masks of in a forward pass."""

    def __init__(self) -> None:
        self.samples: Tensor | None = None  # [B] int64; None: nothing is dropped
        self.passed = 0  # dropout layers that the pass has been through: a layer that is used twice draws twice

    @contextmanager
    def of(self, samples: Tensor | None) -> Iterator[None]:
        """Around one forward pass with training's masks."""
        self.samples, self.passed = samples, 0
        try:
            yield
        finally:
            self.samples = None

    def bits(self, layer: str, samples: int, each: int) -> Tensor:
        """Bits [B, each] int32 for the next layer: the halves of numbers of each sample's generator.

        Raises:
            UserError: the layer's inputs are no batch of samples.
        """
        assert self.samples is not None
        if len(self.samples) != samples:
            raise UserError(
                f"layer {layer!r} drops entries of an input whose first axis has {samples} entries for "
                f"{len(self.samples)} samples, so that no mask is of one sample; keep samples on the first axis there, "
                "or set its p to 0"
            )
        self.passed += 1
        return numbers(self.samples, self.passed, -(-each // 2)).view(torch.int32)[:, :each]


def masks(keys: Keys | None, samples: Tensor | None) -> AbstractContextManager[None]:
    """Around a forward pass with the masks of a step, by the keys [B] of its samples; without, nothing is dropped."""
    return nullcontext() if keys is None or samples is None else keys.of(samples)


class KeyedDropout(nn.Module):
    """Dropout, in training, of entries [B, ...] or of whole channels of them [B, C, ...]; else nothing.

    What is kept is divided by 1 - p. The rate is p to 2^-33.
    """

    def __init__(self, name: str, p: float, has_channels: bool, keys: Keys) -> None:
        super().__init__()
        self.name, self.p, self.has_channels, self.keys = name, p, has_channels, keys

    def forward(self, x: Tensor) -> Tensor:
        if self.keys.samples is None:
            return x
        of = x.flatten(2)[..., 0] if self.has_channels and x.ndim > 2 else x
        bits = self.keys.bits(self.name, len(x), of[0].numel())
        if self.p == 1.0:
            return torch.zeros_like(x)
        stays = (bits >= min(round(self.p * 2**32) - HALF, HALF - 1)).view(*of.shape, *[1] * (x.ndim - of.ndim))
        return x * stays.to(x.dtype).div_(1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def with_keys(model: nn.Module) -> tuple[nn.Module, Keys | None, str | None]:
    """The model with its dropout replaced, where it has any: (the model, what its masks are made of, its first layer).

    The model that is passed stays as it is.

    Raises:
        UserError: a dropout layer that has no such form, or that is in evaluation mode.
    """
    names = [name for name, layer in model.named_modules() if name and isinstance(layer, _DropoutNd) and layer.p]
    if not names:
        return model, None, None
    model, keys = copy.deepcopy(model), Keys()
    replaced: dict[int, nn.Module] = {}
    for name, layer in [*model.named_modules(remove_duplicate=False)]:
        if not (name and isinstance(layer, _DropoutNd) and layer.p):
            continue
        _check(name, layer)
        has_channels = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        keyed = replaced.setdefault(id(layer), KeyedDropout(name, layer.p, has_channels, keys))
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, keyed)
    return model, keys, names[0]


def draw_masks(model: nn.Module) -> None:
    """Let the dropout of a model, replaced as `with_keys` does, take its keys from torch's generator: for whoever calls
    the model in training as torch's own."""
    keys = next((layer.keys for layer in model.modules() if isinstance(layer, KeyedDropout)), None)
    if keys is None:
        return

    def draw(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        keys.passed = 0
        high = 2**63 - 1
        keys.samples = torch.randint(high, (len(inputs[0]),), device=inputs[0].device) if module.training else None

    model.register_forward_pre_hook(draw)


def _check(name: str, layer: _DropoutNd) -> None:
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


def refuse_draws(model: nn.Module, few: Tensor, keys: Keys | None) -> None:
    """Refuse a model that draws from torch's generator as it takes a few samples [B, *shape] in training.

    Raises:
        UserError: with the innermost layer that does, or a layer whose masks are of no sample.
    """
    if keys is not None:
        streams = torch.zeros(1, 1, dtype=torch.int64, device=few.device)
        with keys.of(sample_keys(streams, 0, len(few))[0]), torch.no_grad():
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
