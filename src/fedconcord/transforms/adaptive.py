"""Adaptive clipping: the bound C on clients' messages follows a quantile of their norms, at the same price.

Andrew, Thakkar, McMahan and Ramaswamy, NeurIPS 2021, Algorithm 1. Beside its message u_i each client says whether that
is within the bound, b_i = 1[||u_i|| <= C]. The server adds noise of standard deviation sigma_b to the sum of the bits:
    b~ = 1/2 + (sum of (b_i - 1/2) + sigma_b n) / S,        C <- C exp(-eta_C (b~ - gamma)).
A client moves that sum by 1/2 at most, so that noise z_Delta C on the sum of the messages, with
    1 / z^2 = 1 / z_Delta^2 + 1 / (2 sigma_b)^2                                                          (Theorem 1)
costs, together with the bits, what noise z C on the messages alone costs.

S is the expected cohort, as in `privacy`: a client that does not come counts as half a bit, in a round of nobody too.
C is in the server's state and in its broadcast. Clients send u_i / C, which `privacy` protects with the constant bound
1, and the server's step takes the noisy sum times C: no contribution, clipped again or under a mask, depends on C. What
a compressor with feedback keeps is in units of its round's C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, NotNegative, Positive, about
from fedconcord.core import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Protection,
    Sender,
    Tree,
    model_of,
    tree_leaves,
    tree_map,
)
from fedconcord.core.identity import UNNAMED, Identity, definition
from fedconcord.transforms.forms import forms
from fedconcord.transforms.lift import lift
from fedconcord.transforms.privacy import clipped, norm_of, with_privacy


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
        bits = max(cohort / 20, noise) if self.bits is None else self.bits
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
        Positive | None,
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


@definition()
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

    @cache
    def vectors() -> int:
        return len(tree_leaves(forms(scaled, torch.ones(2)).up))

    def finish(down: Bounded, row: Tree, done: Done, client: Client) -> tuple[Counted, Tree]:
        up, new = scaled.finish(down, row, done, client)
        norm = norm_of(up)
        bit = torch.where(norm.isfinite(), (norm <= 1).to(norm.dtype) - 0.5, torch.zeros_like(norm))
        return Counted(clipped(up, 1.0), bit.reshape(client.steps.shape)), new

    def contribute(up: Counted, sender: Sender, now: Cohort) -> Counted:
        return Counted(private.contribute(up.inner, sender, now), up.within.clamp(-0.5, 0.5) / cohort)

    def drawn(now: Cohort) -> tuple[Cohort, Tensor]:
        """The round with the noise of its messages, and that of its bits: pieces of one draw, which share nothing."""
        assert now.normal is not None
        size = vectors() * now.dim
        every = now.normal(size + 1)
        return now._replace(normal=lambda n: every[:n]), noises.bits * every[size]

    def moved(before: Tensor, bits: Tensor | float, extra: Tensor) -> Tensor:
        share = 0.5 + bits + extra / cohort
        return before * torch.exp(-clip.rate * (share - clip.quantile))

    def update(server: Bounded, total: Counted, now: Cohort) -> Bounded:
        now, extra = drawn(now)
        after: Bounded = private.update(server, total.inner, now)
        return after._replace(clip=moved(server.clip, total.within.reshape(()), extra))

    def unheard(server: Bounded, now: Cohort) -> Bounded:
        assert private.phases.unheard is not None
        now, extra = drawn(now)
        after: Bounded = private.phases.unheard(server, now)
        return after._replace(clip=moved(server.clip, 0.0, extra))

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
