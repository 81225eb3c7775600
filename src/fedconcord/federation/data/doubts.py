"""What may be wrong with a table that can be read.

Refused are columns that are numbers but for some texts: which of the two they are must be said, so that no typing error
decides. One `unk` among ages would otherwise make every age a category of its own.

Noted are rows twice, and numbers that stand for no value. A false alarm is worse than none: a number is doubted only
where it lies further from all others than these lie apart, and equal rows only where they have columns in which chance
repeats little.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedconcord.federation.data.sources import NUMBER, Source, numbers, texts
from fedconcord.support.errors import UserError

# -- what is refused -----------------------------------------------------------------------------------------------

DECIMAL = r"^\s*[+-]?\d+,\d+\s*$"  # a number with a decimal comma
SHOWN = 3  # rows and texts in the sentence
IDS, ALL = 20, 0.9  # rows, and share of different texts in them, from which on a column holds ids
MOST = 10_000  # different values that are told apart


def refuse_mixed(source: Source, columns: Sequence[str]) -> None:
    """Refuse columns of texts that are numbers with decimal commas, numbers but for some texts (at least half of the
    different values), or different in nearly every row.

    Columns that the file itself calls categories (a dictionary type) are texts whatever they look like.

    Raises:
        UserError: there is such a column; its rows, and the ways out.
    """
    if not columns:
        return
    numbers_of: dict[str, set[str]] = {name: set() for name in columns}
    others: dict[str, dict[str, None]] = {name: {} for name in columns}
    rows: dict[str, list[int]] = {name: [] for name in columns}
    count, known = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    begin = 0
    for batch in source.batches(columns):
        for name in columns:
            if pa.types.is_dictionary(batch[name].type):
                continue
            values = texts(batch[name])
            number = pc.match_substring_regex(values, NUMBER)
            text = pc.fill_null(pc.invert(number), False)
            numbers_of[name] |= set(_some(values.filter(pc.fill_null(number, False)), MOST - len(numbers_of[name])))
            others[name] |= _some(values.filter(text), MOST - len(others[name]))
            places = np.flatnonzero(np.asarray(text)) + begin + 1
            count[name] += len(places)
            known[name] += len(values) - values.null_count
            rows[name] += places[: SHOWN - len(rows[name])].tolist()
        begin += len(batch[columns[0]])
    for name in columns:
        commas = [text for text in others[name] if re.match(DECIMAL, text)]
        if commas and len(commas) >= len(others[name]) / 2:
            raise UserError(
                f"{source.path.name}: column {name!r} has decimal commas, as in {commas[0]!r}, row {rows[name][0]} "
                "below the header; write its numbers with decimal points, or export the table with them"
            )
        if others[name] and len(numbers_of[name]) >= len(others[name]):
            raise UserError(_sentence(source.path.name, name, list(others[name]), rows[name], count[name]))
        different, values = len(numbers_of[name]) + len(others[name]), known[name]
        if values >= IDS and different >= min(ALL * values, MOST):
            more = " or more" if different >= MOST else ""
            raise UserError(
                f"{source.path.name}: column {name!r} has {different} different texts{more} in {values} rows, as "
                "numbers of patients have, and tells nothing of a new row; texts are told to the server and all sites: "
                f"leave it out with --set {shlex.quote(f'input.ignore={name}')}"
            )


def _some(values: pa.Array, most: int) -> dict[str, None]:
    """At most so many of the different values, in order."""
    return dict.fromkeys(values.unique().slice(0, max(most, 0)).to_pylist())


def _sentence(where: str, name: str, words: Sequence[str], rows: Sequence[int], count: int) -> str:
    some = ", ".join(repr(word) for word in words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")
    places = ", ".join(map(str, rows)) + (", ..." if count > len(rows) else "")
    missing = ",".join(words[:SHOWN]) + (",..." if len(words) > SHOWN else "")
    return (
        f"{where}: column {name!r} is numbers but for {count} text{'s' * (count != 1)} ({some}), row"
        f"{'s' * (count != 1)} {places} below the header; if {'they stand' if count != 1 else 'it stands'} for no "
        f"value, give --set {shlex.quote(f'input.missing={missing}')}, or repair the file"
    )


# -- what is noted -------------------------------------------------------------------------------------------------

LOOKED = 20_000  # rows that are looked at
CODES = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)  # numbers that are used for no value
OFTEN = 2  # rows with such a number
TELLING, VALUES = 3, 20  # columns of more different numbers than this, from which on equal rows are doubted
SHARE = 0.01  # of rows that occur before


def doubts(source: Source, columns: Sequence[str], client: str | None) -> list[str]:
    """A sentence a doubt about the columns that are learnt from; rows are compared in all of them.

    Args:
        client: the column of clients, which equal rows may differ in.
    """
    values_of, who, rows = {name: list[np.ndarray]() for name in columns}, list[np.ndarray](), 0
    for batch in source.batches([*columns, *([client] if client else [])]):
        take = min(LOOKED - rows, len(batch[columns[0]]))
        for name in columns:
            values = batch[name].slice(0, take)
            as_numbers = numbers(values)
            values_of[name].append(np.asarray(texts(values).to_pylist(), object) if as_numbers is None else as_numbers)
        if client is not None:
            who.append(np.asarray(texts(batch[client].slice(0, take)).to_pylist(), object))
        rows += take
        if rows >= LOOKED:
            break
    whole = {name: np.concatenate(parts) for name, parts in values_of.items() if len({p.dtype for p in parts}) == 1}
    digits = {name: values for name, values in whole.items() if values.dtype != object}
    sentences = [sentence for name, values in digits.items() if (sentence := _code(name, values)) is not None]
    telling = sum(len(np.unique(values[~np.isnan(values)])) > VALUES for values in digits.values())
    if telling >= TELLING and len(whole) == len(columns):
        sentences += _twice([*whole.values()], np.concatenate(who) if who else None)
    return sentences


def _code(name: str, values: np.ndarray) -> str | None:
    """The sentence for a number that is far from all others, if the column has one."""
    values = values[np.isfinite(values)]
    for code in CODES:
        same = values == code
        others = values[~same]
        if same.sum() < OFTEN or len(np.unique(others)) < 2:
            continue
        span = others.max() - others.min()
        if code < others.min() - span or code > others.max() + span:
            return (
                f"column {name!r} has {code:g} in {same.sum()} rows and else {others.min():g} to {others.max():g}: if "
                f"it stands for no value, give --set input.missing={code:g}"
            )
    return None


def _twice(columns: Sequence[np.ndarray], who: np.ndarray | None) -> list[str]:
    """The sentence for rows that are in the table more than once."""
    keys = [tuple("" if v != v else v for v in row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    counts = Counter(keys)
    again = len(keys) - len(counts)
    if again < max(2, SHARE * len(keys)):
        return []
    elsewhere = 0
    if who is not None:
        first = dict[object, object]()
        elsewhere = sum(first.setdefault(key, name) != name for key, name in zip(keys, who.tolist(), strict=True))
    across = f", {elsewhere} of them at another client than before" if elsewhere else ""
    return [
        f"{again} of {len(keys)} rows are in it before, equal in every column{across}: if they are the same samples, "
        "keep each once, or what is trained on is tested on too"
    ]
