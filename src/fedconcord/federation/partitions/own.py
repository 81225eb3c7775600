"""Partitions of the user's own: a function, the samples of each client, or an object that makes partitions, of
flwr-datasets or written for it. This is the only file that knows that package.

A partitioner is an object with a settable `dataset` (a Hugging Face `datasets.Dataset`), `num_partitions` and
`load_partition(i)`. It meets the columns `index` and `label`, and its partitions are read back as sample indices.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedconcord.federation.partitions.simple import check_clients
from fedconcord.support import grammar, imports
from fedconcord.support.errors import UserError, foreign, unknown
from fedconcord.support.imports import with_options

PACKAGE = "flwr_datasets.partitioner"
INDEX, LABEL = "index", "label"
CLASS = "class of a partitioner with its parameters: one of that package, or as my.module:Class"


def flwr_datasets(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    /,
    partitioner: Annotated[str, Field(min_length=1, description=CLASS)] = "IidPartitioner",
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
    parameters = inspect.signature(factory).parameters
    defaults = {"num_partitions": n_clients, "partition_by": LABEL, "seed": int(rng.integers(2**31))}
    arguments = {name: value for name, value in defaults.items() if name in parameters and name not in call.kwargs}
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
        parts = [np.asarray(part[INDEX][:], np.int64) for part in loaded]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"partitioner {name} cannot divide these data: {error}") from error
    return _checked(parts, len(labels), len(parts), f"partitioner {name}")


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


LEADING = ("labels", "n_clients", "rng")  # what the program gives to a partition


def by_function(function: Callable[..., Any], path: str) -> Callable[..., list[np.ndarray]]:
    """A function (labels [n] or [n, k], n_clients, rng, its options) -> the samples of each client, which are checked.

    Its attribute `clients` says how many there are, where it cannot divide among another number.
    """
    called = with_options(function, path, "partition", LEADING)

    def divide(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, **options: Any) -> list[np.ndarray]:
        check_clients(len(labels), n_clients)
        with foreign(f"partition {path} failed for {len(labels)} samples and {n_clients} clients"):
            parts = called(labels, n_clients, rng, **options)
        return _checked(parts, len(labels), n_clients, f"partition {path}")

    divide.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    divide.clients = getattr(function, "clients", None)  # type: ignore[attr-defined]
    return divide


def of_samples(parts: Sequence[Any]) -> Callable[..., Any]:
    """The partition that gives client i the samples `parts[i]`, whatever the seed."""
    partition = partial(_listed, parts)
    partition.clients = len(parts)  # type: ignore[attr-defined]
    return partition


def of_partitioner(partitioner: Any) -> Callable[..., list[np.ndarray]]:
    """The partition that an object with `load_partition` makes, each time from a copy that has met no data."""
    return partial(_divided_by_copy, partitioner)


def _listed(parts: Sequence[Any], labels: np.ndarray, n_clients: int, rng: np.random.Generator) -> Sequence[Any]:
    return parts


def _divided_by_copy(
    partitioner: Any, labels: np.ndarray, n_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    return from_partitioner(copy.deepcopy(partitioner), labels)


def _checked(parts: Any, samples: int, clients: int, where: str) -> list[np.ndarray]:
    """Sorted int64 arrays, disjoint and none empty."""
    try:
        arrays = [np.asarray(part) for part in parts]
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} gives no arrays of samples, one a client: {error}") from None
    if len(arrays) != clients:
        raise UserError(f"{where} has {len(arrays)} clients, and clients is {clients}; make them agree")
    for i, part in enumerate(arrays):
        if part.ndim == 1 and not len(part):
            raise UserError(f"{where} leaves client {i} without samples; change its parameters")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            shape = f"{part.dtype} of shape {part.shape}"
            raise UserError(f"{where}: client {i} has {shape}; give each at least one sample, as whole numbers [n_i]")
        if part.min() < 0 or part.max() >= samples:
            raise UserError(f"{where}: client {i} has sample {part.max()}, and there are 0 to {samples - 1}")
    arrays = [np.sort(part.astype(np.int64)) for part in arrays]
    if len(np.unique(np.concatenate(arrays))) < sum(map(len, arrays)):
        raise UserError(f"{where} gives a sample twice; no two clients may share one")
    return arrays
