"""A federation from a table: features, labels and clients are columns.

The file is read in batches, several times over: what its columns hold, the two messages of the clients, and the inputs,
which are kept. Memory: inputs twice (as read, and in the order of clients), about 100 bytes a row for labels and
clients (measured), and a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.federation.data import labels, preprocess
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.doubts import doubts, refuse_mixed
from fedconcord.federation.data.inputs import Input, refuse_too_large, split
from fedconcord.federation.data.preprocess import CATEGORIES, NO_TEXT, Category, Column, Number, Sums
from fedconcord.federation.data.sources import Batch, Source, column, first_text, open_table, texts
from fedconcord.support.errors import UserError


class Survey(NamedTuple):
    """What a table holds, without its features."""

    rows: int
    text: dict[str, tuple[int, str]]  # feature column that is no number -> the first such row and text
    target: labels.Targets
    owner: np.ndarray  # [n] int64
    clients: list[str] | None  # names, where there is a column of clients
    persons: np.ndarray | None = None  # [n] int64, where there is a column of persons

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.clients or [""])


def read_table(path: Path, settings: Input) -> Dataset:
    """The federation of a table (see `inputs.Input`).

    Raises:
        UserError: a column is missing, a value or a label is not what it must be, or the data do not fit in memory.
    """
    source = open_table(path, settings.missing)
    if not settings.label:
        raise UserError(
            f"{path.name} has the columns {', '.join(source.names[:40])}; say which is learnt: --label-column NAME"
        )
    features = features_of(source, settings)
    survey = look(source, features, settings)
    other = None if settings.test is None else _other(Path(settings.test), source, features, survey, settings)
    tested = np.zeros(survey.rows, bool) if other else split(survey.owner, survey.n, settings.test_share)
    columns = preprocess.read_statistics(Path(settings.statistics).expanduser()) if settings.statistics else None
    if columns is None:
        refuse_mixed(source, [name for name in features if name in survey.text and name not in settings.categories])
        columns = fit(source, features, survey, tested, settings)
    else:
        for c in columns:
            column(source, c.name, "input.statistics")
    rows, size = survey.rows + (other[1].rows if other else 0), preprocess.width(columns)
    refuse_too_large(rows * (8 * size + 100), f"{path.name}, {rows} rows of {size} inputs,", settings.memory)
    train_x = np.empty((int((~tested).sum()), size), np.float32)
    test_x = np.empty((rows - len(train_x), size), np.float32)
    fill(source, columns, tested, train_x, test_x)
    if other:
        fill(other[0], columns, np.ones(other[1].rows, bool), train_x[:0], test_x)
    return labels.federation(
        path.stem,
        (train_x, test_x),
        target=survey.target,
        columns=settings.label,
        owner=survey.owner,
        who=survey.clients,
        tested=tested,
        preprocessing=_description(columns, survey, settings, doubts(source, features, settings.client)),
        other=other[1].target if other else None,
        persons=survey.persons,
    )


def features_of(source: Source, settings: Input) -> list[str]:
    """The columns to learn from.

    Raises:
        UserError: the settings name a column that is not there, or leave none.
    """
    client, person = ((name,) if name else () for name in (settings.client, settings.person))
    keys = {"--label-column": settings.label, "--client-column": client, "--person-column": person}
    for option, listed in {**keys, "input.ignore": settings.ignore, "input.categories": settings.categories}.items():
        for name in listed:
            column(source, name, option)
    others = {*settings.label, *settings.ignore, *client, *person}
    for option, listed in keys.items():
        if twice := [name for name in listed if name in settings.ignore]:
            raise UserError(f"column {twice[0]!r} is named by {option} and by input.ignore; leave it out of one")
    if twice := [name for name in settings.label if settings.label.count(name) > 1]:
        raise UserError(f"--label-column names {twice[0]!r} twice; name it once")
    if settings.client in settings.label:
        raise UserError(f"column {settings.client!r} is both label and client; give two columns")
    if settings.person in (*settings.label, *client):
        raise UserError(f"column {settings.person!r} is that of persons and another one; give each a column of its own")
    features = [name for name in source.names if name not in others]
    if not features:
        raise UserError(f"{source.path.name} has no column left to learn from beside {', '.join(sorted(others))}")
    return features


# -- passes over the file ----------------------------------------------------------------------------------------


def look(source: Source, features: Sequence[str], settings: Input, known: Sequence[str] | None = None) -> Survey:
    """The first pass: rows, labels, clients, and which columns are numbers."""
    where = source.path.name
    scanned = scan(source, features, [*settings.label, *filter(None, (settings.client, settings.person))])
    if scanned.rows < 2 - (known is not None):
        raise UserError(
            f"{where} has {scanned.rows or 'a header and no'} row{'s' * (scanned.rows != 1)}; at least two are needed"
        )
    named = source.classes.get(settings.label[0])
    target = labels.targets([scanned.keys[name] for name in settings.label], settings.target, where, named, known)
    persons = None if settings.person is None else scanned.keys[settings.person].code
    if settings.client is None:
        return Survey(scanned.rows, scanned.text, target, np.zeros(scanned.rows, np.int64), None, persons)
    return Survey(scanned.rows, scanned.text, target, *labels.ordered(scanned.keys[settings.client]), persons)


class Scan(NamedTuple):
    """What one pass over a table finds."""

    rows: int
    text: dict[str, tuple[int, str]]  # as `Survey.text`
    known: set[str]  # feature columns with a value somewhere
    keys: dict[str, labels.Values]  # labels, clients and persons


def scan(source: Source, features: Sequence[str], keys: Sequence[str]) -> Scan:
    """Rows, which feature columns are numbers, and the values of key columns.

    Raises:
        UserError: a key is missing in some row.
    """
    where, rows = source.path.name, 0
    text: dict[str, tuple[int, str]] = {}
    known: set[str] = set()
    chunks: dict[str, list[Any]] = {name: [] for name in keys}
    for batch in source.batches([*features, *keys]):
        for name in features:
            if name not in known and batch[name].null_count < len(batch[name]):
                known.add(name)
            if name not in text and preprocess.numbers_of(batch[name], where, name) is None:
                place, value = first_text(batch[name])
                text[name] = (rows + place + 1, value)
        for name in keys:
            chunks[name].append(batch[name].dictionary_encode())
        rows += len(batch[keys[0]])
    return Scan(rows, text, known, {name: labels.collect(name, chunks[name], where) for name in keys} if rows else {})


@np.errstate(over="ignore", invalid="ignore")  # `columns_of` refuses what overflows
def fit(source: Source, features: Sequence[str], survey: Survey, tested: np.ndarray, settings: Input) -> list[Column]:
    """The transform, from two messages of every client about its training samples."""
    where, owner, n = source.path.name, survey.owner, survey.n
    words = [name for name in features if name in survey.text or name in settings.categories]
    digits = [name for name in features if name not in words]
    first, texts_of = messages(source, digits, words, owner, tested, n)
    for name in words:
        if len(known_texts(texts_of[name])) > CATEGORIES:
            row, value = survey.text.get(name, (0, ""))
            raise UserError(
                f"{where}: column {name!r} has more than {CATEGORIES} different texts"
                + (f" (row {row}: {value!r} is no number)" if row else "")
                + f"; repair it, or leave it out with --set input.ignore={name}"
            )
    unknown = no_value(digits, first, texts_of)
    if unknown is not None:
        raise UserError(
            f"{where}: no training sample has a value in {unknown!r}; leave it out: --set input.ignore={unknown}"
        )
    second, _ = messages(source, digits, (), owner, tested, n, preprocess.mean_of(first))
    return columns_of(features, digits, first, texts_of, second, int((~tested).sum()))


def messages(
    source: Source,
    digits: Sequence[str],
    words: Sequence[str],
    owner: np.ndarray,
    tested: np.ndarray,
    clients: int,
    mean: np.ndarray | None = None,
) -> tuple[Sums, dict[str, set[str]]]:
    """The first messages: sums of the columns of numbers, and the texts of the others, of the training samples;
    `NO_TEXT` among them where some have none. Reading ends where a column has too many texts to be one of categories.

    With the means [C] the second messages: sums of squared deviations.
    """
    texts_of: dict[str, set[str]] = {name: set() for name in words}
    total = Sums(np.zeros((clients, len(digits))), np.zeros((clients, len(digits))))
    for batch, rows in _training(source, [*digits, *words], tested) if digits or words else ():
        each = [preprocess.known_numbers(batch[name], source.path.name, name, rows) for name in digits]
        values = np.stack(each, 1) if each else np.zeros((len(rows), 0))
        more = preprocess.sums(values if mean is None else (values - mean) ** 2, owner[rows], clients)
        total = Sums(total.known + more.known, total.total + more.total)
        for name in words:
            texts_of[name] |= {text or NO_TEXT for text in texts(batch[name]).unique().to_pylist()}
        if any(len(known_texts(values)) > CATEGORIES for values in texts_of.values()):
            break
    return total, texts_of


def no_value(digits: Sequence[str], first: Sums, seen: Mapping[str, Collection[str]]) -> str | None:
    """The first column without a value in any training sample, or None."""
    words = {name: len(known_texts(seen[name])) for name in seen}
    counts = {**dict(zip(digits, first.known.sum(0), strict=True)), **words}
    return next((name for name, count in counts.items() if not count), None)


def columns_of(
    features: Sequence[str],
    digits: Sequence[str],
    first: Sums,
    seen: Mapping[str, Collection[str]],
    second: Sums,
    rows: int,
) -> list[Column]:
    """The transform that the messages of all clients come to; `rows`: their training samples.

    Raises:
        UserError: the values of a column are so large that their squares are no numbers.
    """
    mean, known = preprocess.mean_of(first), first.known.sum(0)
    scale = preprocess.scale_of(second, mean)
    for name, finite in zip(digits, np.isfinite(mean + scale), strict=True):
        if not finite:
            raise UserError(
                f"the values of column {name!r} are too large to be scaled; repair them, or leave it out with "
                f"--set input.ignore={name}"
            )
    of_number = {
        name: Number(name=name, mean=float(mean[j]), scale=float(scale[j]), indicator=bool(known[j] < rows))
        for j, name in enumerate(digits)
    }
    return [
        of_number.get(name) or Category(name=name, values=known_texts(seen[name]), other=NO_TEXT in seen[name])
        for name in features
    ]


def known_texts(seen: Collection[str]) -> list[str]:
    """The texts of a first message, sorted, without the sign that some are missing."""
    return sorted(text for text in seen if text != NO_TEXT)


def _training(source: Source, columns: Sequence[str], tested: np.ndarray) -> Iterator[tuple[Batch, np.ndarray]]:
    """The training rows of each batch, and their places in the file."""
    begin = 0
    for batch in source.batches(columns):
        end = begin + len(batch[columns[0]])
        keep = np.flatnonzero(~tested[begin:end])
        yield {name: values.take(keep) for name, values in batch.items()}, begin + keep
        begin = end


def fill(
    source: Source, columns: Sequence[Column], tested: np.ndarray, train_x: np.ndarray, test_x: np.ndarray
) -> None:
    """The last pass: inputs into their places."""
    begin, train, test = 0, 0, 0
    for batch in source.batches([c.name for c in columns]):
        count = len(batch[columns[0].name])
        x = np.empty((count, preprocess.width(columns)), np.float32)
        preprocess.apply(columns, batch, x, source.path.name, begin + np.arange(count))
        test_rows = tested[begin : begin + count]
        more = int(test_rows.sum())
        test_x[test : test + more] = x[test_rows]
        train_x[train : train + count - more] = x[~test_rows]
        begin, train, test = begin + count, train + count - more, test + more


# -- test data of their own, and what is written down ------------------------------------------------------------


def _other(
    path: Path, source: Source, features: Sequence[str], survey: Survey, settings: Input
) -> tuple[Source, Survey]:
    """The table of test samples, its labels coded as the training table's."""
    other = open_table(path, settings.missing)
    for name in (*features, *settings.label):
        column(other, name, f"--test-data; {source.path.name} has it")
    of_rows = settings._replace(client=None, person=None, target=survey.target.kind)
    return other, look(other, features, of_rows, survey.target.names)


def _description(columns: Sequence[Column], survey: Survey, settings: Input, doubtful: Sequence[str]) -> dict[str, Any]:
    """All but the target."""
    are_given, notes = bool(settings.statistics), [*([survey.target.note] if survey.target.note else []), *doubtful]
    if survey.clients is not None:
        alone = int((np.bincount(survey.owner) == 1).sum())
        if alone and settings.test is None:
            notes.append(f"{alone} of {len(survey.clients)} clients have one row, which is trained on and not tested")
    return {
        "kind": "table",
        "statistics": "given" if are_given else "sums over the clients' training rows",
        "sent_by_each_client": [] if are_given else preprocess.SENT,
        "columns": [c.model_dump() for c in columns],
        "inputs": preprocess.names(columns),
        **({"missing": list(settings.missing)} if settings.missing else {}),
        "target": {},
        "said": notes,
    }
