"""Fields of `Algorithm` and `Local` by the names that they had before groups and pieces. They work for one release."""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedconcord.method.contract.pieces import Constant, Dual, Momentum, Newton, Piece, Pull, Scale, Snapshot, Table

T = TypeVar("T")

FORMER = {
    **{name: f"phases.{name}" for name in ("prologue", "prelude", "combine", "settle", "communicates", "unheard")},
    **{f"needs_{name}": f"needs.{name}" for name in ("everyone", "inclusion", "x0", "full_gradient", "normaliser")},
    **{name: f"step.{name}" for name in ("oracle", "steps", "blocks", "hessian_at", "regularise")},
    **{name: f"facts.{name}" for name in ("invariant", "protection")},
    "keeps_late": "phases.late",
    "needs_p": "needs.weight",
    "needs_lr": "needs.lr",
    "pace": "step.size",
    "stepwise": "step.fixed",
    "served": "facts.server_optimiser",
    "own": "client_model",
}
"""Former name -> where the field is now."""


def accepts_former_fields(cls: type[T]) -> type[T]:
    """Let a dataclass with groups be made, changed by `dataclasses.replace`, and read, with the former names."""
    initialise: Any = cls.__init__

    @functools.wraps(initialise)
    def init(self: Any, *arguments: Any, **fields: Any) -> None:
        for name in [name for name in fields if name in FORMER]:
            group, _, field = FORMER[name].partition(".")
            value = fields.pop(name)
            _warn(name, f", given as {group}={group.capitalize()}({field}=...)" if field else "")
            fields[group] = fields.get(group, getattr(cls, group))._replace(**{field: value}) if field else value
        initialise(self, *arguments, **fields)

    def read(self: Any, name: str) -> Any:
        if name not in FORMER:
            raise AttributeError(f"{cls.__name__!r} has no attribute {name!r}")
        _warn(name)
        return functools.reduce(getattr, FORMER[name].split("."), self)

    cls.__init__, cls.__getattr__ = init, read  # type: ignore[method-assign, attr-defined]
    return cls


def _warn(name: str, how: str = "") -> None:
    warnings.warn(
        f"the field {name} of an Algorithm is now {FORMER[name]}{how}; the former name works for one release",
        FutureWarning,
        stacklevel=3,
    )


def former_pieces(
    x: Tensor,
    linear: Tensor | None = None,
    prox: float | Tensor = 0.0,
    anchor: Tensor | None = None,
    scale: float | Tensor = 1.0,
    snapshot: Tensor | None = None,
    table: Tensor | None = None,
    table_rate: float | Tensor = 0.0,
    dual_rate: float = 0.0,
    momentum: float = 0.0,
    buffer: Tensor | None = None,
    metric: Tensor | None = None,
) -> tuple[Piece, ...]:
    """The pieces that the former fields of a `Local` stood for; a table had its mean, scaled, in `linear`."""
    warnings.warn(
        "the fields of a Local beside x, lr_scale and first are now pieces of fedconcord.method.contract, as in "
        "Local(x, Constant(c), Pull(rho, anchor)); the former names work for one release",
        FutureWarning,
        stacklevel=3,
    )
    pieces: list[Piece] = [Scale(scale)]
    if snapshot is not None:
        pieces.append(Snapshot(snapshot))
    if table is not None:
        mean = torch.zeros_like(x) if linear is None else linear / scale
        pieces.append(Table(table, mean, table_rate / scale))
    elif linear is not None:
        pieces.append(Dual(linear, dual_rate, anchor) if dual_rate and anchor is not None else Constant(linear))
    if buffer is not None:
        pieces.append(Momentum(momentum, buffer))
    if anchor is not None:
        pieces.append(Pull(prox, anchor))
    return (*pieces, Newton(metric)) if metric is not None else tuple(pieces)
