"""Differential privacy: every client's message clipped, noise on their sum or on each of them, in whole numbers.

McMahan et al., ICLR 2018 (DP-FedAvg), with the fixed denominator of its estimator f_f: the unit of protection is a
client, and what is bounded is all that it sends in a round, every tensor of the message together, in l2 by C.
    central: the server adds N(0, z^2 C^2) to the sum of the clipped messages;
    local:   each client adds N(0, z^2 C^2) to its own clipped message.
Clipped messages are whole numbers, and so is the noise, a discrete Gaussian (`grid` says why, and that it costs no more
than N). Every message counts with the weight 1/S of the expected cohort S, whoever comes. The noisy sum is like one
message: it goes through the method's own `contribute`, which is the same linear map for all clients, so that a method
which sums two vectors with two weights (SCAFFOLD) is protected like one with one vector. What the server makes of the
noisy sum, and what clients keep and never send, is free.

A central server clips what it takes in as well: the bound then rests neither on clients nor on a compressor behind the
clipping, whose decoded messages may be longer than what was encoded. A message that is not finite counts as zeros.

Adaptive clipping lets the bound C follow a quantile of the messages' norms, at the same price. Andrew, Thakkar, McMahan
and Ramaswamy, NeurIPS 2021, Algorithm 1. Beside its message u_i each client says whether that is within the bound,
b_i = 1[||u_i|| <= C]. The server adds noise of standard deviation sigma_b to the sum of the bits:
    b~ = 1/2 + (sum of (b_i - 1/2) + sigma_b n) / S,        C <- C exp(-eta_C (b~ - gamma)).
A client moves that sum by 1/2 at most, so that noise z_Delta C on the sum of the messages, with
    1 / z^2 = 1 / z_Delta^2 + 1 / (2 sigma_b)^2                                                          (Theorem 1)
costs, together with the bits, what noise z C on the messages alone costs.

S is the expected cohort, as above: a client that does not come counts as half a bit, in a round of nobody too. C is in
the server's state and in its broadcast. Clients send u_i / C, which `with_privacy` protects with the constant bound 1,
and the server's step takes the noisy sum times C: no contribution, clipped again or under a mask, depends on C. What a
compressor with feedback keeps is in units of its round's C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Population,
    Protection,
    Sender,
    Step,
    Tree,
    model_of,
    tree_leaves,
    tree_map,
)
from fedconcord.method.contract.discrete import SIGMA
from fedconcord.method.contract.grid import MOST, Grid, clipped, norm_of, too_little
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.wrappers.forms import contribution, forms, message
from fedconcord.method.wrappers.lift import lift
from fedconcord.method.wrappers.uploads import is_packed
from fedconcord.support.errors import UserError, in_words
from fedconcord.support.parameters import Count, NotNegative, Positive, about

NOBODY = 2**31  # the number of no client


@definition(version=2)
def with_privacy(
    algorithm: Algorithm,
    clip: Annotated[Positive, about("C, the largest l2 norm of a message")],
    noise: Annotated[NotNegative, about("z, the standard deviation of the noise over C")],
    kind: Annotated[Literal["central", "local"], about("who adds the noise")],
    cohort: Annotated[Count, about("expected cohort S, the denominator")],
) -> Algorithm:
    """The same method with its messages clipped and noise added; it refuses methods that this does not cover."""

    grid = Grid(clip, noise)

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
        if kind == "central" or not noise:
            return clipped(up, clip), new
        assert client.discrete is not None
        noisy = tree_map(torch.add, grid.integers(up), _noise(up, done.x.shape[-1], client.discrete))
        return grid.numbers(noisy, done.x.dtype), new

    def contribute(up: Tree, sender: Sender, now: Cohort) -> Tree:
        if kind == "central" and noise:
            return grid.integers(up)
        bounded = clipped(up, clip) if kind == "central" else up
        return algorithm.contribute(bounded, public(sender, now.n), expected(now))

    def noisy(server: Tree, now: Cohort, total: Tree | None) -> Tree:
        """A round's sum of whole numbers, or none, with its noise: as one message, whose map is that of all."""
        assert now.discrete is not None
        added, x = _noise(form(), now.dim, now.discrete), model_of(server)
        up = grid.numbers(added if total is None else tree_map(torch.add, total, added), x.dtype)
        one = x.new_ones(())
        sender = Sender(torch.zeros_like(one, dtype=torch.int64), one, one, one, one, now.lr)
        return algorithm.contribute(up, public(sender, now.n), expected(now))

    def update(server: Tree, total: Tree, now: Cohort) -> Tree:
        if kind == "central" and noise:
            total = noisy(server, now, total)
        return algorithm.update(server, total, expected(now))

    def unheard(server: Tree, now: Cohort) -> Tree:
        return algorithm.update(server, noisy(server, now, None), expected(now))

    def refuse(population: Population, drawn: int) -> str | None:
        if drawn != cohort:
            return (
                f"messages weigh 1/{cohort}, and {drawn} clients are expected in a round; give with_privacy that cohort"
            )
        return too_little(noise) or algorithm.refuse(population, drawn) or uncovered(algorithm)

    return replace(
        algorithm,
        finish=finish,
        contribute=contribute,
        update=update,
        step=_apart(algorithm.step),
        phases=algorithm.phases._replace(
            unheard=unheard if kind == "central" else None  # a sum of nobody must look like any other
        ),
        facts=algorithm.facts._replace(protection=Protection(clip, noise, kind)),
        refuse=refuse,
    )


def _apart(step: Step) -> Step:
    """With later keys for noises of steps: the first has the key of the message's noise, or client 0's the sum's."""
    if (noise := step.noise) is None:
        return step
    return step._replace(noise=noise._replace(draw=lambda n, seed, t, i, k: noise.draw(n, seed, t, i, k + 1)))


def _noise(like: Tree, d: int, draw: Callable[[int], Tensor]) -> Tree:
    """Noise [..., d] in the form of a message: slices of one draw, so that no two vectors share any."""
    drawn = draw(len(tree_leaves(like)) * d)
    pieces = iter([drawn[..., k : k + d] for k in range(0, drawn.shape[-1], d)])
    return tree_map(lambda leaf: next(pieces), like)


def uncovered(algorithm: Algorithm) -> str | None:
    """Why clipping and noise would not cover all that a method's clients send, or None."""
    try:
        reason = _uncovered(algorithm)
    except Exception as error:  # whatever somebody else's functions raise
        reason = f"its functions, tried on a model of two parameters, fail ({in_words(error)})"
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
    if _asks_who(algorithm, first):
        return "its server counts a message by who sent it, as a list of one number a client does"
    if not _linear(algorithm, first):
        return "its server's sum is not linear in the messages alone, so that their bound does not bound the sum"
    return None


def _asks_who(algorithm: Algorithm, like: Tree) -> bool:
    """Whether `contribute` asks who sent a message: by trial with a client that there is not."""
    up = _noise(like, 2, lambda n: torch.arange(1, n + 1, dtype=torch.float64))
    try:
        one, other = (
            contribution(algorithm, up, torch.ones((), dtype=torch.float64), known=False, id=id) for id in (0, NOBODY)
        )
    except IndexError:
        return True
    same = zip(tree_leaves(one).values(), tree_leaves(other).values(), strict=True)
    return not all(torch.allclose(a, b, equal_nan=True) for a, b in same)


def _linear(algorithm: Algorithm, like: Tree) -> bool:
    """Whether `contribute` is a linear map of the message for a sender of whom nothing else is known: by trial."""
    u = _noise(like, 2, lambda n: 0.1 * torch.arange(1, n + 1, dtype=torch.float64))
    v = tree_map(lambda leaf: leaf**3 - 2.0, u)
    tried = u, v, tree_map(lambda a, b: 2 * a - 3 * b, u, v)
    of_u, of_v, of_both = (
        contribution(algorithm, up, torch.ones((), dtype=torch.float64), known=False) for up in tried
    )
    pairs = zip(tree_leaves(of_both).values(), tree_leaves(of_u).values(), tree_leaves(of_v).values(), strict=True)
    return all(torch.allclose(both, 2 * a - 3 * b, rtol=1e-9, atol=1e-12) for both, a, b in pairs)


# -- a bound that adapts -------------------------------------------------------------------------------------------


class Noises(NamedTuple):
    """Standard deviations of what the server adds."""

    messages: float  # z_Delta: to the sum of the messages, over C
    bits: float  # sigma_b: to the sum of the bits


class Adaptive(NamedTuple):
    """How the bound moves."""

    quantile: float  # gamma
    start: float  # C of round 0
    rate: float  # eta_C
    bits: float | None  # sigma_b
    identity: Identity = UNNAMED

    def noises(self, noise: float, cohort: int) -> Noises:
        """What costs together as much as noise z on the messages alone; none at all where z is 0.

        Raises:
            UserError: the bits alone cost more.
        """
        if noise == 0:
            return Noises(0.0, 0.0)
        bits = min(max(cohort / 20, noise), MOST) if self.bits is None else self.bits
        if 2 * bits <= noise:
            raise UserError(
                f"bits {bits:g} of adaptive clipping spend by themselves what noise {noise:g} may spend in all; give "
                f"bits of more than {noise / 2:g}"
            )
        return Noises((noise**-2 - (2 * bits) ** -2) ** -0.5, bits)


@definition()
def adaptive(
    quantile: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="fraction of messages whose norm is below the clipping bound C, which adapts to keep it so",
        ),
    ] = 0.5,
    start: Annotated[Positive, about("bound C of the first round")] = 0.1,
    rate: Annotated[Positive, about("step size of log C")] = 0.2,
    bits: Annotated[
        Annotated[float, Field(gt=0, le=MOST)] | None,
        about(
            "standard deviation of the noise on the number of messages within C; if none, a 20th of the "
            "cohort, and at least the noise multiplier"
        ),
    ] = None,
) -> Adaptive:
    """The bound follows a quantile of the messages' norms, privately.

    Andrew et al., NeurIPS 2021, Algorithm 1, with the paper's constants; its sigma_b is a 20th of the cohort.
    """
    return Adaptive(quantile, start, rate, bits)


CLIPS: dict[str, Callable[..., Adaptive]] = {"adaptive": adaptive}


class Bounded(NamedTuple):
    """A method's server state, or its broadcast, beside the bound."""

    inner: Any  # the method's own
    clip: Tensor  # [] C

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        return model_of(self.inner)


class Counted(NamedTuple):
    """A message, or what it contributes, beside its bit."""

    inner: Any  # the method's own, over C
    within: Tensor  # [] b - 1/2: whether C left the message as it was


@definition(version=2)
def with_adaptive_privacy(
    algorithm: Algorithm,
    clip: Adaptive,
    noise: Annotated[NotNegative, about("z, what messages and bits cost together")],
    cohort: Annotated[Count, about("expected cohort S, the denominator")],
) -> Algorithm:
    """`with_privacy`, central, with a bound that adapts; it refuses the same methods.

    Raises:
        UserError: the noise on the bits spends more than is to be spent in all.
    """
    noises = clip.noises(noise, cohort)
    scaled = _over_clip(algorithm, clip.start)
    private = with_privacy(scaled, 1.0, noises.messages, "central", cohort)
    whole = 2 * math.floor(SIGMA / (2 * noises.bits)) if noise else 1  # what stands for a bit whose noise is SIGMA

    @cache
    def vectors() -> int:
        return len(tree_leaves(forms(scaled, torch.ones(2)).up))

    def finish(down: Bounded, row: Tree, done: Done, client: Client) -> tuple[Counted, Tree]:
        up, new = scaled.finish(down, row, done, client)
        norm = norm_of(up)
        bit = torch.where(norm.isfinite(), (norm <= 1).to(norm.dtype) - 0.5, torch.zeros_like(norm))
        return Counted(clipped(up, 1.0), bit.reshape(client.steps.shape)), new

    def contribute(up: Counted, sender: Sender, now: Cohort) -> Counted:
        within = up.within.clamp(-0.5, 0.5)
        return Counted(private.contribute(up.inner, sender, now), (whole * within).long() if noise else within)

    def drawn(now: Cohort) -> tuple[Cohort, Tensor]:
        """The round with the noise of its messages, and that of its bits: pieces of one draw, which share nothing."""
        if not noise:
            return now, torch.zeros(())
        assert now.discrete is not None
        size = vectors() * now.dim
        every = now.discrete(size + 1)
        return now._replace(discrete=lambda n: every[:n]), every[size]

    def moved(before: Tensor, bits: Tensor) -> Tensor:
        share = 0.5 + bits.double() / (whole * cohort)
        return before * torch.exp(-clip.rate * (share - clip.quantile)).to(before)

    def update(server: Bounded, total: Counted, now: Cohort) -> Bounded:
        now, extra = drawn(now)
        after: Bounded = private.update(server, total.inner, now)
        return after._replace(clip=moved(server.clip, total.within.reshape(()) + extra))

    def unheard(server: Bounded, now: Cohort) -> Bounded:
        assert private.phases.unheard is not None
        now, extra = drawn(now)
        after: Bounded = private.phases.unheard(server, now)
        return after._replace(clip=moved(server.clip, extra))

    return replace(
        private,
        finish=finish,
        contribute=contribute,
        update=update,
        phases=private.phases._replace(unheard=unheard),
        facts=private.facts._replace(protection=Protection(None, noise, "central")),
    )


def _over_clip(algorithm: Algorithm, start: float) -> Algorithm:
    """The same method with its messages over a bound that the server keeps and tells."""

    def finish(down: Bounded, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = lifted.finish(down, row, done, client)
        return tree_map(lambda leaf: leaf / down.clip, up), new

    def update(server: Bounded, total: Tree, now: Cohort) -> Tree:
        return lifted.update(server, tree_map(lambda leaf: leaf * server.clip, total), now)

    lifted = lift(
        algorithm,
        server=lambda inner, x: Bounded(inner, x.new_tensor(start)),
        down=lambda inner, server: Bounded(inner, server.clip),
    )
    return replace(lifted, finish=finish, update=update)


def clip_of(server: Tree) -> float | None:
    """The bound C in a server's state; None where none adapts."""
    while not isinstance(server, Bounded):
        if not hasattr(server, "inner"):
            return None
        server = server.inner
    return float(server.clip)
