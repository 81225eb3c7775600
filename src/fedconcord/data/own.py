"""Data of the user's own: a path (a table, arrays, images, a saved data set), or what a function returns."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedconcord.basis.errors import UserError, closest
from fedconcord.basis.objects import name_of
from fedconcord.data import labels
from fedconcord.data.dataset import Dataset, scaling
from fedconcord.data.images import has_images, read_folder, read_image_table
from fedconcord.data.inputs import Input, refuse_too_large, split
from fedconcord.data.sources import open_table
from fedconcord.data.tables import read_table


def read_own(path: Path, settings: Input) -> Dataset:
    """The federation at a path.

    Raises:
        UserError: there is nothing, or not what its ending says, or it cannot be a federation.
    """
    if path.suffix.lower() == ".npz":
        return from_arrays(path.stem, load(path, settings.memory), settings, path.name)
    if not path.is_dir():
        return read_table(path, settings)
    if (path / "dataset_dict.json").is_file():
        return read_own(*_parts(path, settings))
    if (path / "state.json").is_file():
        source = open_table(path)
        return read_image_table(source, settings) if source.images else read_table(path, settings)
    return read_folder(path, settings) if has_images(path) else read_table(path, settings)


def _parts(path: Path, settings: Input) -> tuple[Path, Input]:
    """The train and test parts of a saved DatasetDict."""
    try:
        parts = list(json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path / 'dataset_dict.json'} ({type(error).__name__}: {error})") from None
    if "train" not in parts:
        raise UserError(f"the saved data set {path} has the parts {', '.join(parts)} and no train; name one of them")
    test = str(path / "test") if "test" in parts and settings.test is None else settings.test
    return path / "train", settings._replace(test=test)


def checked(value: Any, settings: Input, where: str) -> Dataset:
    """What a function of the user's returned, checked: a Dataset, or a mapping of arrays.

    Raises:
        UserError: it is neither, or its arrays do not fit together.
    """
    if isinstance(value, Mapping):
        return from_arrays(name_of(where), value, settings, where)
    if not isinstance(value, Dataset):
        raise UserError(
            f"data {where} returned {type(value).__name__}; return a fedconcord.Dataset or a dict of arrays"
        )
    for part, x, y in (("train", value.train_x, value.train_y), ("test", value.test_x, value.test_y)):
        shape = (len(x),) if value.target == "class" else (len(x), value.classes)
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or not len(x) or y.shape != shape:
            given_shape = getattr(y, "shape", type(y).__name__)
            raise UserError(
                f"data {where}: {part}_y is {given_shape}; for {len(x)} samples it must be an array {shape}"
            )
    for i, samples in enumerate(value.natural or []):
        if not len(samples) or samples.min() < 0 or samples.max() >= len(value.train_x):
            raise UserError(f"data {where}: client {i} has no sample, or one that is not there")
    return value


SCALED = scaling(255.0, [0.0], [1.0])  # of bytes
KEYS = "x [n, ...] and y [n] or [n, outputs]; also client [n], test_x and test_y"


def load(path: Path, memory: float | None = None) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, whose headers say how large they are before they are read; no pickle is.

    Raises:
        UserError: the file is missing, broken, or holds pickled objects.
    """
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
    also = [*([client] if settings.client else []), *(["test_y"] if "test_x" in arrays else [])]
    x, y = pair_of(arrays, label, where, also)
    target = _targets(y, settings, label, where)
    owner, who = np.zeros(len(x), np.int64), None
    if client in arrays:
        of = np.asarray(arrays[client])
        if of.shape != (len(x),):
            raise UserError(f"{where}: {client} has shape {of.shape}, and one value a sample is needed, ({len(x)},)")
        owner, who = labels.ordered(labels.collect(client, [_values(of, client, where)], where))
    bytes_ = x.dtype == np.uint8
    x = inputs_of(x, where)
    tested, other = np.zeros(len(x), bool), None
    if "test_x" in arrays:
        test_x, test_y = np.asarray(arrays["test_x"]), np.asarray(arrays["test_y"])
        if test_x.shape[1:] != x.shape[1:] or len(test_x) != len(test_y) or not len(test_x):
            raise UserError(
                f"{where}: test_x has shape {test_x.shape} and test_y {test_y.shape}; x has {x.shape}, they need "
                f"(m, {', '.join(map(str, x.shape[1:]))}) and (m, ...)"
            )
        test_x, other = inputs_of(test_x, where), _targets(test_y, settings, "test_y", where, target)
    else:
        tested = split(owner, len(who or [""]), settings.test_share)
        test_x = x[tested]
    said = [target.note] if target.note else []
    preprocessing = {**(SCALED if bytes_ else {"kind": "none"}), "target": {}, "said": said}
    return labels.federation(name, (x[~tested], test_x), target, [label], owner, who, tested, preprocessing, other)


def pair_of(
    arrays: Mapping[str, Any], label: str, where: str, also: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """x [n, ...] and y [n] or [n, outputs] of some arrays, which must have those in `also` as well."""
    for key in ("x", label, *also):
        if key not in arrays:
            near = closest(key, arrays)
            raise UserError(
                f"{where} has no array {key!r}{near}; it has {', '.join(arrays) or 'none'}, needed are {KEYS}"
            )
    x, y = np.asarray(arrays["x"]), np.asarray(arrays[label])
    if len(x.shape) < 2 or len(x) < 2 or len(y.shape) not in (1, 2) or len(y) != len(x):
        raise UserError(f"{where}: x has shape {x.shape} and {label} {y.shape}; needed are {KEYS}")
    return x, y


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
