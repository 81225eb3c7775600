"""Aggregations of low-rank factors: what a server makes of clients' A_i, B_i so that the mean of their products counts.

Below x = (A, B, all else that is trained) lie frozen weights W; a client's effective weight is W + s B_i A_i. The mean
of factors is no mean of products. With the weights w_i of the clients' moves, w = sum_i w_i over the cohort, what the
effective weight is to become is W + s P,

    P = (1 - w) B A + sum_i w_i B_i A_i,

where A, B are the server's before the round: w is 1 but for unbiased weights. A rule says which A+, B+ the server goes
on with, and whether the rest, s (P - B+ A+), is added to the frozen weights, which all clients are sent then:

    fedex     means of factors              the rest is added       exact
    flora     fresh factors, B+ = 0         the rest (all) is added exact
    hlora     the best of rank r            nothing is added        off by the tail of P's spectrum

Where ranks differ between clients (`Pair.ranks`), client i is sent the first r_i rows of A and columns of B, starts
from W + s B A of these, and sends as many back; P is the one above, of the clients' own products. flora's clients miss
nothing of the model by that, as B is 0 when a round starts. hlora's start from the best of rank r_i, as the server has
the components of B A in the order of singular values; what client i was not sent is not in its product, so that P is
without w_i of it. Rules that average factors are refused.

rolora (Chen et al. 2025) needs no products: B moves in even rounds and A in odd ones, and the mean is linear in the
one that moves. All else that is trained is averaged as the method has it.

fedex: Singhal et al., "FedEx-LoRA", ACL 2025, eqs. (10)-(12). flora: Wang et al., "FLoRA", NeurIPS 2024, Algorithm 1,
which sends the stacks and has clients add them. hlora: Liu et al., "HLoRA" 2025. rolora: arXiv 2502.01755, Algorithm 1.
Deviations: the moves' weights, above; clients keep nothing between rounds, so that what was added to the frozen weights
is sent whole, once a client and round, in place of the cohort's factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Population,
    Portion,
    Sender,
    Tree,
    model_of,
    tree_leaves,
    tree_map,
)
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.contract.pairs import Pair, parts_of
from fedconcord.method.wrappers.forms import COHORT, message
from fedconcord.method.wrappers.lift import lift, moved
from fedconcord.method.wrappers.turns import in_turn
from fedconcord.method.wrappers.uploads import is_packed
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name


class FactorRule(NamedTuple):
    """What the server makes of clients' factors."""

    wrap: Callable[[Algorithm, tuple[Pair, ...], int, str], Algorithm]  # (method, pairs, d, the rule's name)
    identity: Identity = UNNAMED


class Stack(NamedTuple):
    """P as one product of stacks over the server and S clients."""

    b: Tensor  # [outputs, (S + 1) rank], weighted
    a: Tensor  # [(S + 1) rank, inputs]


Factors = Callable[[Pair, Stack, Tensor], tuple[Tensor, Tensor]]
"""(pair, P, uniform numbers in [-1, 1] [rank, inputs]) -> A+ [rank, inputs], B+ [outputs, rank]."""


@definition()
def fedex() -> FactorRule:
    """Means of the factors; what they lack of the mean product is added to the frozen weights. Exact.

    Singhal et al., ACL 2025 (FedEx-LoRA).
    """
    return FactorRule(lambda algorithm, pairs, dim, name: _by_products(algorithm, pairs, dim, name, None, True))


@definition()
def flora() -> FactorRule:
    """The mean product is added to the frozen weights, and the next round starts from fresh factors. Exact.

    Wang et al., NeurIPS 2024 (FLoRA); A is drawn as at the start, from the run's seed and the round.
    """

    def fresh(pair: Pair, product: Stack, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return uniform / math.sqrt(pair.inputs), uniform.new_zeros(pair.outputs, pair.rank)

    return FactorRule(lambda algorithm, pairs, dim, name: _by_products(algorithm, pairs, dim, name, fresh, True))


@definition()
def hlora() -> FactorRule:
    """The factors of the same rank whose product is nearest to the mean product, by its singular values.

    Liu et al. 2025 (HLoRA): B = U sqrt(S), A = sqrt(S) V; the error is the rest of the spectrum.
    """
    return FactorRule(lambda algorithm, pairs, dim, name: _by_products(algorithm, pairs, dim, name, _nearest, False))


@definition()
def rolora() -> FactorRule:
    """B moves in even rounds, A in odd ones, and one of them is sent: the mean of products is exact.

    Chen et al. 2025 (RoLoRA), arXiv 2502.01755, Algorithm 1.
    """
    return FactorRule(in_turn)


FACTORS: dict[str, Callable[..., FactorRule]] = by_name(fedex, flora, hlora, rolora)
"""Aggregations of low-rank factors by name."""


@definition()
def with_factors(algorithm: Algorithm, pairs: tuple[Pair, ...], dim: int, rule: FactorRule) -> Algorithm:
    """The same method with a rule for its clients' low-rank factors; the last of all wrappers.

    Args:
        pairs: the factors in x, as `Objective.pairs` has them.
        dim: d.

    Raises:
        UserError: there are none, or the method's messages or its server's step are not such that the rule is exact.
    """
    name = rule.identity.name or "this rule"
    if not pairs:
        raise UserError(
            f"aggregate {name} is for low-rank factors of which A and B are trained, and this model has none; give "
            "adapters, as in lora(where='query|value'), without train=B or R, whose means are exact as they are"
        )
    wrapped = rule.wrap(algorithm, pairs, dim, name)
    return replace(wrapped, facts=wrapped.facts._replace(factors=name))


def _nearest(pair: Pair, product: Stack, uniform: Tensor) -> tuple[Tensor, Tensor]:
    (q_b, r_b), (q_a, r_a) = torch.linalg.qr(product.b), torch.linalg.qr(product.a.mT)
    core = r_b @ r_a.mT
    if not bool(core.isfinite().all()):  # a run that diverges, and says so by itself
        return torch.full_like(uniform, torch.nan), uniform.new_full((pair.outputs, pair.rank), torch.nan)
    u, s, v = torch.linalg.svd(core, full_matrices=False)
    u, s, v = (q_b @ u)[:, : pair.rank], s[: pair.rank], (v @ q_a.mT)[: pair.rank]
    largest = u.gather(0, u.abs().argmax(0, keepdim=True))[0]  # [rank], of signs that no rounding turns
    root = s.sqrt() * largest.sign()
    return root[:, None] * v, u * root


# -- products ------------------------------------------------------------------------------------------------------


class Based(NamedTuple):
    """A method's server state, or its broadcast, beside what is added to the frozen weights."""

    inner: Any  # the method's own
    addition: Any  # [D]; () where a rule adds none

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        return model_of(self.inner)


class Apart(NamedTuple):
    """A contribution beside the move that is in it, and the total beside what a rule makes of the moves."""

    inner: Any  # the method's own
    x: Tensor  # [d] the move; of the total the new factors, in their places
    product: Any  # [0]; of the total s P [D]; () where a rule adds nothing


def _by_products(
    algorithm: Algorithm, pairs: tuple[Pair, ...], dim: int, name: str, factors: Factors | None, adds: bool
) -> Algorithm:
    """The method whose server goes on with `factors` of the clients' products, or with its own; `adds`: the rest."""
    move_in = _refuse_products(algorithm, name, keeps=factors is None)
    numbers, parts = sum(pair.size for pair in pairs), None if factors is None else parts_of(pairs, dim)

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Apart:
        move = list(tree_leaves(up).values())[move_in]
        return Apart(algorithm.contribute(up, sender, cohort), move, move[..., :0] if adds else ())

    def combine(server: Based, rows: Apart, senders: Sender, cohort: Cohort) -> Apart:
        starts = server.x if parts is None else _within(parts, server.x, senders.id)
        models = torch.cat([server.x[None], starts + rows.x])
        weights = torch.cat([1 - senders.w.sum(0, keepdim=True), senders.w])
        stacks = [_stack(pair, models, weights) for pair in pairs]
        x = torch.zeros_like(server.x)
        if factors is not None:
            assert cohort.normal is not None
            count = sum(pair.rank * pair.inputs for pair in pairs)
            uniform = 2 * torch.special.ndtr(cohort.normal(count).to(x)) - 1
            for pair, stack in zip(pairs, stacks, strict=True):
                draws, uniform = uniform[: pair.rank * pair.inputs], uniform[pair.rank * pair.inputs :]
                _write(pair, x, *factors(pair, stack, draws.view(pair.rank, pair.inputs)))
        inner = tree_map(lambda leaf: leaf.sum(0), rows.inner)
        if not adds:
            return Apart(inner, x, ())
        products = [pair.flat(stack.b @ stack.a) for pair, stack in zip(pairs, stacks, strict=True)]
        return Apart(inner, x, torch.cat(products))

    def update(server: Based, total: Apart, cohort: Cohort) -> Based:
        after = algorithm.update(server.inner, total.inner, cohort)
        if factors is not None:
            x = after.x.clone()
            for pair in pairs:
                _write(pair, x, *pair.factors(total.x))
            after = moved(after, x)
        if not adds:
            return Based(after, ())
        have = [pair.flat(b @ a) for pair in pairs for a, b in [pair.factors(after.x)]]
        return Based(after, server.addition + (total.product - torch.cat(have)))

    lifted = lift(
        algorithm,
        server=lambda inner, x: Based(inner, x.new_zeros(numbers) if adds else ()),
        down=lambda inner, server: Based(inner, server.addition),
    )

    def models(server: Based) -> Mapping[str, Tensor]:
        offered = algorithm.models(server.inner)
        return {name: torch.cat([x, server.addition]) for name, x in offered.items()} if adds else offered

    wrapped = replace(
        lifted,
        contribute=contribute,
        update=update,
        models=models,
        phases=lifted.phases._replace(combine=combine),
        step=lifted.step._replace(addition=(lambda down: down.addition) if adds else None),
    )
    return wrapped if parts is None else _in_parts(wrapped, parts, name)


def _in_parts(algorithm: Algorithm, parts: Tensor, name: str) -> Algorithm:
    """The method whose clients hold parts [R, d] of x in turn: of vectors [..., d] no more travels.

    Raises:
        UserError: its rounds are not one message each way.
    """
    phases, dim = algorithm.phases, parts.shape[-1]
    if phases.prelude or phases.prologue or phases.settle or phases.communicates:
        raise UserError(
            f"aggregate {name} with ranks that differ between clients is for methods of one message each way a round, "
            "and this one has others; use fedavg or fedprox, or one rank"
        )
    places = [torch.nonzero(part).flatten() for part in parts]

    def entries(client: int, device: torch.device) -> Tensor:
        return places[client % len(parts)].to(device)

    def of_vectors(message: Tree, width: int, f: Callable[[Tensor], Tensor]) -> Tree:
        """f of the vectors [..., width] of a message; what is added to the frozen weights is none of them."""
        if isinstance(message, Based):
            return message._replace(inner=of_vectors(message.inner, width, f))
        return tree_map(lambda leaf: f(leaf) if leaf.ndim and leaf.shape[-1] == width else leaf, message)

    def cut(message: Tree, client: int) -> Tree:
        return of_vectors(message, dim, lambda leaf: leaf[..., entries(client, leaf.device)])

    def fill(message: Tree, client: int) -> Tree:
        def whole(leaf: Tensor) -> Tensor:
            return leaf.new_zeros(*leaf.shape[:-1], dim).index_copy(-1, entries(client, leaf.device), leaf)

        return of_vectors(message, len(places[client % len(parts)]), whole)

    def finish(down: Based, row: Tree, result: Done, client: Client) -> tuple[Tree, Tree]:
        """The rest is 0, unless an attack or client code made it something else."""
        up, new = algorithm.finish(down, row, result, client)
        return of_vectors(up, dim, lambda leaf: _within(parts, leaf, client.id)), new

    portion = Portion(lambda ids: ids % len(parts), cut, fill)
    return replace(algorithm, finish=finish, phases=phases._replace(portion=portion))


def _within(parts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """Vectors x [..., d] of clients with ids [] or [S, 1], with zeros where they hold nothing: [d] or [S, d]."""
    rows = parts.to(ids.device).index_select(0, (ids % len(parts)).flatten())
    return torch.where(rows.view(*ids.shape[:-1], -1), x, x.new_zeros(()))


def _stack(pair: Pair, models: Tensor, weights: Tensor) -> Stack:
    """Of models [S + 1, d] with weights [S + 1, 1]."""
    a, b = pair.factors(models)
    return Stack((weights[:, None] * b).movedim(0, 1).reshape(pair.outputs, -1), a.reshape(-1, pair.inputs))


def _write(pair: Pair, x: Tensor, a: Tensor, b: Tensor) -> None:
    for place, factor in zip(pair.factors(x), (a, b), strict=True):
        place.copy_(factor)


def _refuse_products(algorithm: Algorithm, name: str, keeps: bool) -> int:
    """Which leaf of a message is the client's move.

    Args:
        keeps: the rule keeps the factors' coordinates, so that vectors in them mean in the next round what they did.

    Raises:
        UserError: none is, or the rule would not be exact.
    """
    apart = f"aggregate {name} needs the clients' factors as they are and apart"
    if algorithm.phases.combine is not None:
        raise UserError(f"{apart}, and an attack that looks at other clients takes them apart too; use rolora")
    if algorithm.facts.protection is not None:
        raise UserError(f"{apart}, and privacy covers their sum alone; use lora(train=B), whose mean is exact")
    if algorithm.phases.late:
        raise UserError(f"{apart}, and a late reply is from factors of an earlier round; use late discard")
    if algorithm.client_model is not None:
        raise UserError(f"aggregate {name} makes one model of the clients' factors, and the method has one for each")
    ups = [message(algorithm, torch.ones(2, dtype=torch.float64), move, steps) for move, steps in TRIALS]
    if is_packed(ups[0]):
        raise UserError(f"{apart}, and compressed uploads are neither; leave upload out, or use lora(train=B)")
    if algorithm.facts.server_optimiser:
        raise UserError(
            f"aggregate {name} adds up products, and a server optimiser steps in factors; leave server out, or use "
            "rolora, or lora(train=B)"
        )
    leaves = [list(tree_leaves(up).values()) for up in ups]
    expected = [torch.full((2,), move, dtype=torch.float64) for move, _ in TRIALS]
    places = [k for k in range(len(leaves[0])) if all(map(_same, (up[k] for up in leaves), expected))]
    if not places or not _steps_to_the_mean(algorithm, ups):
        raise UserError(
            f"aggregate {name} is exact where the server steps to the weighted mean of its clients' models, and this "
            "method's does not; use fedavg, fedprox or scaffold with server_lr 1, or aggregate rolora"
        )
    if not keeps and _keeps_vectors(algorithm):
        raise UserError(
            f"aggregate {name} restarts the factors every round, and this method keeps a vector in their coordinates; "
            "use fedex, rolora or lora(train=B)"
        )
    return places[0]


TRIALS = ((0.5, 1.0), (-0.25, 3.0))
"""The moves of two clients and their steps."""
SHARES = (0.3, 0.4)
"""What they weigh in the server's step; each is half of the objective."""


def _same(leaf: Tensor, expected: Tensor) -> bool:
    return leaf.shape == expected.shape and torch.allclose(leaf, expected, rtol=1e-12, atol=0)


def _steps_to_the_mean(algorithm: Algorithm, ups: list[Tree]) -> bool:
    """Whether the method's steps are sum_i w_i (x_i - x), whatever steps the clients took, and lead to its answer."""
    half = torch.full((2,), 0.5, dtype=torch.float64)
    server = algorithm.init(torch.ones_like(half), Population(2, half))
    cohort, total = COHORT._replace(n=2, size=2, mean_steps=2.0), None
    for up, share, (_, steps) in zip(ups, SHARES, TRIALS, strict=True):
        w, p, count, one = (half.new_tensor(number) for number in (share, 0.5, steps, 1.0))
        contribution = algorithm.contribute(up, Sender(torch.tensor(0), w, p, count, one, 1.0), cohort)
        total = contribution if total is None else tree_map(torch.add, total, contribution)
    mean = half.new_full((2,), sum(w * move for w, (move, _) in zip(SHARES, TRIALS, strict=True)))
    for round in range(2):  # a memory of the first shows in the second
        after = algorithm.update(server, total, cohort._replace(round=round))
        if not _same(after.x - server.x, mean):
            return False
        server = after
    return _same(next(iter(algorithm.models(server).values())), server.x)


def _keeps_vectors(algorithm: Algorithm) -> bool:
    """Whether clients keep anything between rounds, or the server any vector beside its model."""
    x = torch.ones(2, dtype=torch.float64)
    vectors = [leaf for leaf in tree_leaves(algorithm.init(x, Population(2, x / 2))).values() if leaf.ndim]
    return len(vectors) > 1 or any(leaf.ndim for leaf in tree_leaves(algorithm.init_client(x)).values())
