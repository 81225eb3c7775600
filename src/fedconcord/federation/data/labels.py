"""Targets from label columns: classes, numbers or labels that may hold together; guessed where it is not said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedconcord.federation.data.dataset import Dataset, Target
from fedconcord.federation.data.inputs import FEW, numbered
from fedconcord.federation.data.preprocess import mean_of, scale_of, squares, sums
from fedconcord.federation.data.sources import numbers
from fedconcord.support.errors import UserError

NO, YES = ("false", "no"), ("true", "yes")


class Values(NamedTuple):
    """A label column: the number of its value in each row, and the values."""

    name: str
    code: np.ndarray  # [n] int64
    values: pa.Array  # [different values]


class Targets(NamedTuple):
    """What is learnt."""

    kind: Target
    y: np.ndarray  # [n] int64 or [n, outputs] float64
    names: list[str]  # of the outputs
    note: str | None  # a sentence on the guess


def collect(name: str, chunks: Sequence[pa.Array], where: str) -> Values:
    """A label column from its parts.

    Raises:
        UserError: a label is missing.
    """
    parts = [chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode() for chunk in chunks]
    whole = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    lacking = whole.null_count
    if lacking:
        row = int(np.flatnonzero(np.asarray(whole.is_null()))[0]) + 1
        raise UserError(
            f"{where}: {lacking} of {len(whole)} rows have no value in {name!r}, row {row} first; drop these rows"
        )
    return Values(name, np.asarray(whole.indices, np.int64), whole.dictionary)


def _values(values: np.ndarray, key: str, where: str) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)  # NaN is no value
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise UserError(f"{where}: {key} is of type {values.dtype}, neither numbers nor texts; convert it") from None


def columns_of(y: np.ndarray, key: str, where: str) -> list[Values]:
    """Labels [n] or [n, outputs] as columns.

    Raises:
        UserError: a label is missing, or they are neither numbers nor texts.
    """
    columns = [y] if y.ndim == 1 else list(y.T)
    names = [key] if y.ndim == 1 else [f"{key}{k}" for k in range(len(columns))]
    return [
        collect(name, [_values(np.ascontiguousarray(one), name, where)], where)
        for name, one in zip(names, columns, strict=True)
    ]


def of_rows(arrays: Mapping[str, Any], key: str, rows: int, where: str) -> Values:
    """What an array [n] says of each sample: its client, or its person.

    Raises:
        UserError: it is not there, or has not one value a sample.
    """
    shape = np.shape(arrays.get(key, ()))
    if shape != (rows,):
        raise UserError(f"{where}: {key} has shape {shape}, and one value a sample is needed, ({rows},)")
    return collect(key, [_values(np.asarray(arrays[key]), key, where)], where)


def targets(
    columns: Sequence[Values],
    wanted: Target | None,
    where: str,
    named: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
) -> Targets:
    """The targets of all rows.

    Args:
        named: names of the classes 0, 1, ..., where the file has them.
        known: the names of the training data's classes, for test data.

    Raises:
        UserError: the values do not fit the kind, or there is one class only.
    """
    kind, note = wanted, None
    if kind is None:
        kind, why = _guess(columns, named)
        listed = ", ".join(c.name for c in columns)
        note = f"{listed}: {why}, taken as {MEANT[kind]}; --target-kind says otherwise"
    if kind == "tokens":
        raise UserError(
            f"{where}: a class for each token comes in arrays x and y [n, L]; give an NPZ file or a function"
        )
    if kind != "class":
        read = _numbers if kind == "number" else _yes
        return Targets(kind, np.stack([read(c, where)[c.code] for c in columns], 1), [c.name for c in columns], note)
    if len(columns) > 1:
        raise UserError(f"{where}: classes come from one label column, given {len(columns)}; use target kind labels")
    return _classes(columns[0], note, where, named, known)


MEANT: dict[Target, str] = {"class": "classes", "number": "numbers", "labels": "labels that may hold together"}


def _guess(columns: Sequence[Values], named: Sequence[str] | None) -> tuple[Target, str]:
    values_of = [numbers(c.values) for c in columns]
    if len(columns) > 1:
        if all(_as_bits(c) is not None for c in columns):
            return "labels", f"{len(columns)} columns of 0 and 1"
        return "number", f"{len(columns)} columns"
    values = values_of[0]
    if values is None or named or pa.types.is_boolean(columns[0].values.type):
        return "class", f"{len(columns[0].values)} different values"
    if len(values) <= FEW and np.all(values == np.round(values)):
        return "class", f"{len(values)} different whole numbers"
    return "number", f"{len(values)} different numbers"


def _numbers(c: Values, where: str) -> np.ndarray:
    values = numbers(c.values)
    if values is None:
        texts = [v for v in c.values.to_pylist() if numbers(pa.array([v])) is None]
        raise UserError(
            f"{where}: label column {c.name!r} has {texts[0]!r}, which is no number; classes come from one label "
            "column, several are numbers, or 0 and 1 each"
        )
    if not np.isfinite(values).all():
        raise UserError(f"{where}: label column {c.name!r} has a value that is not finite; drop such rows")
    return values


def _as_bits(c: Values) -> np.ndarray | None:
    """The values as 0.0 and 1.0, or None."""
    values = numbers(c.values)
    if values is None:
        words = [str(v).lower() for v in c.values.to_pylist()]
        if not set(words) <= {*NO, *YES}:
            return None
        return np.array([float(word in YES) for word in words])
    return values if np.isin(values, (0.0, 1.0)).all() else None


def _yes(c: Values, where: str) -> np.ndarray:
    bits = _as_bits(c)
    if bits is None:
        other = [v for v in c.values.to_pylist() if str(v).lower() not in {*NO, *YES, "0", "1", "0.0", "1.0"}]
        raise UserError(f"{where}: label column {c.name!r} has {str(other[0])!r}; labels are 0 or 1, no or yes")
    return bits


def ordered(c: Values) -> tuple[np.ndarray, list[str]]:
    """A column as numbers [n] of its sorted values, and their texts."""
    values, listed = numbers(c.values), [str(v) for v in c.values.to_pylist()]
    order = np.argsort(np.array(listed) if values is None else values, kind="stable")
    return np.argsort(order)[c.code], [listed[k] for k in order]


def _classes(
    c: Values, note: str | None, where: str, named: Sequence[str] | None, known: Sequence[str] | None
) -> Targets:
    code, texts = ordered(c)
    if broken := next((text for text in texts if "\n" in text), None):
        raise UserError(
            f"{where}: label column {c.name!r} has a text of several lines, {broken[:20]!r}..., as after a quote that "
            "is not closed; mend the file"
        )
    if named and set(texts) <= set(map(str, range(len(named)))):
        code, texts = np.array([int(name) for name in texts])[code], list(named)
    if known is None:
        if len(c.values) < 2:
            raise UserError(
                f"{where}: label column {c.name!r} has one class only, {texts[0]!r}; there is nothing to tell apart"
            )
        return Targets("class", code, texts, note)
    new = [name for name in texts if name not in known]
    if new:
        raise UserError(f"{where}: the class {new[0]!r} is not in the training data; map these rows or drop them")
    return Targets("class", np.array([known.index(name) for name in texts])[code], list(known), note)


def federation(
    name: str,
    inputs: tuple[np.ndarray, np.ndarray],
    *,
    target: Targets,
    columns: Sequence[str],
    owner: np.ndarray,
    who: list[str] | None,
    tested: np.ndarray,
    preprocessing: dict[str, Any],
    other: Targets | None = None,
    persons: np.ndarray | None = None,
) -> Dataset:
    """The data set of a file's samples [n] and perhaps of others, which are tested on.

    Numbers are scaled by the training samples' mean and deviation, from sums of the clients as for inputs.

    Args:
        inputs: of the training samples, and of those that are tested on.
        columns: the labels'.
        owner: [n] the client of each sample.
        who: the clients' names, where they are known.
        tested: [n] bool, which samples are tested on, where `other` is not.
        preprocessing: what the data set says of it; what is learnt is filled in where it has a key `target`.
        persons: [n] int64 whose each sample is, where that is known.

    Raises:
        UserError: a client has no training sample.
    """
    train, test, owner = target.y[~tested], target.y[tested] if other is None else other.y, owner[~tested]
    clients, unit, record = len(who or [""]), None, {"kind": target.kind, "columns": [*columns], "names": target.names}
    if target.kind == "number":
        mean = mean_of(sums(train, owner, clients))
        scale = scale_of(squares(train, owner, clients, mean), mean)
        train, test = (train - mean) / scale, (test - mean) / scale
        unit = (mean.tolist(), scale.tolist())
        record |= {"mean": unit[0], "scale": unit[1]}
    counts = np.bincount(owner, minlength=clients)
    if not counts.all() and who is not None:
        raise UserError(f"client {who[int(counts.argmin())]!r} has no training sample; leave it out")
    exact = np.int64 if target.kind in ("class", "tokens") else np.float32
    return Dataset(
        name,
        inputs[0],
        train.astype(exact),
        inputs[1],
        test.astype(exact),
        len(target.names),
        natural=None if who is None else np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1]),
        target=target.kind,
        client_names=who,
        output_names=target.names,
        preprocessing={key: record if key == "target" else value for key, value in preprocessing.items()},
        unit=unit,
        persons=None if persons is None else numbered(persons[~tested]),
    )
