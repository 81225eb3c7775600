"""Columns that are numbers but for some texts: which of the two they are must be said, so that no typing error decides.

One `unk` among ages would otherwise make every age a category of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedconcord.basis.errors import UserError
from fedconcord.data.sources import NUMBER, Source, texts

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
    numbers: dict[str, set[str]] = {name: set() for name in columns}
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
            numbers[name] |= set(_some(values.filter(pc.fill_null(number, False)), MOST - len(numbers[name])))
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
        if others[name] and len(numbers[name]) >= len(others[name]):
            raise UserError(_sentence(source.path.name, name, list(others[name]), rows[name], count[name]))
        different, values = len(numbers[name]) + len(others[name]), known[name]
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
