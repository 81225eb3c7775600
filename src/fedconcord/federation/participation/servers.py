"""Servers above servers: which edge server a client sends to, which of them are lost in a round, what passes between.

A round's total is a sum over clients, so servers may add in tiers: each edge sends up the total of the clients below it
with the weights of the whole cohort, and the root takes the sum of these. Nothing of a method changes, and its rounds
are those of one server to rounding. What does change is what passes between servers: one total up and one message down
a server, however many clients are below it.

A server that is lost in a round takes the replies of all clients below it with it: they got the model and did their
work, and nothing of them comes, as of clients that drop out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedconcord.federation.participation.work import read_csv
from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import BelowOne, Count, about


class Edges(NamedTuple):
    """Tiers of servers between the clients and the root."""

    counts: tuple[int, ...]  # servers of each tier, the clients' first
    lost: float  # probability that a server of them is lost in a round
    above: Callable[[int, np.ndarray], np.ndarray]  # (seed, ids [S]) -> [S, T] int64, each client's server in each tier
    identity: Identity = UNNAMED

    def losses(self, seed: int, round: int, ids: np.ndarray) -> tuple[np.ndarray, float]:
        """Of these clients, who is below a lost server [S] bool, and the probability of that."""
        is_lost = np.zeros(len(ids), bool)
        first = 0  # servers are counted through all tiers
        for count, servers in zip(self.counts, self.above(seed, ids).T, strict=True):
            distinct, place = np.unique(servers, return_inverse=True)
            coins = [rng.generator(seed, rng.Purpose.EDGE, round, first + int(j)).random() for j in distinct]
            is_lost |= (np.array(coins) < self.lost)[place]
            first += count
        return is_lost, 1 - (1 - self.lost) ** len(self.counts)


def distinct(servers: np.ndarray) -> tuple[int, ...]:
    """How many servers of each tier [T] there are among these [S, T]; -1 - k is none, of the k-th client alone."""
    return tuple(len(np.unique(column[column >= 0])) for column in servers.T)


Above = Annotated[
    list[Count],
    about("number of servers in each further tier, from below; fewer than in the tier before"),
]
Lost = Annotated[BelowOne, about("probability that a server is lost in a round, with the replies of all below it")]


def _tiers(servers: int, above: list[int], lost: float, home: Callable[[int, np.ndarray], np.ndarray]) -> Edges:
    """Servers of a tier are dealt to those of the next in order, as many to each as can be; `home` is each client's."""
    counts = (servers, *above)
    if any(here >= below for below, here in pairwise(counts)):
        raise UserError(
            f"a tier of servers has fewer than the one below it, given {servers} and above {above}; write "
            "edges(32, above=[4])"
        )

    def path(seed: int, ids: np.ndarray) -> np.ndarray:
        each = [home(seed, ids).astype(np.int64)]
        for below, here in pairwise(counts):
            each.append(each[-1] * here // below)
        return np.stack(each, 1)

    return Edges(counts, lost, path)


@definition()
def edges(
    servers: Annotated[int, Field(ge=1, description="number of edge servers, which clients send to")] = 8,
    above: Above = [],  # noqa: B006
    lost: Lost = 0.0,
) -> Edges:
    """Every client has an edge server, drawn once, all equally likely."""

    @lru_cache(maxsize=2**17)
    def of(seed: int, client: int) -> int:
        return int(rng.generator(seed, rng.Purpose.TRAIT, 2, client).integers(servers))

    def home(seed: int, ids: np.ndarray) -> np.ndarray:
        return np.array([of(seed, i) for i in ids.tolist()], np.int64)

    return _tiers(servers, above, lost, home)


@definition()
def from_file(
    path: Annotated[str, about("CSV file with the columns client,server, servers counted from 0, a row a client")],
    above: Above = [],  # noqa: B006
    lost: Lost = 0.0,
) -> Edges:
    """Every client has the edge server that a file says, as geography or hospitals' groups do."""
    columns: dict[str, Callable[[str], int]] = {"client": int, "server": int}
    server_of: dict[int, int] = dict(map(tuple, read_csv(path, "list of edge servers", columns)))  # type: ignore[arg-type]
    if not server_of or min(server_of.values()) < 0:
        raise UserError(f"{path} needs a row for each client, with its server counted from 0")

    def home(seed: int, ids: np.ndarray) -> np.ndarray:
        absent = [int(i) for i in ids if int(i) not in server_of]
        if absent:
            raise UserError(f"{path} has no row for client {absent[0]}; give one for every client")
        return np.array([server_of[int(i)] for i in ids], np.int64)

    return _tiers(max(server_of.values()) + 1, above, lost, home)


TREES: dict[str, Callable[..., Edges]] = by_name(edges, from_file)
