"""Products of matrices. oneDNN's are at full vectors where MKL, on AMD's processors, takes half of one."""

from __future__ import annotations

import torch
from torch import Tensor

ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
LEAST = 2**22  # multiplications of one product, below which many are quicker in one call of torch


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
