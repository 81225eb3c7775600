"""Partitions of the samples sorted by label: shards, groups, a sorted fraction."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Chance, Count, about
from fedconcord.federation.partitions.base import check_labels, even, parts_of


def shards(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    k: Annotated[Count, about("shards per client")] = 2,
) -> list[np.ndarray]:
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
    return _deal(labels, np.repeat(np.arange(n_clients), k), rng)


def groups(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    cuts: Annotated[
        Count | None, about("shards in all; if none, (clients / 2)^2, as in 10,000 for 200 clients")
    ] = None,
) -> list[np.ndarray]:
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
    return _deal(labels, np.repeat(np.arange(n_clients), share), rng)


def sorted_fraction(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    c: Annotated[Chance, about("fraction of the samples that is dealt sorted by label")] = 1.0,
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


def _deal(labels: np.ndarray, shard_owner: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shards of the samples sorted by label, dealt at random: `shard_owner` has each client once a shard."""
    owner = np.empty(len(labels), np.int64)
    dealt = np.repeat(rng.permutation(shard_owner), even(len(labels), len(shard_owner)))
    owner[np.argsort(labels, kind="stable")] = dealt
    return parts_of(owner, int(shard_owner[-1]) + 1)
