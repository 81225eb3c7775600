"""Partitions that do not look at labels or cut samples sorted by label, and what all partitions share."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Chance, Count, Positive, about

MAX_DRAWS = 1000  # whole redraws before a partition that leaves clients short is refused
LABEL_FREE = ("iid", "power_law", "quantity", "flwr_datasets")  # partitions of any targets; the last: by its class


def check_clients(n: int, n_clients: int) -> None:
    """Refuse to divide n samples over so many clients.

    Raises:
        UserError: there is no client, or there are more than samples.
    """
    if not 1 <= n_clients <= n:
        raise UserError(
            f"cannot divide {n} samples over {n_clients} clients with at least one each; "
            f"set the number of clients from 1 to {n}"
        )


def check_labels(partition: str, labels: np.ndarray, n_clients: int) -> None:
    """`check_clients`, and one class label a sample.

    Raises:
        UserError: as `check_clients`; or the targets are numbers or several labels a sample.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise UserError(
            f"partition {partition!r} divides by one class label a sample, and the targets here are "
            f"{labels.dtype} of shape {labels.shape}; use {', '.join(LABEL_FREE)} or natural"
        )
    check_clients(len(labels), n_clients)


def check_alpha(partition: str, alpha: float) -> None:
    """Refuse a concentration that is no number > 0."""
    if not 0 < alpha < np.inf:
        raise UserError(f"partition {partition!r} needs a finite alpha > 0, given alpha = {alpha}")


def even(total: int, parts: int) -> np.ndarray:
    """total as a sum of `parts` whole numbers that differ by at most 1, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def parts_of(owner: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """Owner of each sample [n] -> sorted samples of each client."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, n_clients)))


def counts(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: [N, classes] int64, from labels in 0 .. classes-1."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * classes + labels[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * classes).reshape(len(parts), classes)


# -- partitions ----------------------------------------------------------------------------------------------------

PerClient = Annotated[Count, about("shards per client")]
Cuts = Annotated[Count | None, about("shards in all; if none, (clients / 2)^2, as in 10,000 for 200 clients")]
Sorted = Annotated[Chance, about("fraction of the samples that is dealt sorted by label")]
LAW = "exponent of the power law: the k-th largest client has a share proportional to k^-exponent"
Exponent = Annotated[float, Field(ge=0, description=LAW)]
Skew = Annotated[Positive, about("concentration of the sizes; a small one gives few large clients")]
Least = Annotated[Count, about("smallest number of samples of a client")]


def iid(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /) -> list[np.ndarray]:
    """Shuffled and dealt evenly: sizes differ by at most 1, every sample is used."""
    check_clients(len(labels), n_clients)
    return _deal(even(len(labels), n_clients), rng)


def power_law(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, exponent: Exponent = 1.0, min_samples: Least = 1
) -> list[np.ndarray]:
    """Sizes by Zipf's power law, labels IID; every sample is used.

    The k-th largest client has `min_samples` and a share of the other samples in proportion to k^-exponent (exponent 0:
    equal sizes); which client is the k-th is drawn. Rounded so that the sum is exact (largest remainders). The sizes of
    FedProx's Synthetic(alpha, beta), which FedNova uses, are log-normal instead and come with data `synthetic`.

    Raises:
        UserError: there are fewer than `min_samples` samples a client.
    """
    check_least("power_law", len(labels), n_clients, min_samples)
    if not 0 <= exponent < np.inf:
        raise UserError(f"partition 'power_law' needs a finite exponent >= 0, given exponent = {exponent}")
    shares = np.arange(1, n_clients + 1, dtype=np.float64) ** -exponent
    sizes = min_samples + apportion(len(labels) - n_clients * min_samples, shares)
    return _deal(rng.permutation(sizes), rng)


def quantity(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, alpha: Skew = 0.5, min_samples: Least = 1
) -> list[np.ndarray]:
    """Quantity skew: sizes from Dir(alpha) over clients, labels IID; every sample is used.

    Every client has `min_samples`, and q ~ Dir(alpha, .., alpha) divides the other samples, rounded so that the sum is
    exact (largest remainders). Source: Li, Diao, Chen, He, ICDE 2022 ("Non-IID Data
    Silos"), who redraw instead until no client is small.

    Raises:
        UserError: alpha is not > 0, or there are fewer than `min_samples` samples a client.
    """
    check_least("quantity", len(labels), n_clients, min_samples)
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


def check_least(partition: str, n: int, n_clients: int, min_samples: int) -> None:
    """Refuse to give so many samples to every client, if there are not enough."""
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


def shards(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, k: PerClient = 2) -> list[np.ndarray]:
    """Sorted by label, cut into N*k equal shards, k dealt to each client at random (FedAvg, FedADMM).

    Shard sizes differ by at most 1 where N*k does not divide the samples; every sample is used.

    Raises:
        UserError: there are fewer samples than shards.
    """
    check_labels("shards", labels, n_clients)
    n_shards = n_clients * k
    if not 1 <= n_shards <= len(labels):
        raise UserError(
            f"partition 'shards' needs k >= 1 and a sample for each of {n_clients} clients x k shards; given k = {k} "
            f"and {len(labels)} samples, so lower k or the number of clients"
        )
    return _deal_shards(labels, np.repeat(np.arange(n_clients), k), rng)


def groups(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, cuts: Cuts = None) -> list[np.ndarray]:
    """Sorted by label, cut into shards; clients in groups of two, members of group g get g shards each (FedADMM).

    The groups are clients 0 and 1, 2 and 3, ...; the last one, which has one member where the clients are odd, takes
    the shards that remain. Shards are dealt at random; their sizes differ by at most 1, and every sample is used.

    Source: Gong, Li, Freris, ICDE 2022, "Imbalanced Data Volumes" and Table VI: 10,000 shards over 200 clients.

    Raises:
        UserError: there are fewer samples than shards, or too few shards for the last group.
    """
    check_labels("groups", labels, n_clients)
    n_groups = (n_clients + 1) // 2
    last = n_clients - 2 * (n_groups - 1)  # members of the last group
    shards = n_groups**2 if cuts is None else cuts
    rest = shards - n_groups * (n_groups - 1)
    if rest < last or shards > len(labels):
        raise UserError(
            f"partition 'groups' needs from {n_groups * (n_groups - 1) + last} shards for {n_clients} clients to one a "
            f"sample, {len(labels)}; given cuts = {shards}, so change cuts or the number of clients"
        )
    share = np.append(np.repeat(np.arange(1, n_groups), 2), even(rest, last))  # shards of each client
    return _deal_shards(labels, np.repeat(np.arange(n_clients), share), rng)


def sorted_fraction(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, c: Sorted = 1.0
) -> list[np.ndarray]:
    """A fraction 1 - c shuffled and dealt, the remaining c sorted by label and dealt in order (LoSAC); equal sizes.

    round(c n) samples, drawn at random, are sorted; client 0 gets the first of them, client 1 the next. c = 0 is `iid`,
    c = 1 the paper's non-IID case. Sizes differ by at most 1; every sample is used.

    Source: LoSAC, ACM TKDD 2023, section 5.2.1.

    Raises:
        UserError: c is not in [0, 1].
    """
    check_labels("sorted_fraction", labels, n_clients)
    if not 0 <= c <= 1:
        raise UserError(f"partition 'sorted_fraction' needs c from 0 to 1, given c = {c}")
    shuffled = rng.permutation(len(labels))
    in_order, dealt = np.split(shuffled, [round(c * len(labels))])
    ordered, sizes = even(len(in_order), n_clients), even(len(labels), n_clients)
    owner = np.empty(len(labels), np.int64)
    owner[in_order[np.argsort(labels[in_order], kind="stable")]] = np.repeat(np.arange(n_clients), ordered)
    owner[dealt] = np.repeat(np.arange(n_clients), sizes - ordered)
    return parts_of(owner, n_clients)


def _deal_shards(labels: np.ndarray, shard_owner: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shards of the samples sorted by label, dealt at random: `shard_owner` has each client once a shard."""
    owner = np.empty(len(labels), np.int64)
    dealt = np.repeat(rng.permutation(shard_owner), even(len(labels), len(shard_owner)))
    owner[np.argsort(labels, kind="stable")] = dealt
    return parts_of(owner, int(shard_owner[-1]) + 1)
