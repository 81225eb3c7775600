"""From columns to inputs of a model: numbers standardised, categories one-hot, missing values filled and marked.

What the transform needs to know of the data is *given* (a file), or *fitted* from messages of the clients in which
there is no row: first how many values are known and their sum for each number column, and the set of texts of each
category column; then, for the means of these sums, the sums of squared deviations. Only sums over all clients and the
union of the sets are used, so that secure aggregation will do. Training samples alone take part.

A fitted transform is plain JSON: {"kind": "table", "columns": [{"name", "kind": "number", "mean", "scale",
"indicator"}, {"name", "kind": "category", "values"}], ...}.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedconcord.federation.data.sources import Batch, column, first_text, numbers, open_table, texts
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Positive

CATEGORIES = 256  # most texts of a column
NO_TEXT = ""  # among the texts of a column, where a row has none: no value reads so
STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Number(BaseModel):
    """A column of numbers: (value - mean) / scale, 0 where missing; `indicator`: and 1 where missing, 0 elsewhere."""

    model_config = STRICT
    name: str
    kind: Literal["number"] = "number"
    mean: float
    scale: Positive
    indicator: bool = False


class Category(BaseModel):
    """A column of texts: an input for each known text, and a last one for any other and for none.

    `other`: whether a training row had none of the texts. If not, no row trains the weights of the last input, which
    would add what they were drawn as: it stays 0, as if they were.
    """

    model_config = STRICT
    name: str
    kind: Literal["category"] = "category"
    values: Annotated[list[str], Field(max_length=CATEGORIES)]
    other: bool = True


Column = Number | Category
_COLUMNS = TypeAdapter(list[Annotated[Column, Field(discriminator="kind")]])


# -- what clients send -----------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """A message of every client about its number columns."""

    known: np.ndarray  # [N, C] how many values are known
    total: np.ndarray  # [N, C] their sum, or their summed squared deviation from the means


def sums(values: np.ndarray, owner: np.ndarray, clients: int) -> Sums:
    """Of values [B, C], NaN where missing, and the client of each row [B]."""
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)

    def by_client(of: np.ndarray) -> np.ndarray:
        each = [np.bincount(owner, of[:, j].astype(np.float64), clients) for j in range(of.shape[1])]
        return np.stack(each, 1) if each else np.zeros((clients, 0))

    return Sums(by_client(known), by_client(filled))


def squares(values: np.ndarray, owner: np.ndarray, clients: int, mean: np.ndarray) -> Sums:
    """The second message: squared deviations from the means [C] that the server sent."""
    return sums((values - mean) ** 2, owner, clients)


def mean_of(messages: Sums) -> np.ndarray:
    """[C] from the first messages; NaN for a column without values."""
    known, total = messages.known.sum(0), messages.total.sum(0)
    return np.where(known > 0, total / np.maximum(known, 1), np.nan)


def scale_of(messages: Sums, mean: np.ndarray) -> np.ndarray:
    """[C] the standard deviation from the second messages; 1 for a column that never varies.

    A mean [C] of n equal numbers may miss them by the rounding of n additions, so that they seem to vary by as much.
    """
    deviation = np.sqrt(mean_of(messages))
    rounding = messages.known.sum(0) * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(deviation > rounding, deviation, 1.0)


SENT = [
    "which columns hold numbers and which texts",
    "of each number column the count of known values and their sum",
    "of each text column the set of its texts, and whether some rows have none",
    "of each number column the sum of squared deviations from the common mean",
]


# -- the transform -----------------------------------------------------------------------------------------------


def width(columns: Sequence[Column]) -> int:
    """Inputs of a model."""
    return sum(1 + c.indicator if isinstance(c, Number) else len(c.values) + 1 for c in columns)


def names(columns: Sequence[Column]) -> list[str]:
    """Of the inputs, in order."""
    names_of = []
    for c in columns:
        if isinstance(c, Number):
            names_of += [c.name, *([f"{c.name} missing"] if c.indicator else [])]
        else:
            names_of += [f"{c.name}={value}" for value in c.values] + [f"{c.name} other"]
    return names_of


def apply(columns: Sequence[Column], batch: Batch, out: np.ndarray, where: str, rows: np.ndarray) -> None:
    """Fill out [B, width] float32 from the columns of some rows, whose places in the file are `rows` [B].

    Raises:
        UserError: a column of numbers holds a text, or a number that is infinite or too large.
    """
    k = 0
    for c in columns:
        if isinstance(c, Number):
            values = known_numbers(batch[c.name], where, c.name, rows)
            missing = np.isnan(values)
            with np.errstate(over="ignore", invalid="ignore"):  # refused below; a NaN may be a signalling one
                scaled = np.where(missing, 0.0, (values - c.mean) / c.scale)
            if (large := np.abs(scaled) > np.finfo(out.dtype).max).any():
                place = rows[int(np.flatnonzero(large)[0])] + 1
                raise UserError(f"{where}: row {place}, column {c.name!r} is too large to be scaled; repair it")
            out[:, k] = scaled
            if c.indicator:
                out[:, k + 1] = missing
            k += 1 + c.indicator
        else:
            place = places(c, batch[c.name])
            marked = np.flatnonzero((place < len(c.values)) | c.other)
            out[:, k : k + len(c.values) + 1] = 0
            out[marked, k + place[marked]] = 1
            k += len(c.values) + 1


def places(c: Category, values: pa.Array) -> np.ndarray:
    """Which of a column's texts each value [B] is; their number for any other and for none."""
    place = pc.index_in(texts(values), pa.array(c.values, pa.string()))
    return np.asarray(pc.fill_null(place, len(c.values)), np.int64)


def known_numbers(values: pa.Array, where: str, name: str, rows: np.ndarray) -> np.ndarray:
    """Numbers [B], or a sentence about the first that is none."""
    numbers_known = numbers_of(values, where, name)
    if numbers_known is None:
        place, text = first_text(values)
        raise UserError(f"{where}: row {rows[place] + 1}, column {name!r}: {text!r} is not a number")
    if np.isinf(numbers_known).any():
        place = int(np.flatnonzero(np.isinf(numbers_known))[0])
        raise UserError(
            f"{where}: row {rows[place] + 1}, column {name!r} is infinite; write a number, or nothing where unknown"
        )
    return numbers_known


def numbers_of(values: pa.Array, where: str, name: str) -> np.ndarray | None:
    """As `sources.numbers`, with the column in its sentence."""
    try:
        return numbers(values)
    except UserError as error:
        raise UserError(f"{where}: column {name!r} {error} (input.ignore)") from None


def read_columns(saved: Mapping[str, Any], where: str) -> list[Column]:
    """The columns of a saved transform.

    Raises:
        UserError: it is not one.
    """
    try:
        columns = _COLUMNS.validate_json(json.dumps(saved.get("columns"), default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{where}: columns{'.' + place if place else ''}: {first['msg'].lower()}; it is a list of columns, "
            'as in {"name": "age", "kind": "number", "mean": 50.1, "scale": 9.8} or '
            '{"name": "sex", "kind": "category", "values": ["f", "m"]}'
        ) from None
    if not columns:
        raise UserError(f"{where}: its list of columns is empty; name at least one")
    return columns


def read_statistics(path: Path) -> list[Column]:
    """Given statistics: a JSON or TOML file with a list `columns`, such as the preprocessing.json of another run."""
    try:
        content = path.read_text(encoding="utf-8")
        saved = tomllib.loads(content) if path.suffix == ".toml" else json.loads(content)
    except OSError as error:
        raise UserError(f"cannot read the statistics {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is neither JSON nor TOML: {str(error).splitlines()[0]}") from None
    return read_columns(saved if isinstance(saved, dict) else {}, str(path))


class Part(NamedTuple):
    """Some rows of a new table."""

    x: np.ndarray  # [b, width] float32, inputs of the model
    beside: Mapping[str, list[str | None]]  # texts [b] of the columns that are neither inputs nor targets
    unseen: list[str]  # [b] the row's texts that no training row had, "ward=east, sex=x"


def features(path: str | Path, preprocessing: Mapping[str, Any]) -> Iterator[Part]:
    """Inputs of a model from a new table, by the transform of its training, in parts of bounded memory, with what else
    their rows say. No label is needed.

    Raises:
        UserError: the file cannot be read, or lacks a column.
    """
    path = Path(path).expanduser()
    columns = read_columns(preprocessing, "the model's preprocessing")
    source = open_table(path, preprocessing.get("missing", ()))
    for c in columns:
        column(source, c.name, "the model's preprocessing")
    used = {*(c.name for c in columns), *preprocessing.get("target", {}).get("columns", ())}
    others = [name for name in source.names if name not in used and name not in source.images]
    row = 0
    for batch in source.batches([*(c.name for c in columns), *others]):
        count = len(batch[columns[0].name])
        out = np.empty((count, width(columns)), np.float32)
        apply(columns, batch, out, path.name, row + np.arange(count))
        row += count
        if count:
            odd = {name for name in others if pa.types.is_nested(kind := batch[name].type) or pa.types.is_binary(kind)}
            beside = {name: texts(batch[name]).to_pylist() for name in others if name not in odd}
            yield Part(out, beside, _unseen(columns, batch, count))


def _unseen(columns: Sequence[Column], batch: Batch, count: int) -> list[str]:
    """As `Part.unseen`."""
    unknown: list[list[str]] = [[] for _ in range(count)]
    for c in columns:
        if isinstance(c, Category):
            values = texts(batch[c.name])
            new = np.flatnonzero(places(c, values) == len(c.values))
            for k, text in zip(new.tolist(), values.take(pa.array(new)).to_pylist(), strict=True):
                if text is not None:
                    unknown[k].append(f"{c.name}={text}")
                elif not c.other:
                    unknown[k].append(f"{c.name} missing")
    return [", ".join(one) for one in unknown]
