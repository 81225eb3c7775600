"""How much local work a client does in a round, and on which samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.basis.errors import UserError, reason
from fedconcord.basis.parameters import Count, NotNegative, about
from fedconcord.core import rng
from fedconcord.core.identity import definition

Low = Annotated[Count, about("smallest amount of work (inclusive)")]
High = Annotated[Count, about("largest amount of work (inclusive)")]
Work = Callable[[int, int, int], float]
"""(seed, round, client) -> units of work: epochs, steps or seconds, as the configuration counts."""


def check_range(name: str, low: float, high: float) -> None:
    """Refuse a distribution between two ends that are the wrong way round."""
    if high < low:
        raise UserError(f"{name} has no value between low = {low} and high = {high}; give low <= high")


@definition()
def fixed(value: Annotated[Count, about("work in every round")] = 1) -> Work:
    """The same work for every client in every round."""
    return lambda seed, round, client: value


@definition()
def uniform(low: Low = 1, high: High = 5) -> Work:
    """Uniform on {low, ..., high}, drawn anew for every client in every round (FedNova, FedADMM, FedVRA's HLU)."""
    check_range("uniform", low, high)
    return lambda seed, round, client: int(
        rng.generator(seed, rng.Purpose.WORK, round, client).integers(low, high, endpoint=True)
    )


@definition()
def gaussian(
    mean: Annotated[float, Field(ge=1, description="mean before clipping")] = 30.0,
    std: Annotated[NotNegative, about("standard deviation before clipping")] = 22.0,
    low: Low = 1,
    high: High = 96,
) -> Work:
    """Gaussian, rounded and clipped to [low, high], drawn anew for every client in every round (FedNova, Fig. 2).

    The paper gives the mean and the range only; the default deviation puts 96 at three deviations. Clipping moves the
    mean: to 30.6 for the defaults.
    """
    check_range("gaussian", low, high)
    return lambda seed, round, client: int(
        np.clip(np.rint(rng.generator(seed, rng.Purpose.WORK, round, client).normal(mean, std)), low, high)
    )


@definition()
def by_client(low: Low = 1, high: High = 5) -> Work:
    """Uniform on {low, ..., high}, drawn once for each client, which keeps it in every round."""
    check_range("by_client", low, high)
    return lambda seed, round, client: int(
        rng.generator(seed, rng.Purpose.TRAIT, 0, client).integers(low, high, endpoint=True)
    )


@definition()
def per_client(
    amounts: Annotated[list[Count], Field(min_length=1, description="work of each client, in order of their ids")],
) -> Work:
    """The work given for each client, the same in every round."""

    def amount(seed: int, round: int, client: int) -> int:
        if client >= len(amounts):
            raise UserError(f"per_client lists the work of {len(amounts)} clients, none for client {client}")
        return amounts[client]

    return amount


@definition()
def from_file(
    path: Annotated[str, about("text file with one whole number on a line, and a line for each client")],
) -> Work:
    """The work of each client from a file, the same in every round."""
    try:
        with open(path, encoding="utf-8") as file:
            amounts = [int(line) for line in file if line.strip()]
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read the work in {path} ({reason(broken)}); give one whole number a line") from None
    if not amounts or min(amounts) < 1:
        raise UserError(f"{path} must hold one whole number >= 1 for each client")
    return per_client(amounts)


WORK: dict[str, Callable[..., Work]] = {
    "fixed": fixed,
    "uniform": uniform,
    "gaussian": gaussian,
    "by_client": by_client,
    "per_client": per_client,
    "from_file": from_file,
}
"""How much local work a client does, by name."""


def epoch_steps(n: int, batch_size: int | None) -> int:
    """Steps in one epoch of n samples; the last batch may be short. None: one full-batch step."""
    return 1 if batch_size is None else -(-n // batch_size)


def batches(seed: int, round: int, client: int, n: int, batch_size: int, steps: int) -> np.ndarray:
    """Sample positions [steps, B] of a client in a round; -1 pads the short last batch of an epoch.

    Each epoch is a fresh permutation; B = min(batch_size, n).
    """
    size = min(batch_size, n)
    per_epoch = epoch_steps(n, size)
    draw = rng.generator(seed, rng.Purpose.BATCH, round, client)
    out = np.full((-(-steps // per_epoch), per_epoch * size), -1, np.int64)
    for epoch in out:
        epoch[:n] = draw.permutation(n)
    return out.reshape(-1, size)[:steps]
