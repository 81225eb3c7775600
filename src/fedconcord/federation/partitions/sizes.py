"""Partitions that do not look at labels: equal sizes, and sizes that differ."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, Positive, about
from fedconcord.federation.partitions.base import check_alpha, check_clients, even, parts_of

Least = Annotated[Count, about("smallest number of samples of a client")]


def iid(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /) -> list[np.ndarray]:
    """Shuffled and dealt evenly: sizes differ by at most 1, every sample is used."""
    check_clients(len(labels), n_clients)
    return _deal(even(len(labels), n_clients), rng)


def power_law(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    exponent: Annotated[
        float,
        Field(
            ge=0,
            description="exponent of the power law: the k-th largest client has a share proportional to k^-exponent",
        ),
    ] = 1.0,
    min_samples: Least = 1,
) -> list[np.ndarray]:
    """Sizes by Zipf's power law, labels IID; every sample is used.

    The k-th largest client has `min_samples` and a share of the other samples in proportion to k^-exponent (exponent 0:
    equal sizes); which client is the k-th is drawn. Rounded so that the sum is exact (largest remainders). The sizes of
    FedProx's Synthetic(alpha, beta), which FedNova uses, are log-normal instead and come with data `synthetic`.

    Raises:
        UserError: there are fewer than `min_samples` samples a client.
    """
    _check_least("power_law", len(labels), n_clients, min_samples)
    if not 0 <= exponent < np.inf:
        raise UserError(f"partition 'power_law' needs a finite exponent >= 0, given exponent = {exponent}")
    shares = np.arange(1, n_clients + 1, dtype=np.float64) ** -exponent
    sizes = min_samples + apportion(len(labels) - n_clients * min_samples, shares)
    return _deal(rng.permutation(sizes), rng)


def quantity(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    alpha: Annotated[Positive, about("concentration of the sizes; a small one gives few large clients")] = 0.5,
    min_samples: Least = 1,
) -> list[np.ndarray]:
    """Quantity skew: sizes from Dir(alpha) over clients, labels IID; every sample is used.

    Every client has `min_samples`, and q ~ Dir(alpha, .., alpha) divides the other samples, rounded so that the sum is
    exact (largest remainders). Source: Li, Diao, Chen, He, ICDE 2022 ("Non-IID Data
    Silos"), who redraw instead until no client is small.

    Raises:
        UserError: alpha is not > 0, or there are fewer than `min_samples` samples a client.
    """
    _check_least("quantity", len(labels), n_clients, min_samples)
    check_alpha("quantity", alpha)
    q = rng.dirichlet(np.full(n_clients, float(alpha)))
    return _deal(min_samples + apportion(len(labels) - n_clients * min_samples, q), rng)


def apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers [N] that sum to total, in proportion to shares [N] >= 0, by largest remainders."""
    exact = total * (shares / shares.sum())
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    short = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[short] += 1
    return whole


def _check_least(partition: str, n: int, n_clients: int, min_samples: int) -> None:
    check_clients(n, n_clients)
    if not 1 <= min_samples <= n / n_clients:
        raise UserError(
            f"partition {partition!r} needs 1 <= min_samples <= samples / clients = {n} / {n_clients} = "
            f"{n / n_clients:.4g}, given min_samples = {min_samples}; change min_samples or the number of clients"
        )


def _deal(sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Samples shuffled and dealt, sizes[i] to client i."""
    owner = np.empty(int(sizes.sum()), np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return parts_of(owner, len(sizes))
