"""Hostile clients in a simulation: which clients attack, and what they do. Never used in a deployment.

A hostile client works as ordered and then lies: what it makes of its message and its own row starts from another model
than the one it found (`move`), so an attack composes with every method, and the same bits come out of every engine. Two
attacks know what the honest clients of the round sent (`collude`): the simulation replaces the hostile contributions
where the server has all of them apart, for methods that allow it (`wrappers.robust.apart`). One lies in its data
(`labels`).

alie: "A little is enough", Baruch et al., NeurIPS 2019. ipm: inner-product manipulation, Xie et al., UAI 2019. Both are
given the mean and deviation of the honest contributions of the round themselves, more than the papers' attackers have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Sender, Tree, model_of, rng, tree_map
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.wrappers.robust import apart
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Chance, Positive, about

Share = Annotated[Chance, about("fraction of all clients that is hostile, chosen by the seed")]
Draws = Callable[[int], Tensor]  # n -> [..., n] uniform on [0, 1), the client's own


class Attack(NamedTuple):
    """What hostile clients do; exactly one of the three ways is there."""

    share: float  # of all clients
    move: Callable[[Tensor, Draws], Tensor] | None = None  # (x_i - x [..., d], draws) -> what it claims instead
    collude: Callable[[Tensor, int], Tensor] | None = None  # (honest contributions [H, k], hostile clients) -> [k]
    labels: Callable[[np.ndarray, int], np.ndarray] | None = None  # (labels [n], classes) -> labels [n]
    identity: Identity = UNNAMED


@definition()
def sign_flip(
    share: Share = 0.2, scale: Annotated[Positive, about("factor on the opposite of the move")] = 1.0
) -> Attack:
    """Sends the opposite of its move, scaled."""
    return Attack(share, move=lambda move, draws: -scale * move)


@definition()
def gaussian(
    share: Share = 0.2, deviation: Annotated[Positive, about("standard deviation of every entry")] = 1.0
) -> Attack:
    """Sends normal noise in place of its move."""

    def noise(move: Tensor, draws: Draws) -> Tensor:
        d = move.shape[-1]
        u = draws(2 * d)[..., d:]  # the first are a compressor's
        edge = torch.finfo(u.dtype).eps
        return deviation * 2**0.5 * torch.erfinv((2 * u - 1).clamp(edge - 1, 1 - edge))

    return Attack(share, move=noise)


@definition()
def same_value(
    share: Share = 0.2,
    value: Annotated[float, about("value of every entry; with 0 the client does nothing")] = 1.0,
) -> Attack:
    """Sends one number in every entry of its move."""
    return Attack(share, move=lambda move, draws: torch.full_like(move, value))


@definition()
def nan(share: Share = 0.2) -> Attack:
    """Sends NaN in place of its move, as a broken client does."""
    return Attack(share, move=lambda move, draws: torch.full_like(move, torch.nan))


@definition()
def label_flip(share: Share = 0.2) -> Attack:
    """Trains on class C - 1 - y in place of y, of C classes."""
    return Attack(share, labels=lambda labels, classes: classes - 1 - labels)


@definition()
def ipm(share: Share = 0.2, scale: Annotated[Positive, about("factor on the opposite of the mean")] = 0.5) -> Attack:
    """Sends the opposite of the honest clients' mean, scaled.

    Xie et al., UAI 2019.
    """
    return Attack(share, collude=lambda honest, hostile: -scale * honest.mean(0))


@definition()
def alie(
    share: Share = 0.2,
    deviations: Annotated[
        Positive | None, about("standard deviations of each coordinate from the mean; if none, the paper's z_max")
    ] = None,
) -> Attack:
    """Stays within the honest clients' spread: their mean minus z standard deviations, by coordinate.

    Baruch et al., NeurIPS 2019, Algorithm 3.
    """

    def collude(honest: Tensor, hostile: int) -> Tensor:
        z = deviations if deviations is not None else _z_max(len(honest) + hostile, hostile)
        return honest.mean(0) - z * honest.std(0, correction=0)

    return Attack(share, collude=collude)


def _z_max(n: int, hostile: int) -> float:
    """The paper's: as many honest clients as a majority still lacks are farther from the mean than this."""
    lacking = n // 2 + 1 - hostile
    share = (n - hostile - lacking) / (n - hostile)
    return NormalDist().inv_cdf(min(max(share, 0.5), 1 - 1e-3))


ATTACKS: dict[str, Callable[..., Attack]] = by_name(sign_flip, gaussian, same_value, nan, label_flip, ipm, alie)


def chosen(attack: Attack, seed: int, clients: int) -> tuple[int, ...]:
    """The hostile ones of so many clients, sorted: round(share N) of them, the same whatever else is drawn."""
    draw = rng.generator(seed, rng.Purpose.HOSTILE)
    return tuple(sorted(draw.choice(clients, round(attack.share * clients), replace=False).tolist()))


@definition()
def with_hostile(algorithm: Algorithm, attack: Attack, seed: int, clients: int) -> Algorithm:
    """The same method among so many clients, some of them hostile.

    What a client claims goes into its own row too: SCAFFOLD's c_i is that of the model it claims.
    """
    flags = torch.zeros(clients, dtype=torch.bool)
    flags[list(chosen(attack, seed, clients))] = True
    move, collude = attack.move, attack.collude
    if move is not None:

        def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Tree, Tree]:
            x = model_of(down)
            claimed = x + move(done.x - x, client.noise)
            return algorithm.finish(down, row, done._replace(x=_where(flags, client.id, claimed, done.x)), client)

        return replace(algorithm, finish=finish)
    if collude is None:
        return algorithm
    separate = apart(algorithm)
    inner = separate.phases.combine
    assert inner is not None

    def combine(server: Tree, rows: Tree, senders: Sender, cohort: Cohort) -> Tree:
        hostile = flags.to(senders.id.device)[senders.id[:, 0]]
        count = int(hostile.sum())

        def one(leaf: Tensor) -> Tensor:
            flat = leaf.reshape(len(leaf), -1)
            claimed = collude(flat[~hostile], count).reshape(leaf.shape[1:])
            return _where(flags, senders.id, claimed.expand_as(leaf), leaf)

        known = 0 < count < len(hostile)  # there is somebody to lie, and somebody to know
        return inner(server, tree_map(one, rows) if known else rows, senders, cohort)

    return replace(separate, phases=separate.phases._replace(combine=combine))


def _where(flags: Tensor, id: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """yes where the client (id [] or [S, 1]) is flagged, else no, to the bit; both [..., d]."""
    flag = flags.to(id.device).index_select(0, id.reshape(-1)).reshape(id.shape)  # indexing would read the id's value
    return torch.where(flag, yes, no)
