"""A file of one client alone: what the client says of it, and its samples once all clients have said theirs.

These are the passes that `tables.read_table` makes over a file of all clients, with messages between them: what the
columns hold, sums, squares (`preprocess`), then inputs. No message has a row in it. Of a label column whose values are
classes the client says which values it has, of a column of texts its texts; of numbers it says sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fedconcord.basis.errors import UserError, closest
from fedconcord.data import labels
from fedconcord.data.arrays import columns_of, inputs_of, load
from fedconcord.data.inputs import FEW, Input, Target, held_out, refuse_too_large
from fedconcord.data.mixed import refuse_mixed
from fedconcord.data.preprocess import CATEGORIES, Column, Sums, squares, sums, width
from fedconcord.data.sources import Source, numbers, open_table, with_columns
from fedconcord.data.tables import features_of, fill, first_sums, scan, second_sums

MOST = 10_000  # classes
ColumnKind = Literal["number", "text", "empty"]


class Held(NamedTuple):
    """A client's file."""

    path: Path
    rows: int
    columns: Mapping[str, ColumnKind]  # what is learnt from; none of arrays
    labels: Sequence[labels.Values]
    shape: tuple[int, ...]  # of an array's sample; () of a table
    inputs: Literal["numbers", "bytes", "symbols"]
    source: Source | None  # a table
    x: np.ndarray | None  # [n, *shape], arrays


class Told(NamedTuple):
    """What a client is told of all clients' data, so that its samples are made as theirs."""

    columns: Sequence[Column]  # of a table
    target: Target
    names: list[str]  # of the outputs
    unit: tuple[list[float], list[float]] | None  # mean and scale of targets that are numbers


class Samples(NamedTuple):
    """A client's samples, as `Dataset` has them."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


class Message(NamedTuple):
    """Sums over a client's training samples: the first message, or with means the second."""

    columns: Sums  # [1, C] of the columns of numbers
    target: Sums  # [1, outputs] of targets that are numbers
    texts: Mapping[str, list[str]]  # of each column of texts; more than `preprocess.CATEGORIES` are cut


class Means(NamedTuple):
    """What the server made of the first messages."""

    columns: np.ndarray  # [C]
    target: np.ndarray  # [outputs]


def hold(path: Path, given: Input) -> Held:
    """A client's file; a column of clients is left aside, for all of its rows are this client's.

    Raises:
        UserError: the file cannot be read, or lacks a column.
    """
    where = path.name
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a site's data are one file: a table or an .npz")
    if path.suffix.lower() == ".npz":
        arrays, key = load(path, given.memory), (given.label or ("y",))[0]
        for name in ("x", key):
            if name not in arrays:
                raise UserError(f"{where} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
        x, y = arrays["x"], arrays[key]
        if x.ndim < 2 or len(x) < 2 or y.ndim not in (1, 2) or len(y) != len(x):
            raise UserError(f"{where}: x has shape {x.shape} and {key} {y.shape}; needed are x [n, ...] and y [n]")
        x = inputs_of(x, where)
        if not np.isfinite(x).all():
            raise UserError(f"{where}: x holds NaN or infinite numbers; drop or fill such samples")
        kind: Literal["numbers", "bytes", "symbols"] = "bytes" if x.dtype == np.uint8 else "numbers"
        kind = "symbols" if x.dtype == np.int64 else kind
        return Held(path, len(x), {}, columns_of(y, key, where), x.shape[1:], kind, None, x)
    source = open_table(path, given.missing)
    if not given.label:
        raise UserError(f"{where}: the job does not say which column is learnt; give input.label")
    features = features_of(source, _of_this_file(source, given))
    found = scan(source, features, list(given.label))
    if found.rows < 2:
        raise UserError(f"{where} has {found.rows or 'a header and no'} row{'s' * (found.rows != 1)}; at least two")
    words = [name for name in features if name in found.text and name not in given.categories]
    refuse_mixed(source, words)
    kinds: dict[str, ColumnKind] = {
        name: "empty" if name not in found.known else "text" if name in found.text else "number" for name in features
    }
    return Held(path, found.rows, kinds, [found.keys[name] for name in given.label], (), "numbers", source, None)


def _of_this_file(source: Source, given: Input) -> Input:
    """The job's settings for one file, which may lack the column of clients and columns that other sites have. A name
    that is close to a column of which they say nothing is refused later: one of the two is a misprint."""
    rest = {*source.names} - {*given.label, *given.ignore, *given.categories, given.client}

    def there(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in source.names or closest(name, rest))

    client = given.client if given.client in source.names else None
    return given._replace(client=client, ignore=there(given.ignore), categories=there(given.categories))


def described(held: Held, given: Input) -> dict[str, Any]:
    """What a client says of its file first: plain values.

    Raises:
        UserError: a label column has too many different texts.
    """
    return {
        "rows": held.rows,
        "columns": dict(held.columns),
        "shape": list(held.shape),
        "inputs": held.inputs,
        "labels": [_label(one, given.target, held.path.name) for one in held.labels],
    }


def _label(of: labels.Values, target: Target | None, where: str) -> dict[str, Any]:
    found, several = numbers(of.values), len(of.values)
    classes = target != "number" and (found is None or target is not None or several <= FEW)
    if classes and several > MOST:
        raise UserError(f"{where}: label column {of.name!r} has {several} different values, more than {MOST} classes")
    listed = [str(value) for value in of.values.to_pylist()] if classes else None
    return {"name": of.name, "numbers": found is not None, "values": listed}


def agreed_target(said: Sequence[Sequence[Mapping[str, Any]]], given: Input) -> labels.Targets:
    """What is learnt, from what all clients said of their labels; it has the values once each, not their rows.

    Raises:
        UserError: the values do not fit the kind, or there is one class only.
    """
    names = [str(one["name"]) for one in said[0]]
    if any(one["values"] is None for client in said for one in client):
        told = None if given.target else f"{', '.join(names)}: many different numbers, taken as numbers"
        return labels.Targets("number", np.empty((0, len(names))), names, told)
    columns = []
    for k, name in enumerate(names):
        values = sorted({str(value) for client in said for value in client[k]["values"]})
        columns.append(labels.Values(name, np.arange(len(values)), pa.array(values, pa.string())))
    most = max(len(one.values) for one in columns)
    columns = [one._replace(code=np.resize(np.arange(len(one.values)), most)) for one in columns]
    return labels.targets(columns, given.target, "the sites' labels")


def message(
    held: Held, client: int, given: Input, told: Told, digits: Sequence[str], words: Sequence[str], means: Means | None
) -> Message:
    """A client's first message, or the second once there are means.

    Args:
        told: without its columns, which come of these messages.
        digits: the columns of numbers.
        words: the columns of texts.
    """
    tested, owner = tested_of(held, client, given), np.zeros(held.rows, np.int64)
    columns, seen = Sums(np.zeros((1, 0)), np.zeros((1, 0))), dict[str, set[str]]()
    if held.source is not None:
        source = with_columns(held.source, [*digits, *words])
        if means is None:
            columns, seen = first_sums(source, digits, words, owner, tested, 1)
        else:
            columns = second_sums(source, digits, owner, tested, 1, means.columns)
    target = Sums(np.zeros((1, 0)), np.zeros((1, 0)))
    if told.target == "number":
        y, who = _y(held, told._replace(unit=None))[~tested], owner[~tested]
        target = sums(y, who, 1) if means is None else squares(y, who, 1, means.target)
    return Message(columns, target, {name: sorted(found)[: CATEGORIES + 2] for name, found in seen.items()})


def tested_of(held: Held, client: int, given: Input) -> np.ndarray:
    """Which samples [n] are tested on, keyed by the client's number."""
    tested = np.zeros(held.rows, bool)
    tested[held_out(client, held.rows, given.test_share)] = True
    return tested


def samples(held: Held, client: int, given: Input, told: Told) -> Samples:
    """The client's samples; of a column that the file lacks, as of one without values.

    Raises:
        UserError: a value or a label is not what it must be, or they do not fit in memory.
    """
    tested = tested_of(held, client, given)
    y = _y(held, told).astype(np.int64 if told.target == "class" else np.float32)
    if held.x is not None:
        return Samples(held.x[~tested], y[~tested], held.x[tested], y[tested])
    assert held.source is not None
    source = with_columns(held.source, [one.name for one in told.columns])
    size = width(told.columns)
    refuse_too_large(held.rows * (8 * size + 100), f"{held.path.name}, {held.rows} rows,", given.memory)
    count = int(tested.sum())
    train_x, test_x = (np.empty((n, size), np.float32) for n in (held.rows - count, count))
    fill(source, told.columns, tested, train_x, test_x)
    return Samples(train_x, y[~tested], test_x, y[tested])


def _y(held: Held, told: Told) -> np.ndarray:
    """Targets of all rows, numbers scaled where there is a unit."""
    known = told.names if told.target == "class" else None
    y = labels.targets(list(held.labels), told.target, held.path.name, known=known).y
    if told.unit is None:
        return y
    mean, scale = (np.array(part) for part in told.unit)
    return np.asarray((y - mean) / scale)
