"""A few classes of its own for every client."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, Fraction, about
from fedconcord.federation.partitions.base import MAX_DRAWS, check_labels, even, parts_of


def dominant(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    share: Annotated[Fraction, about("fraction of a client's samples from its own classes")] = 0.8,
    classes: Annotated[Count, about("number of a client's own classes")] = 2,
) -> list[np.ndarray]:
    """A share of a client's samples from a few classes of its own, the rest from all (FedVRA); equal client sizes.

    Clients come in random order. Each takes round(share * size) samples from `classes` classes, in equal parts, drawn
    with probability in proportion to what is left of those that hold its part; where too few do, it takes the fullest
    classes, in parts as equal as they allow. What remains is shuffled and dealt, so it may hold a client's own classes
    too. Sizes differ by at most 1; every sample is used.

    FedVRA states the aim ("80 % from about 2 classes") and names FedDyn's procedure, which is `dirichlet`; this is the
    aim to the letter.

    Raises:
        UserError: the data have fewer classes, or no draw gives every client its share.
    """
    check_labels("dominant", labels, n_clients)
    _, y, amount = np.unique(labels, return_inverse=True, return_counts=True)
    if not (0 < share <= 1 and 1 <= classes <= len(amount)):
        raise UserError(
            f"partition 'dominant' needs 0 < share <= 1 and classes from 1 to the {len(amount)} in the data, "
            f"given share = {share} and classes = {classes}"
        )
    sizes = even(len(labels), n_clients)
    quota = np.rint(share * sizes).astype(np.int64)
    for _ in range(MAX_DRAWS):
        taken = _own_classes(amount, quota, classes, rng)
        if taken is not None:
            break
    else:
        raise UserError(
            f"partition 'dominant' cannot give each of {n_clients} clients {quota[0]} samples (share = {share}) from "
            f"classes = {classes} of its own, the classes having {amount.min()} to {amount.max()} samples; lower share "
            f"or change classes or the number of clients"
        )
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    owner = np.full(len(labels), -1, np.int64)
    clients = np.arange(n_clients)
    for samples, parts in zip(np.split(by_class, np.cumsum(amount)[:-1]), taken.T, strict=True):
        owner[samples[: parts.sum()]] = np.repeat(clients, parts)
    rest = np.flatnonzero(owner < 0)
    owner[rng.permutation(rest)] = np.repeat(clients, sizes - quota)
    return parts_of(owner, n_clients)


def _own_classes(amount: np.ndarray, quota: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray | None:
    """Samples [N, C] that each client takes from its own classes, quota[i] in all; None if this draw does not fit."""
    left = amount.copy()
    taken = np.zeros((len(quota), len(amount)), np.int64)
    for i in rng.permutation(len(quota)):
        parts = even(int(quota[i]), classes)
        fitting = np.flatnonzero(left >= parts[0])
        weight = left[fitting]
        if np.count_nonzero(weight) >= classes:
            chosen = rng.choice(fitting, classes, replace=False, p=weight / weight.sum())
        else:
            chosen = np.argsort(left, kind="stable")[-classes:]  # the fullest, smallest of them first
            room = left[chosen]
            open_quota = int(quota[i])
            for j in range(classes):
                parts[j] = min(room[j], -(-open_quota // (classes - j)))
                open_quota -= int(parts[j])
            if open_quota:
                return None
        taken[i, chosen] = parts
        left[chosen] -= parts
    return taken
