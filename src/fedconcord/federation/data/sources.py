"""Tables on disk, column by column and batch by batch: CSV, Parquet, Arrow and data sets that `datasets` saved.

A file is never held whole: a batch of it is read, used and let go, as often as it takes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from fedconcord.support.errors import UserError, closest

BLOCK = 1 << 22  # bytes of a CSV file in a batch
ROWS = 1 << 16  # rows of another file in a batch
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")  # texts of no value
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")  # endings of spreadsheets
NUMBER = r"^\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|(?i:inf|infinity|nan))\s*$"
SEPARATORS = ",;\t|"

Batch = Mapping[str, pa.Array]
"""Column -> its values in some rows."""


class Source(NamedTuple):
    """A table that can be read again and again."""

    path: Path
    names: list[str]
    batches: Callable[[Sequence[str]], Iterator[Batch]]  # of these columns, rows in order
    classes: Mapping[str, list[str]]  # column -> names of its numbers 0, 1, ..., where the file says them
    images: frozenset[str] = frozenset()  # columns of encoded images


def open_table(path: Path, missing: Sequence[str] = ()) -> Source:
    """A table by the ending of its name; a folder must hold a data set that `datasets` saved.

    Texts in `missing` are read as no value, whatever their column; a number among them also where it is written
    otherwise (-9.0 for -9), or where the file holds numbers.

    Raises:
        UserError: the file is missing, empty, of another kind or broken, or names a column twice.
    """
    if path.is_dir():
        return _without(_saved(path), missing)
    if not path.is_file():
        raise UserError(
            f"there is no file {path}; give the path of a table, or a name that `fedconcord list data` shows"
        )
    kind = path.suffix.lower()
    if kind in SHEETS:
        raise UserError(
            f"{path} is a spreadsheet; save the sheet with the table as CSV UTF-8, with one line of column names on top"
        )
    if kind not in READERS:
        raise UserError(
            f"cannot tell what {path} is from the ending {kind!r}; tables end in {', '.join(READERS)}, arrays in .npz"
        )
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; a table has a header and at least two rows")
    with path.open("rb") as file:
        head = file.read(200)
    if kind in (".csv", ".tsv") and (head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.count(0) > len(head) // 4):
        is_text = head[:2] in (b"\xff\xfe", b"\xfe\xff") or 0 in (head[::2].count(0), head[1::2].count(0))
        raise UserError(f"{path.name} is {'in UTF-16' if is_text else 'no text'}; save it as CSV UTF-8")
    with _sentences(path):
        source = READERS[kind](path)
    return _without(_checked(source), missing)


def _without(source: Source, missing: Sequence[str]) -> Source:
    """The table with these texts, and the numbers among them, read as no value."""
    if not missing:
        return source
    none = pa.array(missing, pa.string())
    codes = pa.array([float(text) for text in missing if re.match(NUMBER, text)], pa.float64())

    def known(values: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if _is_number(values.type):
            return pc.if_else(
                pc.is_in(values.cast(pa.float64(), safe=False), codes), pa.scalar(None, values.type), values
            )
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return values
        values = values.cast(pa.string())
        trimmed, empty = pc.utf8_trim_whitespace(values), pa.scalar(None, pa.string())
        gone = pc.is_in(trimmed, none)
        if len(codes):
            number = pc.if_else(pc.match_substring_regex(trimmed, NUMBER), trimmed, empty).cast(pa.float64())
            gone = pc.or_(gone, pc.is_in(number, codes))
        return pc.if_else(gone, empty, values)

    def batches(columns: Sequence[str]) -> Iterator[Batch]:
        return ({name: known(values) for name, values in batch.items()} for batch in source.batches(columns))

    return source._replace(batches=batches)


def column(source: Source, name: str, option: str) -> str:
    """The name, if it is a column."""
    if name not in source.names:
        raise UserError(
            f"{source.path.name} has no column {name!r} ({option}){closest(name, source.names)}; its columns: "
            f"{', '.join(source.names[:40])}{', ...' if len(source.names) > 40 else ''}"
        )
    return name


def with_columns(source: Source, names: Sequence[str]) -> Source:
    """The table with these columns too: one that it lacks has no value in any row."""
    absent = [name for name in names if name not in source.names]
    if not absent:
        return source

    def batches(columns: Sequence[str]) -> Iterator[Batch]:
        present = [name for name in columns if name not in absent] or source.names[:1]  # which says how many rows
        for batch in source.batches(present):
            empty = pa.nulls(len(batch[present[0]]), pa.string())
            yield {name: batch.get(name, empty) for name in columns}

    return source._replace(names=[*source.names, *absent], batches=batches)


def _checked(source: Source) -> Source:
    twice = [name for name, count in Counter(source.names).items() if count > 1]
    if twice:
        raise UserError(f"{source.path.name} has the column {twice[0]!r} twice in its header; rename one of them")
    if "" in source.names:
        raise UserError(
            f"{source.path.name}: column {source.names.index('') + 1} has no name; give it one in the header"
        )
    return source


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """pyarrow's complaints as sentences that name the file."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message or "UTF-8" in message:
            why = "it is not UTF-8; save it as UTF-8"
        elif "Expected" in message and "columns" in message:
            why = f"{message.removeprefix('CSV parse error: ')[:160]}; every row needs as many cells as the header"
        else:
            why = f"{message[:200]}; it may be damaged or of another kind than its ending says"
        raise UserError(f"cannot read {path.name}: {why}") from None


def _csv(path: Path) -> Source:
    with path.open("rb") as file:
        header = file.readline(1 << 20)
    separator = max(SEPARATORS, key=lambda mark: header.count(mark.encode()))
    read = pcsv.ReadOptions(use_threads=False, block_size=BLOCK)
    parse = pcsv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with pcsv.open_csv(path, read_options=read, parse_options=parse) as reader:
        names = list(reader.schema.names)

    def batches(columns: Sequence[str]) -> Iterator[Batch]:
        # as text: a type guessed from the first block would fail on a later one
        convert = pcsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=list(columns),
            strings_can_be_null=True,
            null_values=MISSING,
        )
        with (
            _sentences(path),
            pcsv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert) as reader,
        ):
            for batch in reader:
                yield {name: _trimmed(batch.column(name)) for name in columns}

    return Source(path, names, batches, {})


def _trimmed(texts: pa.Array) -> pa.Array:
    """Without spaces at the ends; what is empty then is missing."""
    texts = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _parquet(path: Path) -> Source:
    names = list(pq.read_schema(path).names)

    def batches(columns: Sequence[str]) -> Iterator[Batch]:
        with _sentences(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=list(columns), use_threads=False):
                yield {name: _sound(batch.column(name)) for name in columns}

    return Source(path, names, batches, {})


def _arrow(path: Path) -> Source:
    return Source(path, _arrow_schema(path).names, lambda columns: _arrow_batches([path], columns), {})


def _arrow_open(file: Any) -> Any:
    """A reader of either form of Arrow's IPC: a file with a footer, or a stream."""
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(file)


def _arrow_schema(path: Path) -> pa.Schema:
    with _sentences(path), pa.memory_map(str(path)) as file:
        return _arrow_open(file).schema


def _arrow_batches(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Batch]:
    for path in paths:
        with _sentences(path), pa.memory_map(str(path)) as file:
            reader = _arrow_open(file)
            stored = (
                (reader.get_batch(k) for k in range(reader.num_record_batches))
                if hasattr(reader, "get_batch")
                else reader
            )
            for batch in stored:
                for begin in range(0, batch.num_rows, ROWS):
                    part = batch.slice(begin, ROWS)
                    yield {name: _sound(part.column(name)) for name in columns}


def _sound(values: pa.Array) -> pa.Array:
    """The values, whose places in memory and texts the file may have wrong: they are believed, and end the process."""
    values.validate(full=True)
    return values


def _saved(path: Path) -> Source:
    """A folder of `Dataset.save_to_disk`: state.json names the Arrow files, dataset_info.json the features."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        info = json.loads((path / "dataset_info.json").read_text(encoding="utf-8"))
        files = [path / entry["filename"] for entry in state["_data_files"]]
        features: Mapping[str, Any] = info.get("features") or {}
    except FileNotFoundError as error:
        raise UserError(
            f"the folder {path} holds no data set: neither folders of images by class, nor what save_to_disk of "
            f"`datasets` wrote ({Path(error.filename).name} is missing)"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read the saved data set {path} ({type(error).__name__}: {error})") from None
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise UserError(f"the saved data set {path} lacks {', '.join(absent) or 'its Arrow files'}; save it again")
    if state.get("_indices_data_files"):
        raise UserError(f"the saved data set {path} is a selection of rows; save it again after flatten_indices()")
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, Mapping)}
    return _checked(
        Source(
            path,
            _arrow_schema(files[0]).names,
            lambda columns: _arrow_batches(files, columns),
            {name: list(features[name]["names"]) for name, kind in kinds.items() if kind == "ClassLabel"},
            frozenset(name for name, kind in kinds.items() if kind == "Image"),
        )
    )


READERS: dict[str, Callable[[Path], Source]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
}


# -- values of a column ----------------------------------------------------------------------------------------


def numbers(values: pa.Array) -> np.ndarray | None:
    """The values [B] float64, NaN where there is none; None where a text is no number.

    Raises:
        UserError: they are of a kind that is neither number nor text.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        return numbers(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            values = pc.utf8_trim_whitespace(values).cast(pa.float64())
        except pa.ArrowInvalid:
            return None
    elif not (pa.types.is_null(kind) or pa.types.is_boolean(kind) or _is_number(kind)):
        raise UserError(f"is of type {kind}, which is neither a number nor a text; convert it or leave it out")
    wide = values.cast(pa.float64(), safe=False)  # beyond 2^53 to the nearest float64
    return np.asarray(wide.to_numpy(zero_copy_only=False), np.float64)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def texts(values: pa.Array) -> pa.Array:
    """The values as texts, null where there is none."""
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return plain.cast(pa.string())


def first_text(values: pa.Array) -> tuple[int, str]:
    """The place and text of the first value that is no number."""
    for place, value in enumerate(texts(values).to_pylist()):
        if value is not None and numbers(pa.array([value])) is None:
            return place, value
    raise AssertionError("every value is a number")
