"""Pieces of a local step where parts of the model are private: the step moves u = [x | y] (`objective.Parts`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedconcord.method.contract.pieces import At, Piece


@runtime_checkable
class HasWide(Protocol):
    """A piece that acts on the private part of a model too."""

    def wide(self, e: int) -> Piece: ...


def on_shared(piece: Piece, v: Tensor, at: At, d: int) -> Tensor:
    """`piece.apply` on the first d entries of u = [x | y], with y as it is."""
    x, y, part = at.x[:, :d], at.x[:, d:], v[:, :d]

    def gradient(point: Tensor) -> Tensor:
        return at.gradient(torch.cat([point, y], 1))[:, :d]

    moved = piece.apply(part, at._replace(x=x, gradient=gradient))
    if moved is not part:
        part.copy_(moved)
    return v
