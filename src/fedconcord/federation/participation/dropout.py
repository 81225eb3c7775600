"""Who is lost in the middle of a round: it got the model and worked, and its reply never arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.federation.participation.work import check_range
from fedconcord.method.contract import rng
from fedconcord.method.contract.identity import definition
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import BelowOne, about

Low = Annotated[BelowOne, about("probability of the client that drops out least")]
High = Annotated[BelowOne, about("probability of the client that drops out most")]
CHANCES = "probability with which each client is lost in a round, in the order of their ids"
Chances = Annotated[list[BelowOne], Field(min_length=1, description=CHANCES)]
Dropout = Callable[[int, int], float]
"""(seed, client) -> the probability that it is lost in a round."""


@definition()
def fixed(chance: Annotated[BelowOne, about("probability that a client drops out, the same for all")] = 0.1) -> Dropout:
    """Every client with the same probability, in every round anew."""
    return lambda seed, client: chance


@definition()
def by_client(low: Low = 0.0, high: High = 0.2) -> Dropout:
    """A probability that stays with the client, drawn once, uniform on [low, high]."""
    check_range("by_client", low, high)
    return lambda seed, client: low + (high - low) * rng.generator(seed, rng.Purpose.TRAIT, 1, client).random()


@definition()
def per_client(chances: Chances) -> Dropout:
    """The probability given for each client."""

    def chance(seed: int, client: int) -> float:
        if client >= len(chances):
            raise UserError(
                f"dropout lists {len(chances)} probabilities and none for client {client}; give one for each"
            )
        return chances[client]

    return chance


DROPOUT: dict[str, Callable[..., Dropout]] = by_name(fixed, by_client, per_client)


def draw(dropout: Dropout, seed: int, round: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of these clients: who is lost [S] bool, after which share of its work [S], and its probability [S]."""
    chance = np.array([dropout(seed, int(i)) for i in ids], np.float64)
    u = np.array([rng.generator(seed, rng.Purpose.DROPOUT, round, int(i)).random(2) for i in ids]).reshape(-1, 2)
    return u[:, 0] < chance, u[:, 1], chance
