"""Inputs of samples as they lie in memory: bytes stay bytes, and nothing is copied into the clients' order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedconcord.data.dataset import Scale

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
    if order is not None and (len(order) != len(x) or not np.array_equal(order, np.arange(len(x)))):
        places = torch.as_tensor(order, device=device)
    else:
        places = None
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
