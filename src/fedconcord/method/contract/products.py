"""Products of matrices. oneDNN's are at full vectors where MKL, on AMD's processors, takes half of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
LEAST = 2**22  # multiplications of one product, below which many are quicker in one call of torch
AT_ONCE = 2**25  # of a usual layer of one client, below which several clients at once are quicker


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [m, k] times b [n, k] transposed, plus a bias [n]; oneDNN's in float32 on a CPU, if torch was built with it."""
    if a.dtype == torch.float32 and ONEDNN and a.device.type == "cpu":
        made: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
        return made
    return a @ b.T if bias is None else torch.addmm(bias, a, b.T)


def products(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] times b [..., n, k] transposed, of the same leading sizes."""
    (m, k), n = a.shape[-2:], b.shape[-2]
    if a.dtype != torch.float32 or a.device.type != "cpu" or m * k * n < LEAST:
        return a @ b.mT
    pairs = zip(a.reshape(-1, m, k), b.reshape(-1, n, k), strict=True)
    return torch.stack([product(one, other) for one, other in pairs]).view(*a.shape[:-1], n)


class LinearByProduct(torch.autograd.Function):
    """x [..., k] times w [n, k] transposed, plus a bias [n], and its gradients, by `product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_w, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_w else None, w if of_x else None)
        return product(x.flatten(0, -2), w, bias).view(*x.shape[:-1], len(w))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), (of_x, of_w, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        multiply = (lambda a, b: a @ b.mT) if torch.is_grad_enabled() else product  # a gradient of gradients: torch's
        rows = g.flatten(0, -2)
        return (
            multiply(rows, w.mT).view(*g.shape[:-1], -1) if of_x else None,
            multiply(rows.mT, x.flatten(0, -2).mT) if of_w else None,
            rows.sum(0) if of_bias else None,
        )


class LargeLinear(TorchFunctionMode):
    """Within it linear layers of at least `LEAST` multiplications, of a model as it is written, go by `product`."""

    def __torch_function__(
        self, of: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not kwargs and len(args) == 3 and (of is F.linear or of is torch.addmm):
            x, w, bias = args if of is F.linear else (args[1], args[2].mT, args[0])  # addmm is GPT-2's
            is_float32 = x.dtype == w.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
            if is_float32 and x.device.type == "cpu" and x.ndim > 1 and x.numel() * len(w) >= LEAST:
                return LinearByProduct.apply(x, w, bias)  # type: ignore[no-untyped-call]
        return of(*args, **(kwargs or {}))


def by_product(multiplications: float) -> AbstractContextManager[object]:
    """Around gradients and outputs for which a usual linear layer takes so many; to look at every call costs too."""
    return LargeLinear() if 4 * multiplications >= LEAST else nullcontext()
