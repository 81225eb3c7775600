"""A file of one client alone: how the client describes it, and its samples once all clients have described theirs.

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

from fedconcord.federation.data import labels
from fedconcord.federation.data.dataset import IGNORED, Target
from fedconcord.federation.data.doubts import refuse_mixed
from fedconcord.federation.data.inputs import FEW, Input, held_out, refuse_too_large
from fedconcord.federation.data.own import inputs_of, load, pair_of
from fedconcord.federation.data.preprocess import CATEGORIES, Column, Sums, squares, sums, width
from fedconcord.federation.data.sequences import GUESS, PAD, token_targets, with_next
from fedconcord.federation.data.sources import Source, numbers, open_table, with_columns
from fedconcord.federation.data.tables import features_of, fill, messages, scan
from fedconcord.support.errors import UserError, closest

MOST = 10_000  # classes
ColumnKind = Literal["number", "text", "empty"]


class SiteFile(NamedTuple):
    """A client's file."""

    path: Path
    rows: int
    columns: Mapping[str, ColumnKind]  # what is learnt from; none of arrays
    labels: Sequence[labels.Values]
    shape: tuple[int, ...]  # of an array's sample; () of a table
    inputs: Literal["numbers", "bytes", "symbols"]
    source: Source | None  # a table
    x: np.ndarray | None  # [n, *shape], arrays
    tokens: np.ndarray | None = None  # [n, L] int64, a class for each token of rows in place of labels
    pad: int | None = None  # which token fills rows up, where the classes are the next tokens
    persons: np.ndarray | None = None  # [rows] int64 whose each row is, where the job names such a column; never sent


class Agreement(NamedTuple):
    """What the server tells a client of all clients' data, so that its samples are preprocessed as theirs."""

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
    persons: np.ndarray | None = None


class SiteSums(NamedTuple):
    """The sums of a client's training samples that it sends; once there are means, of squared deviations from them."""

    columns: Sums  # [1, C] of the columns of numbers
    target: Sums  # [1, outputs] of targets that are numbers
    texts: Mapping[str, list[str]]  # of each column of texts; more than `preprocess.CATEGORIES` are cut


class Means(NamedTuple):
    """The means that the server computes from the first messages."""

    columns: np.ndarray  # [C]
    target: np.ndarray  # [outputs]


def open_file(path: Path, settings: Input) -> SiteFile:
    """A client's file; a column of clients is left aside, for all of its rows are this client's.

    Raises:
        UserError: the file cannot be read, or lacks a column.
    """
    where = path.name
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a site's data are one file: a table or an .npz")
    if path.suffix.lower() == ".npz":
        key = (settings.label or ("y",))[0]
        arrays = load(path, settings.memory)
        pad = None if key in arrays else PAD
        x, y = pair_of(with_next(arrays, key, settings.target), key, where)
        of_tokens = token_targets({"x": x, key: y}, "x", key, None, settings.target, where)
        x = inputs_of(x, where)
        if not np.isfinite(x).all():
            raise UserError(f"{where}: x holds NaN or infinite numbers; drop or fill such samples")
        kind: Literal["numbers", "bytes", "symbols"] = "bytes" if x.dtype == np.uint8 else "numbers"
        kind = "symbols" if x.dtype == np.int64 else kind
        persons = None if settings.person is None else labels.of_rows(arrays, settings.person, len(x), where).code
        if of_tokens is None:
            columns = labels.columns_of(y, key, where)
            return SiteFile(path, len(x), {}, columns, x.shape[1:], kind, None, x, persons=persons)
        return SiteFile(path, len(x), {}, (), x.shape[1:], kind, None, x, of_tokens.y, pad, persons)
    source = open_table(path, settings.missing)
    if not settings.label:
        raise UserError(f"{where}: the job does not say which column is learnt; give input.label")
    features = features_of(source, _of_this_file(source, settings))
    scanned = scan(source, features, [*settings.label, *filter(None, (settings.person,))])
    if scanned.rows < 2:
        raise UserError(f"{where} has {scanned.rows or 'a header and no'} row{'s' * (scanned.rows != 1)}; at least two")
    words = [name for name in features if name in scanned.text and name not in settings.categories]
    refuse_mixed(source, words)
    kinds: dict[str, ColumnKind] = {
        name: "empty" if name not in scanned.known else "text" if name in scanned.text else "number"
        for name in features
    }
    columns = [scanned.keys[name] for name in settings.label]
    persons = None if settings.person is None else scanned.keys[settings.person].code
    return SiteFile(path, scanned.rows, kinds, columns, (), "numbers", source, None, persons=persons)


def names_read(path: Path, settings: Input) -> list[str]:
    """The columns of a table that a job reads, its labels and that of persons last; by the header alone. Of arrays the
    keys of both.

    Raises:
        UserError: as `open_file`.
    """
    persons = filter(None, (settings.person,))
    if path.suffix.lower() == ".npz":
        return [*(settings.label or ("y",)), *persons]
    source = open_table(path, settings.missing)
    return [*features_of(source, _of_this_file(source, settings)), *settings.label, *persons]


def _of_this_file(source: Source, settings: Input) -> Input:
    """The job's settings for one file, which may lack the column of clients and columns that other sites have. A name
    that is close to a column of which they say nothing is refused later: one of the two is a misprint."""
    roles = {*settings.label, *settings.ignore, *settings.categories, settings.client, settings.person}
    rest = {*source.names} - roles

    def there(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in source.names or closest(name, rest))

    client = settings.client if settings.client in source.names else None
    return settings._replace(client=client, ignore=there(settings.ignore), categories=there(settings.categories))


def description(site: SiteFile, settings: Input) -> dict[str, Any]:
    """The description of its file that a client sends first: plain values.

    Raises:
        UserError: a label column has too many different texts.
    """
    return {
        "rows": site.rows,
        "columns": dict(site.columns),
        "shape": list(site.shape),
        "inputs": site.inputs,
        "labels": [_label(one, settings.target, site.path.name) for one in site.labels],
        "tokens": None if site.tokens is None or site.x is None else described(site.x, site.tokens, site.pad),
    }


def described(x: np.ndarray, y: np.ndarray, pad: int | None) -> dict[str, int | None]:
    """What is said of targets of tokens [n, L]: their classes, the largest token that has one, and the padding."""
    return {"classes": int(y.max(initial=-1)) + 1, "largest": int(x[y != IGNORED].max(initial=0)), "pad": pad}


def agreed_tokens(each: Sequence[Mapping[str, Any]], settings: Input) -> labels.Targets:
    """What is learnt, where all clients described targets of tokens."""
    classes, note = max(2, *(int(one["classes"]) for one in each)), None if settings.target else f"the targets: {GUESS}"
    return labels.Targets("tokens", np.empty((0, 0)), [str(k) for k in range(classes)], note)


def _label(of: labels.Values, target: Target | None, where: str) -> dict[str, Any]:
    values, several = numbers(of.values), len(of.values)
    classes = target != "number" and (values is None or target is not None or several <= FEW)
    if classes and several > MOST:
        raise UserError(f"{where}: label column {of.name!r} has {several} different values, more than {MOST} classes")
    listed = [str(value) for value in of.values.to_pylist()] if classes else None
    return {"name": of.name, "numbers": values is not None, "values": listed}


def agreed_target(labels_of: Sequence[Sequence[Mapping[str, Any]]], settings: Input) -> labels.Targets:
    """What is learnt, from the labels that all clients described; it has the values once each, not their rows.

    Raises:
        UserError: the values do not fit the kind, or there is one class only.
    """
    names = [str(one["name"]) for one in labels_of[0]]
    if any(one["values"] is None for client in labels_of for one in client):
        agreement = None if settings.target else f"{', '.join(names)}: many different numbers, taken as numbers"
        return labels.Targets("number", np.empty((0, len(names))), names, agreement)
    columns = []
    for k, name in enumerate(names):
        values = sorted({str(value) for client in labels_of for value in client[k]["values"]})
        columns.append(labels.Values(name, np.arange(len(values)), pa.array(values, pa.string())))
    most = max(len(one.values) for one in columns)
    columns = [one._replace(code=np.resize(np.arange(len(one.values)), most)) for one in columns]
    return labels.targets(columns, settings.target, "the sites' labels")


def site_sums(
    site: SiteFile,
    client: int,
    settings: Input,
    agreement: Agreement,
    digits: Sequence[str],
    words: Sequence[str],
    means: Means | None,
) -> SiteSums:
    """A client's first message, or the second once there are means.

    Args:
        agreement: without its columns, which come of these messages.
        digits: the columns of numbers.
        words: the columns of texts.
    """
    tested, owner = tested_of(site, client, settings), np.zeros(site.rows, np.int64)
    columns, seen = Sums(np.zeros((1, 0)), np.zeros((1, 0))), dict[str, set[str]]()
    if site.source is not None:
        source = with_columns(site.source, [*digits, *words])
        names, mean = (words, None) if means is None else ((), means.columns)
        columns, seen = messages(source, digits, names, owner, tested, 1, mean)
    target = Sums(np.zeros((1, 0)), np.zeros((1, 0)))
    if agreement.target == "number":
        y, who = _y(site, agreement._replace(unit=None))[~tested], owner[~tested]
        target = sums(y, who, 1) if means is None else squares(y, who, 1, means.target)
    return SiteSums(columns, target, {name: sorted(words)[: CATEGORIES + 2] for name, words in seen.items()})


def tested_of(site: SiteFile, client: int, settings: Input) -> np.ndarray:
    """Which samples [n] are tested on, keyed by the client's number."""
    tested = np.zeros(site.rows, bool)
    tested[held_out(client, site.rows, settings.test_share)] = True
    return tested


def samples(site: SiteFile, client: int, settings: Input, agreement: Agreement) -> Samples:
    """The client's samples; of a column that the file lacks, as of one without values.

    Raises:
        UserError: a value or a label is not what it must be, or they do not fit in memory.
    """
    tested = tested_of(site, client, settings)
    y = _y(site, agreement).astype(np.int64 if agreement.target in ("class", "tokens") else np.float32)
    persons = None if site.persons is None else site.persons[~tested]
    if site.x is not None:
        return Samples(site.x[~tested], y[~tested], site.x[tested], y[tested], persons)
    assert site.source is not None
    source = with_columns(site.source, [one.name for one in agreement.columns])
    size = width(agreement.columns)
    refuse_too_large(site.rows * (8 * size + 100), f"{site.path.name}, {site.rows} rows,", settings.memory)
    count = int(tested.sum())
    train_x, test_x = (np.empty((n, size), np.float32) for n in (site.rows - count, count))
    fill(source, agreement.columns, tested, train_x, test_x)
    return Samples(train_x, y[~tested], test_x, y[tested], persons)


def _y(site: SiteFile, agreement: Agreement) -> np.ndarray:
    """Targets of all rows, numbers scaled where there is a unit."""
    if site.tokens is not None:
        return site.tokens
    known = agreement.names if agreement.target == "class" else None
    y = labels.targets(list(site.labels), agreement.target, site.path.name, known=known).y
    if agreement.unit is None:
        return y
    mean, scale = (np.array(part) for part in agreement.unit)
    return np.asarray((y - mean) / scale)
