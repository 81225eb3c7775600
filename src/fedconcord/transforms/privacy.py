"""Differential privacy: every client's message clipped, Gaussian noise on their sum or on each of them.

McMahan et al., ICLR 2018 (DP-FedAvg), with the fixed denominator of its estimator f_f: the unit of protection is a
client, and what is bounded is all that it sends in a round, every tensor of the message together, in l2 by C.
    central: the server adds N(0, z^2 C^2) to the sum of the clipped messages;
    local:   each client adds N(0, z^2 C^2) to its own clipped message.
Every message counts with the weight 1/S of the expected cohort S, whoever comes. The sum's noise is one more message:
it goes through the method's own `contribute`, which is the same linear map for all clients, so that a method which sums
two vectors with two weights (SCAFFOLD) is protected like one with one vector. What the server makes of the noisy sum,
and what clients keep and never send, is free.

A central server clips what it takes in as well: the bound then rests neither on clients nor on a compressor behind the
clipping, whose decoded messages may be longer than what was encoded. A message that is not finite counts as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedconcord.basis.parameters import Count, NotNegative, Positive, about
from fedconcord.core import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Population,
    Protection,
    Sender,
    Tree,
    tree_leaves,
    tree_map,
)
from fedconcord.core.identity import definition
from fedconcord.transforms.forms import contribution, forms, message
from fedconcord.transforms.uploads import is_packed


@definition()
def with_privacy(
    algorithm: Algorithm,
    clip: Annotated[Positive, about("C, the largest l2 norm of a message")],
    noise: Annotated[NotNegative, about("z, the standard deviation of the noise over C")],
    kind: Annotated[Literal["central", "local"], about("who adds the noise")],
    cohort: Annotated[Count, about("expected cohort S, the denominator")],
) -> Algorithm:
    """The same method with its messages clipped and noise added; it refuses methods that this does not cover."""

    @cache
    def form() -> Tree:
        return forms(algorithm, torch.ones(2)).up

    def public(of: Sender, n: int) -> Sender:
        """What a sender may differ in: nothing, so that all contribute by one map."""
        w, p, steps = (torch.full_like(of.w, value) for value in (1 / cohort, 1 / n, math.nan))
        return of._replace(id=torch.zeros_like(of.id), w=w, p=p, steps=steps, inclusion=cohort * p)

    def expected(now: Cohort) -> Cohort:
        return now._replace(size=cohort, mass=cohort / now.n, mean_steps=math.nan)

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(down, row, done, client)
        up = clipped(up, clip)
        if kind == "central":
            return up, new
        assert client.normal is not None
        return tree_map(torch.add, up, _noise(up, done.x.shape[-1], client.normal, noise * clip)), new

    def contribute(up: Tree, sender: Sender, now: Cohort) -> Tree:
        bounded = clipped(up, clip) if kind == "central" else up
        return algorithm.contribute(bounded, public(sender, now.n), expected(now))

    def of_noise(now: Cohort) -> Tree:
        """What the noise adds to a round's total."""
        assert now.normal is not None
        drawn = _noise(form(), now.dim, now.normal, noise * clip)
        one = next(iter(tree_leaves(drawn).values())).new_ones(())
        sender = Sender(torch.zeros_like(one, dtype=torch.int64), one, one, one, one, now.lr)
        return algorithm.contribute(drawn, public(sender, now.n), expected(now))

    def update(server: Tree, total: Tree, now: Cohort) -> Tree:
        if kind == "central":
            total = tree_map(torch.add, total, of_noise(now))
        return algorithm.update(server, total, expected(now))

    def unheard(server: Tree, now: Cohort) -> Tree:
        return algorithm.update(server, of_noise(now), expected(now))

    def refuse(population: Population, drawn: int) -> str | None:
        if drawn != cohort:
            return (
                f"messages weigh 1/{cohort}, and {drawn} clients are expected in a round; give with_privacy that cohort"
            )
        return algorithm.refuse(population, drawn) or uncovered(algorithm)

    return replace(
        algorithm,
        finish=finish,
        contribute=contribute,
        update=update,
        phases=algorithm.phases._replace(
            unheard=unheard if kind == "central" else None  # a sum of nobody must look like any other
        ),
        facts=algorithm.facts._replace(protection=Protection(clip, noise, kind)),
        refuse=refuse,
    )


def clipped(up: Tree, clip: float) -> Tree:
    """A message, or a stack of them, whose l2 norm over all its tensors is at most `clip`; zeros where not finite."""
    norm = norm_of(up)
    factor = (clip / norm).clamp(max=1.0)
    return tree_map(lambda leaf: torch.where(norm.isfinite(), leaf * factor, torch.zeros_like(leaf)), up)


def norm_of(up: Tree) -> Tensor:
    """The l2 norm [..., 1] of all tensors [..., d] of a message together."""
    squares = [leaf.square().sum(-1, keepdim=True) for leaf in tree_leaves(up).values()]
    return torch.stack(squares).sum(0).sqrt()


def _noise(like: Tree, d: int, normal: Callable[[int], Tensor], scale: float) -> Tree:
    """Gaussian noise [..., d] in the form of a message: slices of one draw, so that no two vectors share any."""
    drawn = scale * normal(len(tree_leaves(like)) * d)
    pieces = iter([drawn[..., k : k + d] for k in range(0, drawn.shape[-1], d)])
    return tree_map(lambda leaf: next(pieces), like)


def uncovered(algorithm: Algorithm) -> str | None:
    """Why clipping and noise would not cover all that a method's clients send, or None."""
    try:
        reason = _uncovered(algorithm)
    except Exception as error:  # whatever somebody else's functions raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        reason = f"its functions, tried on a model of two parameters, fail ({why})"
    if reason is None:
        return None
    return f"differential privacy does not cover this method: {reason}; use another method such as fedavg or scaffold"


def _uncovered(algorithm: Algorithm) -> str | None:
    if algorithm.facts.protection is not None:
        return "its messages are protected already"
    if algorithm.phases.prelude is not None:
        return "its clients send their gradients before the message that is clipped"
    if algorithm.phases.prologue is not None:
        return "all clients send gradients before round 0, which nothing clips"
    if algorithm.phases.communicates is not None:
        return "it leaves out messages that are accounted"
    if algorithm.weights != "uniform":
        return (
            f"weights {algorithm.weights} go by how many samples a client has, which nothing protects (where the "
            "method has uniform weights, write weights=uniform)"
        )
    first = message(algorithm, torch.ones(2, dtype=torch.float64))
    if is_packed(first):
        return "it compresses messages before they are clipped, and only what is clipped may be compressed (upload)"
    vectors = list(tree_leaves(first).values())
    if not vectors:
        return "its clients send nothing"
    if any(leaf.shape != (2,) for leaf in vectors):
        return "its clients send numbers such as their local steps beside vectors, which nothing protects"
    if any(bool(leaf.any()) for leaf in vectors):
        return "its clients send whole models, not changes, and clipping would draw them to zero"
    if not _linear(algorithm, first):
        return "its server's sum is not linear in the messages alone, so that their bound does not bound the sum"
    return None


def _linear(algorithm: Algorithm, like: Tree) -> bool:
    """Whether `contribute` is a linear map of the message for a sender of whom nothing else is known: by trial."""
    u = _noise(like, 2, lambda n: torch.arange(1, n + 1, dtype=torch.float64), 0.1)
    v = tree_map(lambda leaf: leaf**3 - 2.0, u)
    tried = u, v, tree_map(lambda a, b: 2 * a - 3 * b, u, v)
    of_u, of_v, of_both = (
        contribution(algorithm, up, torch.ones((), dtype=torch.float64), known=False) for up in tried
    )
    pairs = zip(tree_leaves(of_both).values(), tree_leaves(of_u).values(), tree_leaves(of_v).values(), strict=True)
    return all(torch.allclose(both, 2 * a - 3 * b, rtol=1e-9, atol=1e-12) for both, a, b in pairs)
