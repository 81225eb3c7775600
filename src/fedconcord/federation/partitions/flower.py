"""Partitioners of flwr-datasets, and those written for it: the only file that knows that package.

A partitioner is an object with a settable `dataset` (a Hugging Face `datasets.Dataset`), `num_partitions` and
`load_partition(i)`. It meets the columns `index` and `label`, and its partitions are read back as sample indices.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedconcord.basis import grammar, imports
from fedconcord.basis.errors import UserError, unknown
from fedconcord.federation.partitions.base import check_clients

PACKAGE = "flwr_datasets.partitioner"
INDEX, LABEL = "index", "label"


def flwr_datasets(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    partitioner: Annotated[
        str,
        Field(
            min_length=1,
            description="class of a partitioner with its parameters: one of that package, or as my.module:Class",
        ),
    ] = "IidPartitioner",
) -> list[np.ndarray]:
    """A partitioner of the package flwr-datasets, as in flwr_datasets(DirichletPartitioner(alpha=0.1)).

    Parameters that are not given and that the class has: num_partitions is the number of clients, partition_by the
    column of labels ("label"; "index" numbers the samples), seed is drawn from the run's seed. Not every partitioner
    uses every sample.

    Raises:
        UserError: the package or the class is missing, the class refuses its parameters or the data, or its partitions
            overlap, are empty or not as many as the clients.
    """
    check_clients(len(labels), n_clients)
    call = grammar.parse(partitioner, "partitioner")
    factory = _class(call.name)
    known = inspect.signature(factory).parameters
    defaults = {"num_partitions": n_clients, "partition_by": LABEL, "seed": int(rng.integers(2**31))}
    arguments = {name: value for name, value in defaults.items() if name in known and name not in call.kwargs}
    if call.args:
        raise UserError(f"partitioner {call.name} takes parameters by name, given {call}; write name=value")
    try:
        instance = factory(**{**arguments, **call.kwargs})
    except (TypeError, ValueError) as error:
        raise UserError(f"partitioner {partitioner} refuses its parameters: {error}") from error
    parts = from_partitioner(instance, labels)
    if len(parts) != n_clients:
        raise UserError(
            f"partitioner {partitioner} makes {len(parts)} partitions for {n_clients} clients, which must agree"
        )
    return parts


def from_partitioner(partitioner: Any, labels: np.ndarray) -> list[np.ndarray]:
    """The samples [n_i] int64, sorted, of each partition that a partitioner makes of labels [n] or targets [n, k].

    The object must not have a dataset yet. Use it as `Dataset.natural` to train on it.

    Raises:
        UserError: it refuses the data, or its partitions overlap or are empty.
    """
    datasets = _module("datasets")
    column = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    name = type(partitioner).__name__
    try:
        partitioner.dataset = datasets.Dataset.from_dict({INDEX: np.arange(len(labels)), LABEL: column})
        loaded = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
        parts = [np.sort(np.asarray(part[INDEX][:], np.int64)) for part in loaded]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"partitioner {name} cannot divide these data: {error}") from error
    empty = [i for i, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise UserError(f"partitioner {name} leaves client {empty[0]} without samples; change its parameters")
    if len(np.unique(np.concatenate(parts))) < sum(map(len, parts)):
        raise UserError(f"partitioner {name} gives a sample to two clients, which a partition may not")
    return parts


def _class(name: str) -> Any:
    """The class of a name: of the package, or module:Class."""
    if imports.is_path(name):
        return imports.load(name, "partitioner")
    package = _module(PACKAGE)
    if not inspect.isclass(getattr(package, name, None)):
        names = [n for n, thing in vars(package).items() if inspect.isclass(thing) and n.endswith("Partitioner")]
        raise unknown("partitioner", name, names)
    return getattr(package, name)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"cannot import {name} ({error}); partitioners need the package flwr-datasets: pip install flwr-datasets"
        ) from error
