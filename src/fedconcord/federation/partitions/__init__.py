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

from fedconcord.federation.partitions.mixtures import dirichlet, dirichlet_unbalanced, dominant
from fedconcord.federation.partitions.own import by_function, flwr_datasets
from fedconcord.federation.partitions.simple import groups, iid, power_law, quantity, shards, sorted_fraction
from fedconcord.support.factories import by_name
from fedconcord.support.imports import Open

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = by_name(
    iid, shards, groups, sorted_fraction, dirichlet, dirichlet_unbalanced, dominant, power_law, quantity, flwr_datasets
)
"""Divisions of data by name; a factory takes labels, number of clients and generator, then its parameters."""


def partitions() -> Mapping[str, Callable[..., list[np.ndarray]]]:
    """`PARTITIONS`, and functions of your own by import path."""
    return Open(PARTITIONS, "partition", by_function)
