"""Data of the user's own: what the settings say of it, arrays given from Python, and which samples are tested on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.federation.data.dataset import Dataset, Target
from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.support.errors import UserError

FEW = 20  # whole numbers with at most so many different values are taken for classes


ENDINGS = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz")  # of files that are known without being opened


def is_file(text: str) -> bool:
    """Whether `--data` names a file or a folder rather than a data set."""
    return "/" in text or Path(text).suffix.lower() in ENDINGS or Path(text).expanduser().exists()


class Input(NamedTuple):
    """The settings `input.*`."""

    label: tuple[str, ...] = ()  # columns, or the key of an array
    client: str | None = None
    target: Target | None = None  # guessed, and said, if none
    test: str | None = None  # where the test samples are; a share of each client's samples if none
    test_share: float = 0.2
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # columns of numbers that are names
    missing: tuple[str, ...] = ()  # texts of no value, beside `sources.MISSING`
    statistics: str | None = None  # file of given statistics
    image_size: int | None = None  # side in pixels
    memory: float | None = None  # GiB; half of the machine's if none
    person: str | None = None  # column, or key of an array, that says whose a row is


def refuse_too_large(need: int, what: str, limit: float | None) -> None:
    """Refuse data that would not fit, before they are read."""
    have = int(limit * 2**30) if limit is not None else machine_memory() // 2
    if need > have:
        whose = "input.memory allows" if limit is not None else "half of this machine's memory is"
        raise UserError(
            f"{what} needs {need / 2**30:.3g} GiB in memory and {whose} {have / 2**30:.3g} GiB; leave columns or "
            "samples out, or set input.memory"
        )


def machine_memory() -> int:
    """Bytes of physical memory; without bound where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**62


def split(owner: np.ndarray, clients: int, share: float) -> np.ndarray:
    """Which samples [n] are tested on: round(share * n_i) of each client's, never all of them, keyed by the client.

    The same for every seed of a run, so that test figures of different seeds compare.

    Raises:
        UserError: no client has a sample to spare.
    """
    counts, tested = np.bincount(owner, minlength=clients), np.zeros(len(owner), bool)
    for i, places in enumerate(np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])):
        tested[places[held_out(i, len(places), share)]] = True
    if not tested.any():
        raise UserError(
            f"input.test_share {share:g} leaves no test sample of {len(owner)} samples at {clients} clients; raise it, "
            "or give test data of their own (--test-data)"
        )
    return tested


def held_out(client: int, samples: int, share: float) -> np.ndarray:
    """Which of a client's samples, by their places, are tested on."""
    return generator(0, Purpose.SPLIT, client=client).permutation(samples)[: number_held_out(samples, share)]


def number_held_out(samples: int, share: float) -> int:
    """How many of a client's samples are tested on: round(share * samples), never all of them."""
    return max(0, min(round(share * samples), samples - 1))


def numbered(*keys: np.ndarray) -> np.ndarray:
    """Each of n combinations of keys [n] as a number [n], from 0 in the order in which they first come."""
    _, first, code = np.unique(np.stack(keys), axis=1, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[code.reshape(-1)])


def together(persons: np.ndarray, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The samples of each client where a person's rows are all at the client that has the first of them.

    Args:
        persons: [n] whose each sample is.
        parts: N arrays of sample indices.
    """
    owner = np.full(len(persons), -1)
    for i, part in enumerate(parts):
        owner[part] = i
    _, first, code = np.unique(persons, return_index=True, return_inverse=True)
    return [np.flatnonzero(owner[first[code.reshape(-1)]] == i) for i in range(len(parts))]


def hold_out(parts: Sequence[np.ndarray], share: float, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(training samples, validation samples) of each client, both in the order of `parts`.

    A client of n >= 2 samples sets apart round(share n) of them, at least 1 and at most n - 1, drawn by the key (seed,
    VALIDATION, client); a client with a single sample trains on it and sets none apart.

    Args:
        parts: N arrays of sample indices.
        share: in (0, 1).
    """
    training, apart_of = [], []
    for i, part in enumerate(parts):
        count = min(max(1, round(share * len(part))), len(part) - 1)
        apart = np.zeros(len(part), bool)
        apart[generator(seed, Purpose.VALIDATION, client=i).permutation(len(part))[:count]] = True
        training.append(part[~apart])
        apart_of.append(part[apart])
    return training, apart_of


FORMS = (
    "(X, y), a mapping of clients to (X, y), a mapping of arrays with x and y, a torch Dataset, a pair (train, test) "
    "of these, or a fedconcord.Dataset"
)


def arrays_of(data: Any) -> Dataset | Mapping[str, np.ndarray]:
    """The data as a Dataset, if they are one, else as arrays x, y and perhaps client, test_x and test_y.

    Args:
        data: `FORMS`; what is not an array is made one, tensors by copying them to the host.

    Raises:
        UserError: it is none of these, or its samples differ in shape.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping) and _is_array(data.get("x")):
        return {name: _array(values, name) for name, values in data.items()}
    if _is_pair(data) and not _is_array(data[0]):
        train, test = (_part(one) for one in data)
        return {**train, "test_x": test["x"], "test_y": test["y"]}
    return _part(data)


def _part(data: Any) -> dict[str, np.ndarray]:
    """x, y and perhaps client."""
    if isinstance(data, Mapping):
        parts = {str(name): _part(one) for name, one in data.items()}
        if not parts:
            raise UserError("data has no clients; give a mapping of clients to (X, y)")
        if empty := [name for name, part in parts.items() if not len(part["x"])]:
            raise UserError(f"data: client {empty[0]!r} has no samples; leave it out")
        shapes = {name: part["x"].shape[1:] for name, part in parts.items()}
        first = next(iter(shapes))
        for name, shape in shapes.items():
            if shape != shapes[first]:
                raise UserError(
                    f"data: samples of client {name!r} have shape {shape} and those of {first!r} {shapes[first]}; make "
                    "them alike"
                )
        who = np.repeat(np.array(list(parts)), [len(part["x"]) for part in parts.values()])
        return {key: np.concatenate([part[key] for part in parts.values()]) for key in ("x", "y")} | {"client": who}
    if _is_pair(data) and _is_array(data[0]):
        return {"x": _array(data[0], "X"), "y": _array(data[1], "y")}
    is_table = hasattr(data, "columns")  # of pandas or polars, whose items are columns and no samples
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if is_indexed and not (is_table or isinstance(data, str | tuple | list)):
        tensors = getattr(data, "tensors", None)  # of a TensorDataset, at once
        if tensors is None:
            samples = [data[i] for i in range(len(data))]
            if any(not isinstance(sample, tuple | list) or len(sample) != 2 for sample in samples):
                raise UserError(f"data: a sample of {type(data).__name__} is no pair (x, y); give {FORMS}")
            tensors = [_stacked([sample[k] for sample in samples], name) for k, name in ((0, "x"), (1, "y"))]
        return {"x": _array(tensors[0], "x"), "y": _array(tensors[1], "y")}
    raise UserError(f"data is {type(data).__name__}, which is no data set; give {FORMS}")


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2


def _is_array(data: Any) -> bool:
    """Also lists of numbers, but not a list of two arrays."""
    return hasattr(data, "__array__") or (isinstance(data, list) and bool(data) and not hasattr(data[0], "__array__"))


def _stacked(values: list[Any], name: str) -> np.ndarray:
    arrays = [_array(value, name) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        a, b = sorted(shapes)[:2]
        raise UserError(f"data: samples of {name} have the shapes {a} and {b}; make them alike")
    return np.stack(arrays)


def _array(values: Any, name: str) -> np.ndarray:
    """The values as an array of its own memory order."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise UserError(f"data: {name} cannot be made an array: {error}") from None
