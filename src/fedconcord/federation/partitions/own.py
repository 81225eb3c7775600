"""Partitions of the user's own: a function, an object that makes partitions, or the samples of each client."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.basis.imports import with_options
from fedconcord.federation.partitions.base import check_clients
from fedconcord.federation.partitions.flower import from_partitioner

LEADING = ("labels", "n_clients", "rng")  # what the program gives to a partition


def by_function(function: Callable[..., Any], path: str) -> Callable[..., list[np.ndarray]]:
    """A function (labels [n] or [n, k], n_clients, rng, its options) -> the samples of each client, which are checked.

    Its attribute `clients` says how many there are, where it cannot divide among another number.
    """
    called = with_options(function, path, "partition", LEADING)

    def divide(labels: np.ndarray, n_clients: int, rng: np.random.Generator, /, **options: Any) -> list[np.ndarray]:
        check_clients(len(labels), n_clients)
        try:
            parts = called(labels, n_clients, rng, **options)
        except UserError:
            raise
        except Exception as error:  # whatever somebody else's function raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"partition {path} failed for {len(labels)} samples and {n_clients} clients: {why}"
            ) from error
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
        if part.ndim != 1 or not len(part) or part.dtype.kind not in "iu":
            shape = f"{part.dtype} of shape {part.shape}"
            raise UserError(f"{where}: client {i} has {shape}; give each at least one sample, as whole numbers [n_i]")
        if part.min() < 0 or part.max() >= samples:
            raise UserError(f"{where}: client {i} has sample {part.max()}, and there are 0 to {samples - 1}")
    arrays = [np.sort(part.astype(np.int64)) for part in arrays]
    if len(np.unique(np.concatenate(arrays))) < sum(map(len, arrays)):
        raise UserError(f"{where} gives a sample twice; no two clients may share one")
    return arrays
