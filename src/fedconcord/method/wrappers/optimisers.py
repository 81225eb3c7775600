"""A local optimiser inside any method: `local.optimiser = "adamw"`, and what becomes of its moments between rounds.

The wrapper puts the optimiser's pieces (`contract.optimisers`) into the method's local problem, behind its
corrections. Methods that read a control variate off a move get the mean of the round's gradients in its place
(`needs.mean_gradient`), as a move over eta K is a gradient for linear steps alone. Methods that divide by ||a_i||_1
for anything else are refused: FedNova's is a property of linear steps.

Moments start anew in every round, or are kept in the client's row (`kept`, as DiLoCo's workers do): then a message
holds nothing more, and a row as much more as the moments are large. Or they travel: clients start from the server's
mean of what they sent, all of them (`shared`) or AdamW's second ones alone (`shared_second`); a message each way is as
much longer. With `align` the server sends the mean direction of the last round too,
    D = -sum_A w_i (x_i - x) / (K_i eta) / sum_A w_i,
and every step moves along it behind the optimiser, where it corrects nothing: the fixed points are the optimiser's own.

FedAdamW: Liu et al., AAAI 2026 (arXiv 2510.27486), Algorithm 1: x <- x - eta (m^ / (sqrt(v^) + eps) + align D), m anew,
m^ by the steps of the round and v^ by all: `adamw(second=oracle,state=shared_second,align=0.5)`, there and in
the other FedMuon's code with decay=0.01. v travels whole, as in its code; the paper sends a mean by block. It corrects
m by all steps too, so that the first of a round are ten times too short, and loads v only where a gradient is left.
FedMuon, of Takezawa et al., ICLR 2026 (arXiv 2509.26337), Algorithm 1: T of m_i - c_i + c, c_i the momentum that client
i ended its last round with and c their mean over all clients: `muon(state=corrected)`. T is of 0 at the optimum, so the
steps are exact. Their server step is |A| / N.
The other FedMuon: Liu et al. 2025 (arXiv 2510.27403): x <- x - eta ((1 - align) T + align D), T from the mean momentum:
`muon(beta=0.98,state=shared,align=0.5)`. What is no matrix shares its moments too, which there start anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Local,
    Piece,
    Population,
    Sender,
    Tree,
    model_of,
)
from fedconcord.method.contract.facts import Unfit
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.contract.optimisers import (
    AdamW,
    Aligned,
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

States = Literal["reset", "kept", "shared", "shared_second", "corrected"]
SAID = "moments between rounds: reset, anew in every round; kept, in the client's state; shared, the clients' mean"
EQUAL: tuple[Unfit, str] = "step_schedule", "align divides a move by its steps as if all were equally long"
SHARED: tuple[Unfit, str] = "upload", "moments that clients share are no changes (state=kept without align shares none)"
State = Annotated[Literal["reset", "kept", "shared"], about(SAID)]
Align = Annotated[BelowOne, about("share of the last round's mean direction in every step, behind the optimiser")]
Decay = Annotated[NotNegative, about("decoupled weight decay, times the step size")]


class LocalOptimiser(NamedTuple):
    """What turns directions into moves."""

    pieces: Callable[[Tensor, tuple[Matrix, ...]], tuple[Piece, ...]]  # (x [d], its matrices) -> with moments of 0
    lr: float  # the step size that is usual
    state: States = "reset"
    align: tuple[float, float] = (1.0, 0.0)  # a step is so much of the optimiser's, and of the last round's direction
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
    state: Annotated[
        Literal["reset", "kept", "shared", "shared_second"],
        about(f"{SAID}, of both; shared_second, of the second ones alone, as in FedAdamW"),
    ] = "reset",
    align: Align = 0.0,
) -> LocalOptimiser:
    """AdamW. Loshchilov and Hutter, ICLR 2019; torch.optim.AdamW's step."""

    def pieces(x: Tensor, matrices: tuple[Matrix, ...]) -> tuple[Piece, ...]:
        zeros, count = x.new_zeros(x.shape[-1]), x.new_zeros(1)
        return *_moments_of(second, zeros, beta2), AdamW(zeros, count, beta1, beta2, eps, decay)

    return LocalOptimiser(pieces, 0.001, state, (1.0, align))


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
    state: Annotated[
        Literal["reset", "kept", "shared", "corrected"],
        about(f"{SAID}; corrected, kept and moved to their mean over all clients"),
    ] = "reset",
    align: Annotated[BelowOne, about("share of the last round's mean direction in every step, as FedMuon's")] = 0.0,
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

    return LocalOptimiser(pieces, 0.02, state, (1.0 - align, align))


OPTIMISERS: dict[str, Callable[..., LocalOptimiser]] = by_name(adamw, lion, sign, muon)
"""Local optimisers by name."""


class Kept(NamedTuple):
    """A client's state beside its optimiser's."""

    inner: Any  # the method's own
    moments: tuple[Tensor, ...]  # of each piece in turn, those that its traits name


class Common(NamedTuple):
    """A server's state, a message or a sum of them, beside what the clients' optimisers have in common."""

    inner: Any  # the method's own
    common: tuple[Tensor, ...]  # moments that travel, with `align` the direction of a round [d]; in a sum w_i last

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        return model_of(self.inner)


@definition()
def with_optimiser(algorithm: Algorithm, optimiser: LocalOptimiser, matrices: tuple[Matrix, ...] = ()) -> Algorithm:
    """The same method whose local steps are this optimiser's.

    Args:
        matrices: the hidden weight matrices of the model, as `Objective.matrices` has them.
    """
    needs, state, (weight, share) = algorithm.needs, optimiser.state, optimiser.align
    is_corrected, is_shared, phases = state == "corrected", state in ("shared", "shared_second"), algorithm.phases
    is_kept, is_common = state == "kept" or is_corrected, is_shared or is_corrected or share > 0

    def zero(x: Tensor) -> tuple[Piece, ...]:
        return optimiser.pieces(x, matrices)

    def start(down: Tree, row: Tree, client: Client) -> Local:
        local = lifted.start(down, row, client)
        pieces = zero(local.x)
        if is_kept:
            pieces = _with_moments(pieces, row.moments)
        if is_common:
            pieces = _from_common(pieces, state, down.common)
        if share > 0:
            pieces = *pieces, Aligned(weight, share * down.common[-1])
        if needs.mean_gradient:
            pieces = MeanGradient(local.x.new_zeros(local.x.shape[-1])), *pieces
        return local.having(*pieces)

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = lifted.finish(down, row, done, client)
        ended = tuple(done.piece(type(piece)) for piece in zero(done.x)) if is_kept or is_common else ()
        if is_kept:
            new = new._replace(moments=_moments(ended))
        if is_common:
            way = ((model_of(down) - done.x) / (done.steps.clamp(min=1) * client.lr),) if share > 0 else ()
            mine = _in_common(ended, state)
            if is_corrected:
                mine = (mine[0] - _in_common(_with_moments(zero(done.x), row.moments), state)[0],)
            up = Common(up, (*mine, *way))
        return up, new

    def contribute(up: Common, sender: Sender, cohort: Cohort) -> Common:
        weights = [sender.p if is_corrected and k == 0 else sender.w for k in range(len(up.common))]
        parts = (w * one for w, one in zip(weights, up.common, strict=True))
        return Common(algorithm.contribute(up.inner, sender, cohort), (*parts, sender.w))

    def update(server: Common, total: Common, cohort: Cohort) -> Tree:
        *sums, w = total.common
        both = zip(sums, server.common, strict=True)
        news = [torch.where(w > 0, new / w.clamp(min=torch.finfo(w.dtype).tiny), old) for new, old in both]
        if is_corrected:
            news[0] = server.common[0] + sums[0]
        return lifted.update(server, total.inner, cohort)._replace(common=tuple(news))

    def refuse(population: Population, cohort: int) -> str | None:
        if why := dict(algorithm.facts.unfit).get("optimiser"):
            return f"the method cannot have local.optimiser, as {why}"
        if needs.normaliser and not needs.mean_gradient:
            return (
                f"the method divides by ||a_i||_1, which steps of {optimiser.identity.name or 'this optimiser'} do not "
                "have; leave local.optimiser out, or use a method without"
            )
        if is_common and (phases.combine is not None or phases.communicates is not None):
            return (
                "the method combines messages in its own way or leaves some out, and moments that clients share are "
                "means over every round's; use state=kept and no align"
            )
        return algorithm.refuse(population, cohort)

    def around(inner: Tree, x: Tensor) -> Common:
        return Common(inner, (*_in_common(zero(x), state), *((torch.zeros_like(x),) if share > 0 else ())))

    lifted = lift(
        algorithm,
        row=(lambda row, x: Kept(row, _moments(zero(x)))) if is_kept else None,
        server=around if is_common else None,
        down=(lambda down, server: Common(down, server.common)) if is_common else None,
    )
    return replace(
        lifted,
        start=start,
        finish=finish,
        contribute=contribute if is_common else lifted.contribute,
        update=update if is_common else lifted.update,
        refuse=refuse,
        needs=needs._replace(normaliser=needs.normaliser and not needs.mean_gradient, lr=needs.lr or share > 0),
        facts=lifted.facts._replace(
            unfit=(*lifted.facts.unfit, *[EQUAL] * (share > 0), *[SHARED] * (is_shared or share > 0))
        ),
        step=lifted.step._replace(optimiser=optimiser.identity.name or "an optimiser of its own"),
    )


def _in_common(pieces: tuple[Piece, ...], state: States) -> tuple[Tensor, ...]:
    """Of pieces as they are, what travels; of AdamW's second moments the steps that they saw."""
    if state == "shared":
        return _moments(pieces)
    if state == "corrected":
        return tuple(one.m for one in pieces if isinstance(one, Muon))
    if state != "shared_second":
        return ()
    steps = (one.t if one.before is None else one.before + one.t for one in pieces if isinstance(one, AdamW))
    return (*(one.v for one in pieces if isinstance(one, SecondMoment | DirectionMoment)), *steps)


def _from_common(pieces: tuple[Piece, ...], state: States, common: tuple[Tensor, ...]) -> tuple[Piece, ...]:
    """The pieces as the client has them with what travelled."""
    if state == "shared":
        return _with_moments(pieces, common)
    if state == "corrected":
        return tuple(one._replace(shift=common[0] - one.m) if isinstance(one, Muon) else one for one in pieces)
    if state != "shared_second":
        return pieces
    rest, names = iter(common), {SecondMoment: "v", DirectionMoment: "v", AdamW: "before"}
    fields: Any = pieces
    return tuple(piece._replace(**{names[type(piece)]: next(rest)}) for piece in fields)


def _moments(pieces: tuple[Piece, ...]) -> tuple[Tensor, ...]:
    return tuple(getattr(piece, name) for piece in pieces for name in piece.traits.moves)


def _with_moments(pieces: tuple[Piece, ...], moments: tuple[Tensor, ...]) -> tuple[Piece, ...]:
    rest = iter(moments)
    fields: Any = pieces
    return tuple(piece._replace(**{name: next(rest) for name in piece.traits.moves}) for piece in fields)
