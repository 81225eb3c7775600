"""What is sent up: the clients' messages, compressed. An axis of its own: any method that sends changes can have it.

`with_uploads` packs every vector [d] of a message; scalars travel as they are, and so do the model on its way down, the
full gradient of a prelude (Mime) and the block gradients of a prologue (LoSAC). Bytes are those of the packed message.

Running sums. A client of SCAFFOLD, FedDyn, FedVRA or A-FedPD keeps its own exact change while the server adds what it
received, so the server's sum leaves the sum of the clients' rows. Each rounding error stays in it for ever: without
feedback such a method stops where grad F equals minus the drift, near the optimum but not at it. With `feedback` the
client keeps what its messages lost, e_i, and adds it to the next: at all times, exactly,
    what the server summed = sum of p_i (what client i sent in full - e_i),
and e_i vanishes as the changes do, so the exact methods stay exact. Decoding on the client's side instead would need a
rule for every method's rows; feedback needs none and costs one vector of client state for every vector sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Population, Sender, Tree, tree_leaves, tree_map
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.wrappers.forms import message
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Fraction, about


class Compressor(NamedTuple):
    """How a vector travels; every row of [..., d] on its own."""

    encode: Callable[[Tensor, Tensor | None], Tree]  # (v [..., d], draws [..., d] uniform on [0, 1)) -> what travels
    decode: Callable[[Any, int], Tensor]  # (what travels, d) -> [..., d]
    random: bool = False  # encode needs the draws
    feedback: bool = False  # the client keeps what a message lost and adds it to the next
    identity: Identity = UNNAMED


class Levels(NamedTuple):
    """A quantised vector."""

    norm: Tensor  # [..., 1] l2 norm
    level: Tensor  # [..., d] int8 or int16, in -levels .. levels


class Sparse(NamedTuple):
    """The entries of a vector that travel."""

    position: Tensor  # [..., k] int32
    value: Tensor  # [..., k]


class Packed(NamedTuple):
    """Marks a vector of a message that is compressed."""

    content: Any  # what the compressor's encode returned


class WithError(NamedTuple):
    """A client's state with error feedback."""

    inner: Any  # the method's own row
    error: tuple[Tensor, ...]  # [d] each: what every vector of the messages has lost so far


# -- compressors ---------------------------------------------------------------------------------------------------

NONE = Compressor(lambda v, draws: v, lambda content, d: content, identity=Identity("none"))


def none() -> Compressor:
    """Messages as they are."""
    return NONE


def variance(levels: int, d: int) -> float:
    """omega of E ||Q(v) - v||^2 <= omega ||v||^2 for `quantise`: min(d / 4, levels sqrt(d)) / levels^2.

    QSGD, Lemma 3.1, with the variance of a coin, at most 1/4, in place of 1.
    """
    return min(d / 4, levels * math.sqrt(d)) / levels**2


@definition()
def quantise(
    levels: Annotated[
        int,
        Field(
            ge=1,
            le=32767,
            description="number of magnitudes above zero; an entry takes one byte up to 127 of them, and two above",
        ),
    ] = 127,
    feedback: Annotated[bool, about("whether to keep the rounding error for the next message")] = False,
) -> Compressor:
    """Unbiased stochastic quantisation: norm * sign * level / levels, levels rounded up or down at random.

    QSGD, Alistarh et al., NeurIPS 2017, section 3.1; FedPAQ, Reisizadeh et al., AISTATS 2020. With feedback the norm is
    divided by 1 + omega (`variance`), without which the errors of a coarse quantiser would feed on themselves.
    """
    dtype = torch.int8 if levels <= torch.iinfo(torch.int8).max else torch.int16

    def encode(v: Tensor, draws: Tensor | None) -> Levels:
        assert draws is not None
        norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        # a vector of zeros has norm 0 and level 0; a NaN or an infinity stays one through its norm
        size = (v.abs() / norm.clamp(min=torch.finfo(v.dtype).tiny) * levels + draws).floor()
        level = (v.sign() * size.clamp(max=levels)).nan_to_num(1.0).to(dtype)
        return Levels(norm / (1 + variance(levels, v.shape[-1])) if feedback else norm, level)

    def decode(content: Levels, d: int) -> Tensor:
        decoded: Tensor = content.norm / levels * content.level.to(content.norm.dtype)
        return decoded

    return Compressor(encode, decode, random=True, feedback=feedback)


@definition()
def topk(
    fraction: Annotated[Fraction, about("fraction of the entries that is sent, at least one entry")] = 0.1,
    feedback: Annotated[bool, about("whether to keep what was not sent for the next message")] = True,
) -> Compressor:
    """Only the largest entries, with error feedback.

    Stich, Cordonnier, Jaggi, NeurIPS 2018. Without feedback an entry that is never among the largest is never moved.
    """

    def encode(v: Tensor, draws: Tensor | None) -> Sparse:
        index = v.abs().topk(max(1, round(fraction * v.shape[-1])), dim=-1, sorted=False).indices
        return Sparse(index.to(torch.int32), v.gather(-1, index))

    def decode(content: Sparse, d: int) -> Tensor:
        zeros = content.value.new_zeros(*content.value.shape[:-1], d)
        return zeros.scatter(-1, content.position.long(), content.value)

    return Compressor(encode, decode, feedback=feedback)


COMPRESSORS: dict[str, Callable[..., Compressor]] = by_name(none, quantise, topk)
"""Compressors of uploads by name."""


# -- the wrapper ---------------------------------------------------------------------------------------------------


@definition()
def with_uploads(algorithm: Algorithm, compressor: Compressor) -> Algorithm:
    """The same method with the vectors of its messages compressed.

    It refuses methods that send whole models or are compressed already; with feedback, those that leave messages out.
    """
    if compressor is NONE:
        return algorithm
    feedback = compressor.feedback

    def inner_row(row: Tree) -> Tree:
        return row.inner if feedback else row

    def around(inner: Tree, x: Tensor) -> WithError:
        vectors = _vectors(message(algorithm, x), min(len(x), 2))
        return WithError(inner, tuple(torch.zeros_like(x) for _ in vectors))

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, inner = algorithm.finish(down, inner_row(row), done, client)
        d = done.x.shape[-1]
        vectors = _vectors(up, d)
        if feedback:
            vectors = [v + e for v, e in zip(vectors, row.error, strict=True)]
        sent = [compressor.encode(v, u) for v, u in zip(vectors, _draws(vectors, d, client), strict=True)]
        each = iter(sent)
        packed = tree_map(lambda leaf: Packed(next(each)) if _is_vector(leaf, d) else leaf, up)
        if not feedback:
            return packed, inner
        return packed, WithError(inner, tuple(v - compressor.decode(s, d) for v, s in zip(vectors, sent, strict=True)))

    def _draws(vectors: list[Tensor], d: int, client: Client) -> list[Tensor] | list[None]:
        """Uniform draws [..., d] for each vector: slices of one draw, so that no two vectors share any."""
        if not compressor.random or not vectors:
            return [None] * len(vectors)
        draws = client.noise(len(vectors) * d)
        return [draws[..., k * d : (k + 1) * d] for k in range(len(vectors))]

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        return algorithm.contribute(_unpack(up, compressor, cohort.dim), sender, cohort)

    def refuse(population: Population, cohort: int) -> str | None:
        reason = algorithm.refuse(population, cohort)
        if reason is not None:
            return reason
        first = message(algorithm, population.p.new_ones(2))
        if is_packed(first):
            return "the method compresses its own uploads; leave upload at none"
        if why := dict(algorithm.facts.unfit).get("upload"):
            return f"compressed uploads need changes, which errors shrink with, and {why}; leave upload at none"
        if any(bool(v.any()) for v in _vectors(first, 2)):
            return (
                "compressed uploads need a method whose clients send changes, and this one sends whole models, whose "
                "rounding errors do not shrink as it converges; leave upload at none"
            )
        if feedback and algorithm.phases.communicates is not None:
            return (
                "error feedback counts every message as received, and this method leaves messages out; "
                "use a compressor with feedback=false"
            )
        return None

    lifted = lift(algorithm, row=around) if feedback else algorithm
    phases = lifted.phases._replace(asynchronous=None)  # a compressor may remember what it left out
    return replace(lifted, finish=finish, contribute=contribute, refuse=refuse, phases=phases)


def _is_vector(leaf: Any, d: int) -> bool:
    """Whether a leaf of a message is [..., d]; a model of one parameter is a scalar and travels as it is."""
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[-1] == d > 1


def is_packed(up: Tree) -> bool:
    """Whether a message holds anything compressed."""
    return isinstance(up, Packed) or (isinstance(up, tuple) and any(is_packed(leaf) for leaf in up))


def _vectors(up: Tree, d: int) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(up).values() if _is_vector(leaf, d)]


def _unpack(up: Tree, compressor: Compressor, d: int) -> Tree:
    """The message with its vectors decoded; `tree_map` would walk into what is packed."""
    if isinstance(up, Packed):
        return compressor.decode(up.content, d)
    if isinstance(up, tuple):
        parts = [_unpack(leaf, compressor, d) for leaf in up]
        return type(up)(*parts) if hasattr(up, "_fields") else tuple(parts)
    return up
