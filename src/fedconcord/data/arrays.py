"""A federation from arrays: an NPZ file, or what a function of the user's returns."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedconcord.basis.errors import UserError, closest
from fedconcord.data import labels
from fedconcord.data.dataset import Dataset
from fedconcord.data.inputs import Input, natural_of, refuse_too_large, split

SCALED = {"kind": "scale", "divide": 255.0, "mean": [0.0], "std": [1.0]}
KEYS = "x [n, ...] and y [n] or [n, outputs]; also client [n], test_x and test_y"


def read_npz(path: Path, settings: Input) -> Dataset:
    """The federation of an NPZ file with the arrays of `from_arrays`; y and client may have other names.

    Raises:
        UserError: the file is missing, broken, holds pickled objects or not the arrays that are needed.
    """
    return from_arrays(path.stem, load(path, settings.memory), settings, path.name)


def load(path: Path, memory: float | None = None) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, whose headers say how large they are before they are read; no pickle is."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise UserError(f"cannot read {path.name}: it is no archive of arrays; write it with numpy.savez")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:  # which leaves a broken one open
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            refuse_too_large(2 * size, path.name, memory)
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except Exception as error:  # whatever zipfile, zlib and numpy make of damaged bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason:
            raise UserError(
                f"{path.name} holds pickled objects, which could run anything and are never read; save arrays of "
                "numbers or texts"
            ) from None
        raise UserError(f"cannot read {path.name}: {reason[:200]}; write it with numpy.savez") from None


def from_arrays(name: str, arrays: Mapping[str, Any], settings: Input, where: str) -> Dataset:
    """A federation from x, y and perhaps client, test_x and test_y.

    Bytes (uint8) are to be divided by 255; other whole numbers stay symbols, for a model that embeds; the rest is kept.

    Raises:
        UserError: an array is missing or of the wrong shape or kind.
    """
    label, client = (settings.label or ("y",))[0], settings.client or "client"
    needed = ["x", label, *([client] if settings.client else []), *(["test_y"] if "test_x" in arrays else [])]
    for key in needed:
        if key not in arrays:
            near = closest(key, arrays)
            raise UserError(
                f"{where} has no array {key!r}{near}; it has {', '.join(arrays) or 'none'}, needed are {KEYS}"
            )
    x, y = np.asarray(arrays["x"]), np.asarray(arrays[label])
    if len(x.shape) < 2 or len(x) < 2 or len(y.shape) not in (1, 2) or len(y) != len(x):
        raise UserError(f"{where}: x has shape {x.shape} and {label} {y.shape}; needed are {KEYS}")
    target = _targets(y, settings, label, where)
    owner, clients = np.zeros(len(x), np.int64), [""]
    if client in arrays:
        who = np.asarray(arrays[client])
        if who.shape != (len(x),):
            raise UserError(f"{where}: {client} has shape {who.shape}, and one value a sample is needed, ({len(x)},)")
        owner, clients = labels.ordered(labels.collect(client, [_values(who, client, where)], where))
    x = inputs_of(x, where)
    tested = np.zeros(len(x), bool)
    other = None
    if "test_x" in arrays:
        other = np.asarray(arrays["test_x"]), np.asarray(arrays["test_y"])
        if other[0].shape[1:] != x.shape[1:] or len(other[0]) != len(other[1]) or not len(other[0]):
            raise UserError(
                f"{where}: test_x has shape {other[0].shape} and test_y {other[1].shape}; x has {x.shape}, they need "
                f"(m, {', '.join(map(str, x.shape[1:]))}) and (m, ...)"
            )
    else:
        tested = split(owner, len(clients), settings.test_share)
    other_y = None if other is None else _targets(other[1], settings, "test_y", where, target).y
    y_of = labels.divide(target, [label], owner, tested, len(clients), other_y)
    named = client in arrays
    return Dataset(
        name,
        x[~tested],
        y_of.train,
        x[tested] if other is None else inputs_of(other[0], where),
        y_of.test,
        len(target.names),
        natural=natural_of(owner[~tested], len(clients), clients) if named else None,
        target=target.kind,
        client_names=clients if named else None,
        output_names=target.names,
        preprocessing={
            **(SCALED if np.asarray(arrays["x"]).dtype == np.uint8 else {"kind": "none"}),
            "target": y_of.record,
            "said": [target.note] if target.note else [],
        },
        unit=y_of.unit,
    )


def _values(values: np.ndarray, key: str, where: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise UserError(f"{where}: {key} is of type {values.dtype}, neither numbers nor texts; convert it") from None


def columns_of(y: np.ndarray, key: str, where: str) -> list[labels.Values]:
    """Labels [n] or [n, outputs] as columns.

    Raises:
        UserError: a label is missing, or they are neither numbers nor texts.
    """
    columns = [y] if y.ndim == 1 else list(y.T)
    names = [key] if y.ndim == 1 else [f"{key}{k}" for k in range(len(columns))]
    return [
        labels.collect(name, [_values(np.ascontiguousarray(one), name, where)], where)
        for name, one in zip(names, columns, strict=True)
    ]


def _targets(
    y: np.ndarray, settings: Input, key: str, where: str, like: labels.Targets | None = None
) -> labels.Targets:
    columns = columns_of(y, key, where)
    if like is None:
        return labels.targets(columns, settings.target, where)
    return labels.targets(columns, like.kind, where, known=like.names)


def inputs_of(x: np.ndarray, where: str) -> np.ndarray:
    """Inputs as a Dataset holds them: bytes, whole numbers or float32."""
    if x.dtype == np.uint8:
        return x
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int64)
    if np.issubdtype(x.dtype, np.floating):
        return x.astype(np.float32)
    raise UserError(f"{where}: x is of type {x.dtype}, and numbers are needed; encode texts as numbers")
