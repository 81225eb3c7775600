"""Data given from Python: arrays, data sets of torch, or a mapping of clients, as the arrays of `data.arrays`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.data.dataset import Dataset

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
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | tuple | list):
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
