"""A local optimiser inside any method: `local.optimiser = "adamw"`, and what becomes of its moments between rounds.

The wrapper puts the optimiser's pieces (`contract.optimisers`) into the method's local problem, behind its
corrections. Methods that read a control variate off a move get the mean of the round's gradients in its place
(`needs.mean_gradient`), as a move over eta K is a gradient for linear steps alone. Methods that divide by ||a_i||_1
for anything else are refused: FedNova's is a property of linear steps.

Moments start anew in every round, or are kept in the client's row (`kept`, as DiLoCo's workers do): then a message
holds nothing more, and a row as much more as the moments are large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Done, Local, Piece, Population, Tree
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.contract.optimisers import (
    AdamW,
    DirectionMoment,
    Lion,
    Matrix,
    MeanGradient,
    Muon,
    Second,
    SecondMoment,
    Sign,
)
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import BelowOne, NotNegative, Positive, about

State = Annotated[
    Literal["reset", "kept"], about("moments between rounds: reset, anew in every round; kept, in the client's state")
]
Decay = Annotated[NotNegative, about("decoupled weight decay, times the step size")]


class LocalOptimiser(NamedTuple):
    """What turns directions into moves."""

    pieces: Callable[[Tensor, tuple[Matrix, ...]], tuple[Piece, ...]]  # (x [d], its matrices) -> with moments of 0
    lr: float  # the step size that is usual
    state: Literal["reset", "kept"] = "reset"
    identity: Identity = UNNAMED


def _moments_of(second: Second, zeros: Tensor, beta: float) -> tuple[Piece, ...]:
    raw: tuple[Piece, ...] = () if second == "direction" else (SecondMoment(zeros, beta),)
    return raw if second == "oracle" else (*raw, DirectionMoment(zeros, beta))


@definition()
def adamw(
    beta1: Annotated[BelowOne, about("decay of the first moment")] = 0.9,
    beta2: Annotated[BelowOne, about("decay of the second moment")] = 0.999,
    eps: Annotated[Positive, about("added to the root")] = 1e-8,
    decay: Decay = 0.0,
    second: Annotated[
        Second,
        about(
            "what the second moment is of: oracle, the raw gradient; direction, what corrections made of it; larger, "
            "entry by entry the larger of the two"
        ),
    ] = "larger",
    state: State = "reset",
) -> LocalOptimiser:
    """AdamW. Loshchilov and Hutter, ICLR 2019; torch.optim.AdamW's step."""

    def pieces(x: Tensor, matrices: tuple[Matrix, ...]) -> tuple[Piece, ...]:
        zeros, count = x.new_zeros(x.shape[-1]), x.new_zeros(1)
        return *_moments_of(second, zeros, beta2), AdamW(zeros, count, beta1, beta2, eps, decay)

    return LocalOptimiser(pieces, 0.001, state)


@definition()
def lion(
    beta1: Annotated[BelowOne, about("share of the momentum in a step")] = 0.9,
    beta2: Annotated[BelowOne, about("decay of the momentum")] = 0.99,
    decay: Decay = 0.0,
    state: State = "reset",
) -> LocalOptimiser:
    """Lion. Chen et al., NeurIPS 2023, Algorithm 2."""
    return LocalOptimiser(lambda x, matrices: (Lion(x.new_zeros(x.shape[-1]), beta1, beta2, decay),), 0.0003, state)


@definition()
def sign() -> LocalOptimiser:
    """The sign of every entry. Bernstein et al., ICML 2018 (signSGD)."""
    return LocalOptimiser(lambda x, matrices: (Sign(),), 0.0003)


@definition()
def muon(
    beta: Annotated[BelowOne, about("momentum of matrices")] = 0.95,
    decay: Decay = 0.0,
    rest: Annotated[Positive, about("step size of what is no hidden matrix, over that of matrices")] = 0.015,
    orthogonal: Annotated[
        Literal["newton_schulz", "svd"], about("newton_schulz, five steps, as released; svd, exactly")
    ] = "newton_schulz",
    state: State = "reset",
) -> LocalOptimiser:
    """Muon: orthogonal steps of hidden weight matrices, AdamW's of the rest. Jordan et al. 2024.

    The rest is vectors, embeddings and the last layer; 0.015 is 3e-4 over 0.02, the released step sizes.

    Raises:
        UserError: the model has no hidden weight matrix.
    """

    def pieces(x: Tensor, matrices: tuple[Matrix, ...]) -> tuple[Piece, ...]:
        if not matrices:
            raise UserError(
                "muon is for hidden weight matrices, and this model has none that are trained, the factors of adapters "
                "aside; use local.optimiser adamw"
            )
        zeros, betas = x.new_zeros(x.shape[-1]), x.new_full((x.shape[-1],), 0.9)
        for begin, rows, columns in matrices:
            betas[begin : begin + rows * columns] = beta
        count = x.new_zeros(1)
        return *_moments_of("larger", zeros, 0.95), Muon(zeros, count, betas, beta, decay, rest, orthogonal, matrices)

    return LocalOptimiser(pieces, 0.02, state)


OPTIMISERS: dict[str, Callable[..., LocalOptimiser]] = by_name(adamw, lion, sign, muon)
"""Local optimisers by name."""


class Kept(NamedTuple):
    """A client's state beside its optimiser's."""

    inner: Any  # the method's own
    moments: tuple[Tensor, ...]  # of each piece in turn, those that its traits name


@definition()
def with_optimiser(algorithm: Algorithm, optimiser: LocalOptimiser, matrices: tuple[Matrix, ...] = ()) -> Algorithm:
    """The same method whose local steps are this optimiser's.

    Args:
        matrices: the hidden weight matrices of the model, as `Objective.matrices` has them.
    """
    needs, is_kept = algorithm.needs, optimiser.state == "kept"

    def zero(x: Tensor) -> tuple[Piece, ...]:
        return optimiser.pieces(x, matrices)

    def start(down: Tree, row: Tree, client: Client) -> Local:
        local = lifted.start(down, row, client)
        pieces = zero(local.x)
        if is_kept:
            pieces = _with_moments(pieces, row.moments)
        if needs.mean_gradient:
            pieces = MeanGradient(local.x.new_zeros(local.x.shape[-1])), *pieces
        return local.having(*pieces)

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = lifted.finish(down, row, done, client)
        if is_kept:
            ended = tuple(done.piece(type(piece)) for piece in zero(done.x))
            new = new._replace(moments=_moments(ended))
        return up, new

    def refuse(population: Population, cohort: int) -> str | None:
        if needs.normaliser and not needs.mean_gradient:
            return (
                f"the method divides by ||a_i||_1, which steps of {optimiser.identity.name or 'this optimiser'} do not "
                "have; leave local.optimiser out, or use a method without"
            )
        return algorithm.refuse(population, cohort)

    lifted = lift(algorithm, row=(lambda row, x: Kept(row, _moments(zero(x)))) if is_kept else None)
    return replace(
        lifted,
        start=start,
        finish=finish,
        refuse=refuse,
        needs=needs._replace(normaliser=needs.normaliser and not needs.mean_gradient),
        step=lifted.step._replace(optimiser=optimiser.identity.name or "an optimiser of its own"),
    )


def _moments(pieces: tuple[Piece, ...]) -> tuple[Tensor, ...]:
    return tuple(getattr(piece, name) for piece in pieces for name in piece.traits.moves)


def _with_moments(pieces: tuple[Piece, ...], moments: tuple[Tensor, ...]) -> tuple[Piece, ...]:
    rest = iter(moments)
    fields: Any = pieces
    return tuple(piece._replace(**{name: next(rest) for name in piece.traits.moves}) for piece in fields)
