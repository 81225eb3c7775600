"""Partitions that draw for every client which classes it holds: from Dirichlet distributions, or a few of its own."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.federation.partitions.simple import MAX_DRAWS, check_alpha, check_labels, check_least, even, parts_of
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count, Fraction, Positive, about

CHUNK = 1 << 16  # samples whose class is drawn at once
Mixtures = Annotated[Positive, about("concentration of the label mixtures; a small one gives few labels")]
Spread = Annotated[Positive, about("concentration of a class; a small one gives it to few clients")]
LEAST = "smallest number of samples of a client; the partition is drawn again until all have it"
OLD = "seed of numpy's old generator, in place of the run's; FedNova's released code has 2020"
OldSeed = Annotated[int | None, Field(ge=0, lt=2**32, description=OLD)]
Share = Annotated[Fraction, about("fraction of a client's samples from its own classes")]
Classes = Annotated[Count, about("number of a client's own classes")]


def dirichlet(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, alpha: Mixtures = 0.1
) -> list[np.ndarray]:
    """Label mixtures from Dir(alpha), equal client sizes (FedDyn, A-FedPD): sizes differ by at most 1.

    Each client's class prior is drawn from Dir(alpha, .., alpha). Then, until all samples are used: draw a client that
    has room, uniformly; draw a class from its prior, again while that class is used up; give it a sample of the class.
    A client whose prior has no mass on what is left draws in proportion to the classes' sizes.

    Source: alpemreacar/FedDyn (Acar et al., ICLR 2021), drawn there sample by sample; here the same law by blocks.
    """
    check_labels("dirichlet", labels, n_clients)
    check_alpha("dirichlet", alpha)
    _, y, amount = np.unique(labels, return_inverse=True, return_counts=True)
    sizes = even(len(labels), n_clients)
    prior = rng.dirichlet(np.full(len(amount), float(alpha)), size=n_clients)

    # A uniform draw among the clients with room is the order of independent Poisson clocks, each stopped when its
    # client is full.
    clock = rng.standard_exponential((n_clients, int(sizes[0]))).cumsum(axis=1)
    clock = clock[np.arange(clock.shape[1]) < sizes[:, None]]
    who = np.repeat(np.arange(n_clients), sizes)[np.argsort(clock, kind="stable")]

    # Draw all classes as if none ran out, then redraw what lies beyond the end of a class, the class whose end is
    # passed first before the others: all that is redrawn then comes after the classes closed so far were used up.
    available = np.ones(len(amount), bool)
    what = _draw_classes(prior, amount, available, who, rng)
    while True:
        totals = np.bincount(what, minlength=len(amount))
        over = np.flatnonzero(totals > amount)
        order = np.argsort(what, kind="stable")  # by class, each in order of time
        if not len(over):
            break
        start = np.cumsum(totals) - totals
        first = over[order[start[over] + amount[over]].argmin()]
        late = order[start[first] + amount[first] : start[first] + totals[first]]
        available[first] = False
        what[late] = _draw_classes(prior, amount, available, who[late], rng)

    shuffled = rng.permutation(len(labels))
    owner = np.empty(len(labels), np.int64)
    owner[shuffled[np.argsort(y[shuffled], kind="stable")]] = who[order]
    return parts_of(owner, n_clients)


def dirichlet_unbalanced(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    alpha: Spread = 0.1,
    min_samples: Annotated[Count, about(LEAST)] = 10,
    numpy_seed: OldSeed = None,
) -> list[np.ndarray]:
    """Each class divided over clients by Dir(alpha), unequal client sizes (FedNova); every sample is used.

    Source: JYWa/FedNova (Wang et al., NeurIPS 2020); see `split_by_proportions`.

    Raises:
        UserError: no draw gives every client `min_samples` samples.
    """
    draw = rng if numpy_seed is None else np.random.RandomState(numpy_seed)
    return split_by_proportions(labels, n_clients, draw, alpha, min_samples)


def split_by_proportions(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator | np.random.RandomState, alpha: float, min_samples: int
) -> list[np.ndarray]:
    """FedNova's split, draw for draw: np.random.RandomState(2020) and CIFAR-10's label counts give the paper's sizes.

    Class after class: shuffle its samples; q ~ Dir(alpha, .., alpha) over clients; set q_i = 0 where client i has n / N
    samples or more; cut the samples at the cumulative sums of q / sum(q). All again until every client has
    `min_samples`.

    Raises:
        UserError: no draw of `MAX_DRAWS` gives every client `min_samples` samples.
    """
    check_labels("dirichlet_unbalanced", labels, n_clients)
    check_alpha("dirichlet_unbalanced", alpha)
    n = len(labels)
    mean = n / n_clients
    check_least("dirichlet_unbalanced", n, n_clients, min_samples)
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    owner = np.empty(n, np.int64)
    smallest = 0  # of the best draw, for the sentence
    for _ in range(MAX_DRAWS):
        sizes = np.zeros(n_clients, np.int64)
        for samples in members:
            shuffled = samples.copy()
            rng.shuffle(shuffled)
            q = rng.dirichlet(np.repeat(alpha, n_clients)) * (sizes < mean)
            total = q.sum()
            if not total > 0:  # a tiny alpha can put all of a class on full clients
                break
            cuts = (np.cumsum(q / total) * len(samples)).astype(np.int64)[:-1]
            shares = np.diff(cuts, prepend=0, append=len(samples))
            owner[shuffled] = np.repeat(np.arange(n_clients), shares)
            sizes += shares
        else:
            if sizes.min() >= min_samples:
                return parts_of(owner, n_clients)
            smallest = max(smallest, int(sizes.min()))
    raise UserError(
        f"partition 'dirichlet_unbalanced' with alpha = {alpha} found no division of {n} samples over {n_clients} "
        f"clients with at least {min_samples} each (best of {MAX_DRAWS} draws: {smallest}); raise alpha, lower "
        f"min_samples or the number of clients, or use 'dirichlet'"
    )


def _draw_classes(
    prior: np.ndarray, amount: np.ndarray, available: np.ndarray, who: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """One class for each entry of `who`, from that client's prior [N, C] limited to the available classes."""
    weight = prior * available
    weight[weight.sum(axis=1) == 0] = amount * available
    edges = (weight / weight.sum(axis=1, keepdims=True)).cumsum(axis=1)
    classes = np.empty(len(who), np.int16 if len(amount) < 2**15 else np.int64)  # small integers sort by radix
    for start in range(0, len(who), CHUNK):
        edge = edges[who[start : start + CHUNK]]
        u = rng.random((len(edge), 1)) * edge[:, -1:]
        classes[start : start + CHUNK] = (edge <= u).sum(axis=1)
    return classes


def dominant(
    labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, share: Share = 0.8, classes: Classes = 2
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
        shares = _own_classes(amount, quota, classes, rng)
        if shares is not None:
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
    for samples, parts in zip(np.split(by_class, np.cumsum(amount)[:-1]), shares.T, strict=True):
        owner[samples[: parts.sum()]] = np.repeat(clients, parts)
    rest = np.flatnonzero(owner < 0)
    owner[rng.permutation(rest)] = np.repeat(clients, sizes - quota)
    return parts_of(owner, n_clients)


def _own_classes(amount: np.ndarray, quota: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray | None:
    """Samples [N, C] that each client takes from its own classes, quota[i] in all; None if this draw does not fit."""
    left = amount.copy()
    shares = np.zeros((len(quota), len(amount)), np.int64)
    for i in rng.permutation(len(quota)):
        parts = even(int(quota[i]), classes)
        fitting = np.flatnonzero(left >= parts[0])
        weight = left[fitting]
        if np.count_nonzero(weight) >= classes:
            few = rng.choice(fitting, classes, replace=False, p=weight / weight.sum())
        else:
            few = np.argsort(left, kind="stable")[-classes:]  # the fullest, smallest of them first
            room = left[few]
            open_quota = int(quota[i])
            for j in range(classes):
                parts[j] = min(room[j], -(-open_quota // (classes - j)))
                open_quota -= int(parts[j])
            if open_quota:
                return None
        shares[i, few] = parts
        left[few] -= parts
    return shares
