"""What may be wrong with a table that can be read: rows twice, and numbers that stand for no value. Notes, no refusals.

A false alarm is worse than none: a number is doubted only where it lies further from all others than these lie apart,
and equal rows only where they have columns in which chance repeats little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedconcord.data.sources import Source, numbers, texts

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
    known = {name: np.concatenate(parts) for name, parts in values_of.items() if len({p.dtype for p in parts}) == 1}
    digits = {name: values for name, values in known.items() if values.dtype != object}
    sentences = [sentence for name, values in digits.items() if (sentence := _code(name, values)) is not None]
    telling = sum(len(np.unique(values[~np.isnan(values)])) > VALUES for values in digits.values())
    if telling >= TELLING and len(known) == len(columns):
        sentences += _twice([*known.values()], np.concatenate(who) if who else None)
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
