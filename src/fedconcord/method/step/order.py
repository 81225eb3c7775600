"""Which pieces a local step has, of the method and of the user, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedconcord.method.contract import Constant, Local, Oracle, Scale, Snapshot
from fedconcord.method.contract.pieces import Ascent, Clip, Decay, Limit, Momentum, Perturbed, Piece, Place, Pull
from fedconcord.method.contract.wide import HasWide
from fedconcord.method.step.solver import Solver
from fedconcord.support.errors import UserError


def together(local: Local, theirs: Sequence[Piece]) -> list[Piece]:
    """The method's pieces, and of the user's those that it has none for, in their order.

    Raises:
        UserError: two pieces do the same thing in different ways.
    """
    mine = [piece for piece in local.pieces if not _is_nothing(piece)]
    owned = {piece.traits.place: piece for piece in mine if piece.traits.place in (Place.ASCENT, Place.OPTIMISER)}
    both = [*mine, *(piece for piece in theirs if piece.traits.place not in owned)]
    points = [piece for piece in mine if piece.traits.place == Place.ASCENT]
    radii = {piece.radius if isinstance(piece, Ascent) else None for piece in points}
    theirs_of_sam = {piece.radius for piece in theirs if isinstance(piece, Ascent)}
    if (points and not theirs_of_sam <= radii) or (len(points) > 1 and any(isinstance(p, Perturbed) for p in points)):
        raise UserError("the method takes its gradients at points of its own; leave local.oracle at minibatch")
    kinds = [type(piece) for piece in both if not isinstance(piece, Constant)]
    if twice := next((kind.__name__ for kind in kinds if kinds.count(kind) > 1), None):
        raise UserError(f"a step has one {twice}, and the method and what is around it bring one each; use one of them")
    return sorted(both, key=lambda piece: piece.traits.place)


def split(local: Local, solver: Solver) -> Local:
    """With the mean of what a snapshot takes off among the constants, unless something looks at the gradient before
    they come."""
    snapshot, scale = local.piece(Snapshot), local.piece(Scale)
    looks = solver.clip is not None or any(piece.traits.place == Place.MEASURE for piece in local.pieces)
    if snapshot is None or snapshot.c is None or looks or solver.tolerance is not None:
        return local
    apart = snapshot._replace(c=None), Constant(snapshot.c if scale is None else scale.kappa * snapshot.c)
    others = [piece for piece in local.pieces if piece is not snapshot]
    return Local(local.x, *others, *apart, lr_scale=local.lr_scale, first=local.first)


def is_narrow(piece: Piece, width: int) -> bool:
    """Whether a method's piece acts on what is shared alone: it has no vector of u [d + e], and is none that has any
    width."""
    values: Any = piece
    return not isinstance(piece, HasWide) and not any(
        isinstance(value, Tensor) and value.ndim > 0 and value.shape[-1] == width for value in values
    )


def user_pieces(solver: Solver, oracle: Oracle, x: Tensor, shared: int | None = None) -> list[Piece]:
    """The pieces that a user chose, for models like x [..., d]."""
    pieces: list[Piece] = []
    if oracle.kind == "sam":
        pieces.append(Ascent(oracle.radius))
    if solver.clip is not None:
        pieces.append(Clip(solver.clip, shared))
    if solver.weight_decay:
        pieces.append(Decay(solver.weight_decay))
    if solver.momentum:
        pieces.append(Momentum(solver.momentum, x.new_zeros(x.shape[-1]), solver.nesterov))
    if solver.clip_direction is not None:
        pieces.append(Limit(solver.clip_direction, shared))
    return pieces


def _is_nothing(piece: Piece) -> bool:
    """Whether a piece changes nothing, by its numbers."""
    if isinstance(piece, Pull):
        return not isinstance(piece.rho, Tensor) and piece.rho == 0.0
    return isinstance(piece, Scale) and not isinstance(piece.kappa, Tensor) and piece.kappa == 1.0


def plain(piece: Piece) -> Piece:
    """The piece with plain numbers for those that all clients share: they need not go with each."""
    fields: Any = piece
    values = [
        float(value) if isinstance(value, Tensor) and value.ndim == 0 and value.device.type == "cpu" else value
        for value in fields
    ]
    plain: Piece = type(fields)._make(values)
    return plain


def with_one_constant(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The pieces with neighbouring constants as their sum."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, Constant) and isinstance(last, Constant):
            joined[-1] = Constant(last.c + piece.c)
        else:
            joined.append(piece)
    return tuple(joined)


def in_released_order(pieces: list[Piece], limit: float) -> list[Piece]:
    """The pieces in the order of FL-Simulator's and FedDyn's code.

    The gradient with all that is constant is clipped, - rho anchor among it; weight decay and rho x are added after.
    """
    early = [p for p in pieces if p.traits.place <= Place.CONSTANT and not isinstance(p, Decay)]
    decays: list[Piece] = [piece for piece in pieces if isinstance(piece, Decay)]
    pulls = [piece for piece in pieces if isinstance(piece, Pull)]
    anchors: list[Piece] = [Constant(-pull.rho * pull.anchor) for pull in pulls]
    free: list[Piece] = [pull._replace(anchor=torch.zeros_like(pull.anchor)) for pull in pulls]
    optimiser = [piece for piece in pieces if piece.traits.place == Place.OPTIMISER]
    late = [piece for piece in pieces if piece.traits.place > Place.LIMIT]
    return [*early, *anchors, Clip(limit), *decays, *optimiser, *free, *late]
