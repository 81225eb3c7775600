"""One model on many samples: forward passes of batches that stay in the cache, spread over threads; and what comes of
them for every client, all samples going through the model once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedconcord.basis.errors import UserError
from fedconcord.core import workers
from fedconcord.core.flat import Layout
from fedconcord.problems import kernels
from fedconcord.problems.resident import Resident

CACHED = 2**24  # bytes of the widest layer's outputs for a batch
FEWEST, MOST = 32, 512  # samples in a batch
ON_GPU = 2048  # the same on a GPU

Inputs = Resident | Tensor
"""Samples [n, *shape], of which a slice can be taken."""

Piece = tuple[Inputs, int, int]


class Counted(NamedTuple):
    """What the outputs of one sample cost."""

    multiplications: int
    widest: int  # numbers in the largest activation


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
        self.spare = [model]  # the module and copies of it, those that no thread uses
        self.known = all(_ours(module) for module in model.modules())
        self.images = self.known and few.ndim == 4 and any(isinstance(m, nn.Conv2d) for m in model.modules())
        fitting = CACHED // (self.cost.widest * few.element_size())
        self.batch = min(max(fitting, FEWEST), MOST) if self.on_cpu else ON_GPU

    def outputs(self, x: Tensor, sets: Sequence[Inputs]) -> list[Tensor]:
        """Outputs [n, C] of the model x [d] on each set of samples, all sets in one pass."""
        views = self.layout.values(x)
        if self.images:
            views = {k: _last(v) for k, v in views.items()}
        starts = [range(0, max(len(one), 1), self.batch) for one in sets]
        pieces = [(one, a, min(a + self.batch, len(one))) for one, of in zip(sets, starts, strict=True) for a in of]
        outputs_of = self._all(partial(self._one, views), pieces)
        counts = [len(of) for of in starts]
        return [torch.cat(outputs_of[sum(counts[:k]) : sum(counts[: k + 1])]) for k in range(len(counts))]

    def _all(self, one: Callable[[Piece], Tensor], pieces: Sequence[Piece]) -> list[Tensor]:
        threads = torch.get_num_threads()
        if not (self.on_cpu and self.known) or threads == 1:
            return [one(piece) for piece in pieces]
        if len(pieces) == 1:  # on one thread too, as it would be beside others
            torch.set_num_threads(1)
            try:
                return [one(pieces[0])]
            finally:
                torch.set_num_threads(threads)
        while self.chain is None and len(self.spare) < min(threads, len(pieces)):
            self.spare.append(copy.deepcopy(self.spare[0]))
        return list(workers.ordered(one, pieces, threads))

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


def check_outputs(model: nn.Module, few: Tensor, outputs: int) -> Tensor:
    """A model's outputs [B, outputs] on a few samples [B, *shape].

    Raises:
        UserError: it cannot take them, answers with another shape, or with numbers that no training changes.
    """
    wanted = (len(few), outputs)
    try:
        with torch.enable_grad():
            answer: Tensor = model(few)
    except Exception as error:  # whatever the layers of somebody else's model raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        kind = str(few.dtype).removeprefix("torch.")
        raise UserError(f"the model cannot take samples of shape {tuple(few.shape[1:])} ({kind}): {why}") from error
    shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    if shape != wanted:
        raise UserError(
            f"the model answers {len(few)} samples with {shape}, and the data need {wanted}: one row a sample, "
            f"{outputs} numbers each"
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

    def note(module: nn.Module, inputs: object, out: object) -> None:
        if not isinstance(out, Tensor):
            return
        widest.append(out.numel())
        if isinstance(module, nn.Linear):
            products.append(out.numel() * module.in_features)
        elif isinstance(module, nn.Conv2d):
            products.append(out.numel() * module.weight[0].numel())

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        model(few)
    finally:
        for hook in hooks:
            hook.remove()
    least = sum(p.numel() for p in model.parameters())
    return Counted(max(sum(products) // len(few), least), max(widest) // len(few))


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


def by_client(values: Tensor, offsets: np.ndarray) -> np.ndarray:
    """The mean over each client's samples [N] float64 of values [n]; NaN for none. Summed in order, on the host."""
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(owner, weights=values.double().cpu().numpy(), minlength=len(counts))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def validation(scores: Scores, score: str, judged: np.ndarray) -> dict[str, float]:
    """`validation_loss` and `validation_<score>` over all samples of the clients that are judged [N] bool, and
    `validation_client_<score>`, in which each of them weighs the same."""
    means = {}
    for name in ("loss", score):
        values = scores.values[name]
        means[f"validation_{name}"] = float(np.average(values[judged], weights=scores.samples[judged]))
    return means | {f"validation_client_{score}": float(scores.values[score][judged].mean())}
