"""Label mixtures and shares of classes from Dirichlet distributions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, Positive, about
from fedconcord.federation.partitions.base import MAX_DRAWS, check_alpha, check_labels, even, parts_of

CHUNK = 1 << 16  # samples whose class is drawn at once


def dirichlet(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    alpha: Annotated[Positive, about("concentration of the label mixtures; a small one gives few labels")] = 0.1,
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
        drawn = np.bincount(what, minlength=len(amount))
        over = np.flatnonzero(drawn > amount)
        order = np.argsort(what, kind="stable")  # by class, each in order of time
        if not len(over):
            break
        start = np.cumsum(drawn) - drawn
        first = over[order[start[over] + amount[over]].argmin()]
        late = order[start[first] + amount[first] : start[first] + drawn[first]]
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
    alpha: Annotated[Positive, about("concentration of a class; a small one gives it to few clients")] = 0.1,
    min_samples: Annotated[
        Count, about("smallest number of samples of a client; the partition is drawn again until all have it")
    ] = 10,
    numpy_seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**32,
            description="seed of numpy's old generator, in place of the run's; FedNova's released code has 2020",
        ),
    ] = None,
) -> list[np.ndarray]:
    """Each class divided over clients by Dir(alpha), unequal client sizes (FedNova); every sample is used.

    Source: JYWa/FedNova (Wang et al., NeurIPS 2020); see `split_by_proportions`.

    Raises:
        UserError: no draw gives every client `min_samples` samples.
    """
    draw = rng if numpy_seed is None else np.random.RandomState(numpy_seed)
    return split_by_proportions(labels, n_clients, draw, alpha, min_samples)


def split_by_proportions(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator | np.random.RandomState,
    alpha: float,
    min_samples: int,
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
    if not 1 <= min_samples <= mean:
        raise UserError(
            f"partition 'dirichlet_unbalanced' needs 1 <= min_samples <= samples / clients = {n} / {n_clients} = "
            f"{mean:.4g}, given min_samples = {min_samples}; change min_samples or the number of clients"
        )
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
    drawn = np.empty(len(who), np.int16 if len(amount) < 2**15 else np.int64)  # small integers sort by radix
    for start in range(0, len(who), CHUNK):
        edge = edges[who[start : start + CHUNK]]
        u = rng.random((len(edge), 1)) * edge[:, -1:]
        drawn[start : start + CHUNK] = (edge <= u).sum(axis=1)
    return drawn
