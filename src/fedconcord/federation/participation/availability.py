"""Which clients could take part in a round, before anybody is chosen. A pure function of (seed, round).

The probabilities are those of a client before anything of the run is known; Markov's states are no news to one who has
seen the round before. Who is available costs O(N) a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedconcord.federation.participation.work import check_range, read_csv
from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import Chance, Count, Fraction, Positive, about

Low = Annotated[Chance, about("smallest probability with which a client is available")]
High = Annotated[Chance, about("largest probability with which a client is available")]
CHANCES = "probability with which each client is available, in the order of their ids"
Chances = Annotated[list[Chance], Field(min_length=1, description=CHANCES)]
Period = Annotated[Positive, about("rounds in a day")]
Zones = Annotated[Count, about("number of time zones, evenly around the day; clients are put into them at random")]
TRACE = "CSV file with the columns round and client, and a row for every client that is available in a round"


class Available(NamedTuple):
    """Those who can be reached in a round."""

    ids: np.ndarray  # [A] int64, sorted
    chance: np.ndarray  # [A] float64, P(available); NaN where nobody knows it


class Availability(NamedTuple):
    """A model of availability."""

    draw: Callable[[int, int, int], Available]  # (seed, round, N) -> those available
    known: bool = True  # its probabilities are known
    identity: Identity = UNNAMED


def _trait(seed: int, n: int) -> np.ndarray:
    """A number on [0, 1) that stays with each client [N]."""
    return rng.generator(seed, rng.Purpose.AVAILABLE).random(n)


def _coins(probability: Callable[[int, int, int], np.ndarray]) -> Availability:
    """Every client on its own coin, with these probabilities [N] at (seed, round, N)."""

    def draw(seed: int, round: int, n: int) -> Available:
        p = probability(seed, round, n)
        ids = np.flatnonzero(rng.generator(seed, rng.Purpose.AVAILABLE, round + 1).random(n) < p)
        return Available(ids, p[ids])

    return Availability(draw)


@definition()
def coins(low: Low = 0.1, high: High = 1.0) -> Availability:
    """Every client on its own coin each round; its probability is drawn once, uniform on [low, high]."""
    check_range("coins", low, high)
    return _coins(lambda seed, round, n: low + (high - low) * _trait(seed, n))


@definition()
def per_client(chances: Chances) -> Availability:
    """Every client on its own coin each round, with the probability given for it."""

    def probability(seed: int, round: int, n: int) -> np.ndarray:
        if len(chances) != n:
            raise UserError(f"availability lists {len(chances)} probabilities for {n} clients; give one for each")
        return np.asarray(chances, np.float64)

    return _coins(probability)


@definition()
def day_night(low: Low = 0.1, high: High = 0.9, period: Period = 24.0, zones: Zones = 4) -> Availability:
    """Coins whose probability goes up and down with the hour: a sine from low to high, shifted by time zone."""
    check_range("day_night", low, high)

    def probability(seed: int, round: int, n: int) -> np.ndarray:
        phase = np.floor(_trait(seed, n) * zones) / zones
        return np.asarray(low + (high - low) * (1 + np.sin(2 * math.pi * (round / period + phase))) / 2)

    return _coins(probability)


@definition()
def markov(
    leave: Annotated[Fraction, about("probability with which an available client is absent in the next round")],
    join: Annotated[Fraction, about("probability with which an absent client is available in the next round")],
) -> Availability:
    """Every client switches on and off as a chain of its own, from its stationary law join / (join + leave).

    Round t costs one step after round t - 1 was asked for, and t steps by itself (after a resume).
    """
    share = join / (join + leave)
    last: dict[tuple[int, int], tuple[int, np.ndarray]] = {}  # of one seed and N: the last round asked for

    def draw(seed: int, round: int, n: int) -> Available:
        at, on = last.get((seed, n), (round + 1, np.empty(0, bool)))
        if at > round:
            at, on = 0, rng.generator(seed, rng.Purpose.AVAILABLE, 1).random(n) < share
        for t in range(at + 1, round + 1):
            u = rng.generator(seed, rng.Purpose.AVAILABLE, t + 1).random(n)
            on = np.where(on, u >= leave, u < join)
        last.clear()
        last[seed, n] = round, on
        ids = np.flatnonzero(on)
        return Available(ids, np.full(len(ids), share))

    return Availability(draw)


@definition()
def trace(path: Annotated[str, about(TRACE)]) -> Availability:
    """Availability as recorded in a file, which starts again after its last round. Rounds and clients count from 0."""
    clients_of: dict[int, set[int]] = {}
    for time, client in read_csv(path, "trace of availability", {"round": int, "client": int}):
        clients_of.setdefault(time, set()).add(client)
    if not clients_of or min(clients_of) < 0 or min(map(min, clients_of.values())) < 0:
        raise UserError(f"{path} must hold at least one row, with rounds and clients from 0")
    rounds = max(clients_of) + 1
    ids_of = {t: np.array(sorted(who), np.int64) for t, who in clients_of.items()}
    highest = int(max(who[-1] for who in ids_of.values()))

    def draw(seed: int, round: int, n: int) -> Available:
        if highest >= n:
            raise UserError(f"{path} names client {highest}, and there are clients 0 to {n - 1}")
        ids = ids_of.get(round % rounds, np.empty(0, np.int64))
        return Available(ids, np.full(len(ids), np.nan))

    return Availability(draw, known=False)


AVAILABILITY: dict[str, Callable[..., Availability]] = by_name(coins, per_client, day_night, markov, trace)
