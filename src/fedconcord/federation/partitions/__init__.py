"""Which client holds which training sample.

A partition takes the labels [n], the number of clients and a generator, which the program gives, and the user's
options, each annotated with its range and meaning. It returns one sorted int64 array of sample indices for each client;
the arrays are disjoint and none is empty. `iid`, `power_law` and `quantity` do not look at the labels and divide
regression and multi-label data [n, k] as well; the others refuse those. To add one: write the function and list it in
`PARTITIONS`; one of your own goes by import path, and what it returns is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedconcord.basis.imports import Open
from fedconcord.federation.partitions.base import LABEL_FREE, counts
from fedconcord.federation.partitions.by_label import groups, shards, sorted_fraction
from fedconcord.federation.partitions.dirichlet import dirichlet, dirichlet_unbalanced, split_by_proportions
from fedconcord.federation.partitions.dominant import dominant
from fedconcord.federation.partitions.flower import flwr_datasets, from_partitioner
from fedconcord.federation.partitions.own import by_function
from fedconcord.federation.partitions.sizes import iid, power_law, quantity

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "shards": shards,
    "groups": groups,
    "sorted_fraction": sorted_fraction,
    "dirichlet": dirichlet,
    "dirichlet_unbalanced": dirichlet_unbalanced,
    "dominant": dominant,
    "power_law": power_law,
    "quantity": quantity,
    "flwr_datasets": flwr_datasets,
}
"""Divisions of data by name; a factory takes labels, number of clients and generator, then its parameters."""


def partitions() -> Mapping[str, Callable[..., list[np.ndarray]]]:
    """`PARTITIONS`, and functions of your own by import path."""
    return Open(PARTITIONS, "partition", by_function)


__all__ = [
    "LABEL_FREE",
    "PARTITIONS",
    "counts",
    "dirichlet",
    "dirichlet_unbalanced",
    "dominant",
    "flwr_datasets",
    "from_partitioner",
    "groups",
    "iid",
    "partitions",
    "power_law",
    "quantity",
    "shards",
    "sorted_fraction",
    "split_by_proportions",
]
