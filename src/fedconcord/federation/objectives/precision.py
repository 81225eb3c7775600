"""In which numbers a model's gradients are computed: its own, or shorter ones that the processor is faster with.

Models, sums, states and messages keep their own: only the products inside a gradient are shortened.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn

from fedconcord.support.errors import UserError

Precision = Literal["full", "tf32", "bf16"]
"""full: the model's own numbers; tf32: products of float32 rounded to 10 bits, on a GPU; bf16: to 7 bits."""

CAPABLE = (8, 0)  # compute capability from which a GPU multiplies TF32 and bfloat16 itself


def native_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 itself. torch and oneDNN also compute where it is only emulated, slowly."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return onednn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())  # which every processor with AMX has too


def check(precision: Precision, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a precision that the model's numbers or the processor rule out.

    Raises:
        UserError: models are not float32, or the processor does not compute in this precision itself.
    """
    if precision == "full":
        return
    if dtype != torch.float32:
        kind = str(dtype).removeprefix("torch.")
        raise UserError(
            f"engine.precision {precision} shortens float32, and engine.dtype is {kind}; use engine.dtype float32, or "
            "engine.precision full"
        )
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < CAPABLE:
        raise UserError(
            f"engine.precision {precision} needs a GPU of compute capability {CAPABLE[0]}.{CAPABLE[1]} or later, and "
            f"this one has {capability[0]}.{capability[1]}; use engine.precision full"
        )
    if device.type != "cuda" and precision == "tf32":
        raise UserError(
            f"engine.precision tf32 is computed by GPUs, and this run is on {device.type}; use engine.device cuda, or "
            "engine.precision full or bf16"
        )
    if device.type == "cpu" and not native_bf16():
        raise UserError(
            "engine.precision bf16 would be slower than full here, as this processor only emulates bfloat16 (it has "
            "neither AVX-512 BF16 nor ARM's BF16); use engine.precision full"
        )


def forward(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Around a model's forward pass; its backward pass is in the same numbers."""
    if precision != "bf16":
        return nullcontext()
    # weights change at every step: keeping their casts, as autocast does, would keep those of all steps
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[None]:
    """Around all of a gradient: whether a GPU may round the products of float32, which torch lets convolutions do."""
    if device.type != "cuda":
        yield
        return
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before


def channels_last(model: nn.Module, precision: Precision, device: torch.device) -> bool:
    """Whether images go through the model with their channels last: faster convolutions and, on a CPU, pooling.

    GroupNorm on a CPU is slower by more than the convolutions gain; there `full` stays as torch has it.
    """
    kinds = {type(layer) for layer in model.modules()}
    if nn.Conv2d not in kinds:
        return False
    return device.type == "cuda" or (precision == "bf16" and nn.GroupNorm not in kinds)
