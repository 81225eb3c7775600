"""The local steps of a round: one loop for one client and for a cohort, over the pieces of `contract.pieces`.

A `Chain` describes the steps, a `Source` gives the gradients that they take, and `walk` does them. What does the same
faster for some chains (`step.fused`, `step.compiled`) takes the same description and returns None for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract.objective import Rows
from fedconcord.method.contract.pieces import At, HasAfter, HasPotential, HasUnit, Perturbed, Piece, Scale
from fedconcord.method.contract.wide import on_shared
from fedconcord.method.step.sizes import Fixed, Recorded, Ruled, StepSize

Here = Rows


class Chain(NamedTuple):
    """The local steps of clients, ready to be taken."""

    x: Tensor  # [S, d] or [d] where they start
    pieces: tuple[Piece, ...]  # in the order of a step
    size: StepSize
    prox: Callable[[Tensor, float], Tensor] | None = None  # of the regulariser, after every step
    tolerance: float | None = None  # a client stops when ||grad L_i||^2 <= this
    shared: int | None = None  # d, where x is [x | y] with a private part y
    narrow: tuple[bool, ...] = ()  # of each piece, whether it acts on x alone
    tables: tuple[Tensor, ...] = ()  # what pieces move and nobody else needs: it is moved where it lies

    def the(self, kind: type[Any]) -> Any:
        """The piece of this kind, or None."""
        return next((piece for piece in self.pieces if isinstance(piece, kind)), None)

    def view(self, x: Tensor, number: int) -> Tensor:
        """What the piece with this number sees of a vector [..., d + e]."""
        return x[..., : self.shared] if self.shared is not None and self.narrow[number] else x

    def apply(self, pieces: tuple[Piece, ...], v: Tensor, at: At, only: type[Any] = object) -> Tensor:
        """Hand v on from piece to piece, those of this kind."""
        for number, piece in enumerate(pieces):
            if not isinstance(piece, only):
                continue
            if self.shared is not None and self.narrow[number]:
                v = on_shared(piece, v, at, self.shared)
            else:
                v = piece.apply(v, at)
        return v

    def is_of(self, allowed: set[type]) -> bool:
        """Whether all pieces are of these kinds, one of each at most, and stand in the usual order, on all of x."""
        if self.shared is not None:
            return False
        kinds, places = [type(piece) for piece in self.pieces], [piece.traits.place for piece in self.pieces]
        return allowed.issuperset(kinds) and len(kinds) == len(set(kinds)) and places == sorted(places)


class Source(Protocol):
    """The gradients of clients, each on its own samples."""

    def step(self, k: int, active: np.ndarray, here: Here) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
        """Of step k: point [S', d] -> gradients [S', d], which are the caller's; and the blocks [S'] of its samples."""

    def full(self, x: Tensor, active: np.ndarray) -> Tensor:
        """Gradients [S', d] over all samples of these clients, at x [S', d]."""


class Walked(NamedTuple):
    """Where the local steps ended."""

    x: Tensor  # [S, d]
    pieces: tuple[Piece, ...]  # those that moved
    size: StepSize
    taken: np.ndarray  # [S] steps


def walk(chain: Chain, source: Source, steps: np.ndarray) -> Walked:
    """Take the steps [S] of clients; sorted by them, most first, all are views and no copies."""
    x = chain.x.expand(len(steps), -1).clone()
    pieces = tuple(with_own_state(piece, len(x), chain.tables) for piece in chain.pieces)
    size = with_own_state(chain.size, len(x))
    following = [k for k, piece in enumerate(pieces) if isinstance(piece, HasAfter)]
    taken, active = steps.copy(), np.arange(len(steps))
    here: Here = slice(0, len(active))
    now, sized = pieces, size
    for k in range(int(steps.max(initial=0))):
        if k == 0 or (taken[active] <= k).any():
            active = active[taken[active] > k]
            if not len(active):
                break
            here = _place(active, x.device)
            now, sized = tuple(rows_of(piece, here) for piece in pieces), rows_of(size, here)
        elif not isinstance(here, slice):
            now, sized = tuple(rows_of(piece, here) for piece in pieces), rows_of(size, here)
        at_x = x[here]
        gradient, block = source.step(k, active, here)
        at = At(at_x, gradient, block, k, now)
        point = next((at_x + piece.shift for piece in now if isinstance(piece, Perturbed)), at_x)
        v = chain.apply(now, gradient(point), at)
        eta = sized.size(v, at)
        if isinstance(eta, Tensor):
            at_x.addcmul_(v, eta, value=-1)
        else:
            at_x.sub_(v, alpha=eta)
            if chain.prox is not None:
                at_x.copy_(chain.prox(at_x, eta))
        for number in following:
            now[number].after(chain.view(at_x, number))  # type: ignore[attr-defined]
        if not isinstance(here, slice):
            x[here] = at_x
            for old, new in zip((*pieces, size), (*now, sized), strict=True):
                _put(old, here, new)
        if chain.tolerance is not None:
            rest = residual(chain, now, source.full(at_x, active), at_x)
            taken[active[(rest.square().sum(-1) <= chain.tolerance).cpu().numpy()]] = k + 1
    return Walked(x, tuple(piece for piece in pieces if piece.traits.moves), size, taken)


def residual(chain: Chain, pieces: tuple[Piece, ...], g: Tensor, x: Tensor) -> Tensor:
    """The gradient [S, d] of the clients' problems L_i, from those g [S, d] of their f_i at x [S, d]."""
    return chain.apply(pieces, g, At(x, lambda point: g, None, 0), HasPotential)


def response(chain: Chain, walked: Walked) -> Tensor:
    """FedNova's ||a_i||_1 [S, 1] (IEEE TSP 2021, section IV): (x_start - x_end) / eta if every gradient were 1.

    It is the same walk on a single number, with what the pieces are there (`unit`); the anchor of a pull counts as the
    start. Equal to the steps taken for plain SGD.
    """
    zero = chain.x.new_zeros(len(walked.taken), 1)
    count = torch.as_tensor(walked.taken, device=zero.device).to(zero.dtype)[:, None]
    units = [piece.unit(zero) for piece in chain.pieces if isinstance(piece, HasUnit)]
    shadows = tuple(unit for unit in units if unit is not None)
    base, size = 1.0, chain.size
    if isinstance(size, Fixed):
        base = size.eta
        if size.schedule is None and all(isinstance(unit, Scale) for unit in shadows):
            for unit in shadows:
                count = unit.apply(count, At(zero, torch.ones_like, None, 0))
            return count
    elif isinstance(walked.size, Ruled) and walked.size.etas is not None:
        base, size = walked.size.lr, Recorded(walked.size.etas)
    return walk(Chain(zero, shadows, size), Ones(), walked.taken).x / -base


class Ones:
    """Gradients that are all 1."""

    def step(self, k: int, active: np.ndarray, here: Here) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
        return torch.ones_like, None

    def full(self, x: Tensor, active: np.ndarray) -> Tensor:
        return torch.ones_like(x)


# -- the pieces of some clients ------------------------------------------------------------------------------------

T = TypeVar("T")


def with_own_state(piece: T, clients: int, tables: Sequence[Tensor] = ()) -> T:
    """The piece with what it moves as tensors of its own, a row a client; `tables` are so already."""
    fields: Any = piece
    values = {name: value for name in moves(piece) if (value := getattr(piece, name)) is not None}
    fresh: T = fields._replace(
        **{
            name: value.expand(clients, -1).clone() if value.ndim < 2 else value.clone()
            for name, value in values.items()
            if not any(value is one for one in tables)
        }
    )
    return fresh


def rows_of(piece: T, here: Here) -> T:
    """The piece of these clients: views of its tensors for a slice, copies for indices."""
    fields: Any = piece
    rows: T = type(fields)._make(
        value[here] if isinstance(value, Tensor) and value.ndim >= 2 else value for value in fields
    )
    return rows


def moves(piece: Any) -> tuple[str, ...]:
    """The fields that steps change."""
    names: tuple[str, ...] = piece.traits.moves if hasattr(piece, "traits") else getattr(piece, "moves", ())
    return names


def _put(piece: Any, here: Here, rows: Any) -> None:
    """Write what moved of these clients back."""
    for name in moves(piece):
        if getattr(piece, name) is not None:
            getattr(piece, name)[here] = getattr(rows, name)


def _place(active: np.ndarray, device: torch.device) -> Here:
    """A slice where the clients are the first ones: views in place of copies."""
    if len(active) == active[-1] + 1:
        return slice(0, len(active))
    return torch.as_tensor(active, device=device)
