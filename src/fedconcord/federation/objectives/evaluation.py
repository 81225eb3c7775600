"""One model on many samples.

How inputs lie in memory (bytes stay bytes, and nothing is copied into the clients' order), forward passes of batches
that stay in the cache, spread over threads, and what comes of them for every client.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedconcord.federation import layers
from fedconcord.federation.adapters import is_linear
from fedconcord.federation.data.dataset import Scale
from fedconcord.federation.objectives import kernels
from fedconcord.method.contract import rng, workers
from fedconcord.method.contract.flat import NONE, Layout
from fedconcord.method.contract.products import by_product
from fedconcord.support.errors import UserError, in_words

# -- samples on the device -----------------------------------------------------------------------------------------

CHECKED = 2**22  # numbers looked at in one go


@dataclass(frozen=True, eq=False)
class Resident:
    """Inputs of n samples, read by their numbers: `x[samples]`, the samples of any shape [...], is [..., *shape].

    What is read is of the run's dtype. Bytes are scaled then, in float32 as `Scale.floats` does, to the same bits on
    every device; float32 is widened.
    """

    raw: Tensor  # [m, *shape] contiguous: uint8 with a scale, floats, or int64 for symbols that a model embeds
    dtype: torch.dtype  # of what is read
    order: Tensor | None = None  # [n] int64: sample k is raw[order[k]]; raw[k] if none
    scale: tuple[Tensor, ...] = ()  # of bytes: what divides them, or also mean and deviation; float32 [c or 1, 1, ...]
    table: Tensor | None = None  # of bytes: what each is read as, [c or 1, 256] of `dtype`

    def __len__(self) -> int:
        return len(self.raw if self.order is None else self.order)

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, *shape]."""
        return (len(self), *self.raw.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes in memory, those that others read as well among them."""
        return self.raw.nbytes + (0 if self.order is None else self.order.nbytes)

    def __getitem__(self, samples: Tensor | slice | int) -> Tensor:
        raw = self._raw(samples)
        if not self.scale:
            return raw.to(self.dtype)
        x = raw.to(torch.float32).div_(self.scale[0])
        if len(self.scale) > 1:
            x = x.sub_(self.scale[1]).div_(self.scale[2])
        return x.to(self.dtype)

    def _raw(self, samples: Tensor | slice | int) -> Tensor:
        if isinstance(samples, slice):
            return self.raw[samples] if self.order is None else self.raw.index_select(0, self.order[samples])
        samples = torch.as_tensor(samples, device=self.raw.device)
        flat = samples.reshape(-1)
        if self.order is not None:
            flat = self.order.index_select(0, flat)
        return self.raw.index_select(0, flat).view(*samples.shape, *self.raw.shape[1:])

    def copy(self, samples: Tensor | slice) -> Resident:
        """These samples [k] alone, in memory of their own."""
        return replace(self, raw=self._raw(samples).clone(), order=None)

    def taken(self, samples: Tensor) -> Resident:
        """These samples [k], in the same memory."""
        return replace(self, order=samples if self.order is None else self.order[samples])

    def finite(self) -> np.ndarray:
        """Which samples [n] have neither NaN nor infinity."""
        if self.scale or not self.dtype.is_floating_point:
            return np.ones(len(self), bool)
        step = max(1, CHECKED // max(1, math.prod(self.raw.shape[1:])))
        parts = [torch.isfinite(self[a : a + step].flatten(1)).all(1) for a in range(0, len(self), step)]
        return torch.cat(parts).cpu().numpy()


def resident(
    x: np.ndarray, scale: Scale | None, dtype: torch.dtype, device: torch.device, order: np.ndarray | None = None
) -> Resident:
    """Samples [m, *shape], or those of them in `order` [n], in the array's own memory where torch can read it.

    Args:
        scale: of bytes; without it they are symbols, as other whole numbers are.
        dtype: of what a model takes, but for symbols.
    """
    ours = torch.int64 if np.issubdtype(x.dtype, np.integer) else dtype
    keep = x.dtype in (np.float16, np.float32, np.float64) and x.dtype.itemsize <= dtype.itemsize
    if scale is not None and x.dtype == np.uint8:
        ours, keep = dtype, True
    # a copy only of what torch would refuse: read-only memory, gaps, another order of bytes
    array = np.require(x, x.dtype.newbyteorder("="), ["C", "W"])
    raw = torch.as_tensor(array, dtype=None if keep else ours, device=device)
    whole = order is None or (len(order) == len(x) and np.array_equal(order, np.arange(len(x))))
    places = None if whole else torch.as_tensor(order, device=device)
    if scale is None or x.dtype != np.uint8:
        return Resident(raw, ours, places)
    every = np.arange(256, dtype=np.uint8).reshape(-1, *[1] * (x.ndim - 1))
    table = scale.floats(np.broadcast_to(every, (256, len(scale.mean), *[1] * (x.ndim - 2)))).reshape(256, -1)
    parts = scale.arrays(x.ndim - 1)[: 3 if any(scale.mean) or set(scale.std) != {1.0} else 1]
    return Resident(
        raw,
        ours,
        places,
        tuple(torch.as_tensor(part, device=device) for part in parts),
        torch.as_tensor(table.T.copy(), device=device).to(dtype),
    )


# -- forward passes ------------------------------------------------------------------------------------------------

CACHED = 2**24  # bytes of the widest layer's outputs for a batch
FEWEST, MOST = 32, 512  # samples in a batch
ON_GPU = 2048  # the same on a GPU
WHOLE = 2**27  # bytes of the widest layer's outputs for all samples, up to which they go in one batch

Inputs = Resident | Tensor
"""Samples [n, *shape], of which a slice can be taken."""

Piece = tuple[Inputs, int, int]


class Counted(NamedTuple):
    """What the outputs of one sample cost."""

    multiplications: int
    widest: int  # numbers in the largest activation
    linear: float  # multiplications of a usual linear layer in float32 on a CPU, for each number of the sample


class Forward:
    """The outputs of a model for whatever parameters.

    Batches depend on the model and the shape of a sample alone, and one thread computes each of them on a CPU, so that
    the number of threads changes no bit. Plain convolutional and dense networks go through `kernels.forward`, other
    networks of torch's and this package's layers through a copy of the module a thread, channels last. A module of
    somebody else's, whose forward may keep something or ask for a memory format, has one batch at a time, by all
    threads.

    Args:
        few: one of the samples to come or several, [B, *shape].
    """

    def __init__(self, model: nn.Module, layout: Layout, few: Tensor) -> None:
        self.layout = layout
        self.cost = counted(model, few)
        self.on_cpu = few.device.type == "cpu"
        self.chain = kernels.forward(model, few.shape[1:]) if self.on_cpu else None
        self.last: tuple[Inputs, Tensor, dict[str, Tensor]] | None = None  # statistics, and what they are of
        self.spare = [model]  # the module and copies of it, those that no thread uses
        self.known = all(_ours(module) for module in model.modules())
        self.images = self.known and few.ndim == 4 and any(isinstance(m, nn.Conv2d) for m in model.modules())
        self.item = few.element_size()
        fitting = CACHED // (self.cost.widest * self.item)
        self.batch = min(max(fitting, FEWEST), MOST) if self.on_cpu else ON_GPU

    def work(self, inputs: Tensor) -> float:
        """Multiplications of a usual linear layer for these inputs, texts of any length among them."""
        return inputs.numel() * self.cost.linear

    def outputs(self, x: Tensor, sets: Sequence[Inputs], statistics: Mapping[str, Tensor] = NONE) -> list[Tensor]:
        """Outputs [n, C] of the model x [d] on each set of samples, all sets in one pass; statistics as the layout has
        them."""
        views = self.layout.values(x, statistics)
        if self.images:
            views = {k: _last(v) for k, v in views.items()}
        starts = [range(0, max(len(one), 1), self.batch) for one in sets]
        pieces = [(one, a, min(a + self.batch, len(one))) for one, of in zip(sets, starts, strict=True) for a in of]
        outputs_of = self._all(partial(self._one, views), pieces)
        counts = [len(of) for of in starts]
        return [torch.cat(outputs_of[sum(counts[:k]) : sum(counts[: k + 1])]) for k in range(len(counts))]

    def passes(self, n: int, of: layers.Replaced) -> int:
        """How often the statistics take n samples through the model, the last layer's at most."""
        fits = n * self.cost.widest * self.item <= WHOLE
        return min(len(of.normalises), 1) if fits else len(of.normalises)

    @torch.no_grad()
    def statistics(self, x: Tensor, inputs: Inputs, of: layers.Replaced) -> dict[str, Tensor]:
        """The statistics by which the model x [d] normalises, of all samples of these inputs, by buffer.

        What was last made is kept: rounds that are judged, looked at and the last ask it of one model.
        """
        if not of.normalises:
            return {}
        if self.last is not None and self.last[0] is inputs and torch.equal(self.last[1], x):
            return self.last[2]
        batches = self.batches(x, inputs, of)
        return self.take(x, inputs, of, layers.measured(of.of, len(of.normalises), batches, x.dtype))

    def take(
        self, x: Tensor, inputs: Inputs, of: layers.Replaced, each: Mapping[str, layers.Measured]
    ) -> dict[str, Tensor]:
        """What `statistics` says of them next is this, of each layer."""
        by_name = {f"{name}.running_{k}": value for name, one in each.items() for k, value in one._asdict().items()}
        buffers = {name: by_name.get(name, of.model.get_buffer(name)) for name in of.statistics}
        self.last = inputs, x.clone(), buffers
        return buffers

    def batches(self, x: Tensor, inputs: Inputs, of: layers.Replaced) -> list[Callable[[], Tensor]]:
        """What sends all of these inputs through the model x [d], batch by batch."""
        views, n = self.layout.values(x), len(inputs)
        size = n if self.passes(n, of) == 1 else self.batch

        @torch.no_grad()
        def batch(a: int) -> Tensor:
            out: Tensor = functional_call(of.model, views, (inputs[a : min(a + size, n)],))
            return out

        return [partial(batch, a) for a in range(0, n, size)]

    def _all(self, one: Callable[[Piece], Tensor], pieces: Sequence[Piece]) -> list[Tensor]:
        threads = torch.get_num_threads()
        if not (self.on_cpu and self.known):
            return [one(piece) for piece in pieces]
        while self.chain is None and len(self.spare) < min(threads, len(pieces)):
            self.spare.append(copy.deepcopy(self.spare[0]))
        return list(workers.ordered(one, pieces, threads, share=1))

    @torch.no_grad()  # which a thread has of its own
    def _one(self, views: Mapping[str, Tensor], piece: Piece) -> Tensor:
        samples, a, b = piece
        inputs = samples[a:b]
        if self.chain is not None:
            return self.chain(list(views.values()), inputs)
        if self.images:
            inputs = _last(inputs)
        model = self.spare.pop()  # alone: functional_call puts the parameters into the module itself
        try:
            with by_product(self.work(inputs)):
                out: Tensor = functional_call(model, dict(views), (inputs,))
        finally:
            self.spare.append(model)
        return out


def _ours(module: nn.Module) -> bool:
    package = type(module).__module__.partition(".")[0]
    return package == "torch" or package.startswith("fedconcord")  # and the packages beside it


def _last(values: Tensor) -> Tensor:
    """The same values [n, channels, height, width] with the channels side by side in memory; others as they are."""
    return values.contiguous(memory_format=kernels.LAST) if values.ndim == 4 else values


def check_outputs(model: nn.Module, few: Tensor, outputs: int, length: int | None = None) -> Tensor:
    """A model's outputs [B, outputs] on a few samples [B, *shape]; [B, length, outputs or more] of tokens.

    Raises:
        UserError: it cannot take them, answers with another shape, or with numbers that no training changes.
    """
    needed = (len(few), outputs) if length is None else (len(few), length, outputs)
    try:
        with torch.enable_grad():
            answer: Tensor = model(few)
    except Exception as error:  # whatever the layers of somebody else's model raise
        kind = str(few.dtype).removeprefix("torch.")
        tip = "; whole numbers are taken for tokens, and others must be saved as float32" if kind == "int64" else ""
        raise UserError(
            f"the model cannot take samples of shape {tuple(few.shape[1:])} ({kind}): {in_words(error)}{tip}"
        ) from error
    shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    more = length is not None and isinstance(answer, Tensor) and answer.ndim == 3 and answer.shape[2] > outputs
    if shape != needed and not (more and answer.shape[:2] == needed[:2]):  # a vocabulary has words that no sample has
        raise UserError(
            f"the model answers {len(few)} samples with {shape}, and the data need {needed}: one row a "
            f"{'sample' if length is None else 'token'}, {outputs} numbers each"
        )
    if not answer.requires_grad:
        raise UserError(
            "the model's outputs depend on none of the parameters that are trained (requires_grad); let its last layer "
            "have some, and take them out of torch.no_grad"
        )
    return answer.detach()


@torch.no_grad()
def counted(model: nn.Module, few: Tensor) -> Counted:
    """What the outputs of one of a few samples [B, *shape] cost.

    Linear layers and convolutions multiply; what others do is not counted. Least is a multiplication a parameter.
    """
    products, widest = [0], [few.numel()]
    linear: list[int] = []  # the products of each linear layer, where oneDNN has them

    def note(module: nn.Module, inputs: object, out: object) -> None:
        if not isinstance(out, Tensor):
            return
        widest.append(out.numel())
        if is_linear(module):
            w = module.weight
            assert isinstance(w, Tensor)  # a parameter, or made of some
            products.append(out.numel() // out.shape[-1] * w.numel())  # GPT-2's have their weights transposed
            linear.append(products[-1] if w.dtype == torch.float32 and w.device.type == "cpu" else 0)
        elif isinstance(module, nn.Conv2d):
            products.append(out.numel() * module.weight[0].numel())

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        model(few)
    finally:
        for hook in hooks:
            hook.remove()
    least = sum(p.numel() for p in model.parameters())
    usual = sum(linear) / max(len(linear), 1) / few.numel()
    return Counted(max(sum(products) // len(few), least), max(widest) // len(few), usual)


class Samples(NamedTuple):
    """What clients are judged on: samples of all of them in one list, client after client."""

    split: Literal["train", "validation"]  # what the clients trained on, or what they set apart
    x: Resident  # [n, *shape]
    y: Tensor  # [n, ...]
    offsets: np.ndarray  # [N + 1] int64: those of client i are offsets[i] .. offsets[i+1]-1, perhaps none


class Scores(NamedTuple):
    """The figures of each client."""

    split: str
    samples: np.ndarray  # [N] int64 it was judged on
    values: dict[str, np.ndarray]  # metric -> [N] float64, NaN for a client without such samples
    overall: Mapping[str, float] = MappingProxyType({})  # metrics that are no mean over samples, of all samples
    # metric -> [N] how much each client counts in the mean of all: its samples, where it is not here
    counts: Mapping[str, np.ndarray] = MappingProxyType({})
    higher: Mapping[str, bool] = MappingProxyType({})  # whether more of a metric is better; by its name, if not here


def probe(n: int, train_samples: int, device: torch.device) -> Tensor:
    """The fixed keyed sample of the train samples that the train loss is of, sorted; all of them if fewer."""
    keep = rng.generator(0, rng.Purpose.SPLIT, client=1).permutation(n)[:train_samples]
    return torch.as_tensor(np.sort(keep), device=device)
