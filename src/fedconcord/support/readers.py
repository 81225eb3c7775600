"""How files of results are read back: JSON and CSV, verified by their checksums, damage said in one sentence."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedconcord.support import sums
from fedconcord.support.errors import UserError
from fedconcord.support.files import plain

AGAIN = "restore it or start the run again"


def read_json(path: Path, way: str = AGAIN) -> dict[str, Any]:
    """A JSON file that holds a table.

    Args:
        way: what to do where it is damaged, for the end of the sentence.

    Raises:
        FileNotFoundError: it is not there.
        UserError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(sums.text(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read {path} ({broken}); {way}") from None
    if not isinstance(content, dict):
        raise UserError(f"cannot read {path} (it holds a {type(content).__name__} in place of a table); {way}")
    return content


def read_csv(path: Path, way: str = AGAIN) -> tuple[list[str], list[list[str]]]:
    """The header of a CSV file and its rows, each with a cell a column.

    Raises:
        UserError: it cannot be read, or is no such table.
    """
    try:
        lines = [line for line in csv.reader(io.StringIO(sums.text(path), newline="")) if line]
    except (OSError, ValueError, csv.Error) as broken:
        raise UserError(f"cannot read {path} ({broken}); {way}") from None
    header, *rows = lines or [[]]
    twice = [name for name, count in Counter(header).items() if count > 1]
    uneven = next((k for k, row in enumerate(rows, start=2) if len(row) != len(header)), None)
    if not header:
        raise UserError(f"cannot read {path} (it is empty, a header line was expected); {way}")
    if twice:
        raise UserError(f"cannot read {path} (column {twice[0]!r} occurs twice in the header); {way}")
    if uneven is not None:
        cells = f"row {uneven} has {len(rows[uneven - 2])} cells where the header has {len(header)}"
        raise UserError(f"cannot read {path} ({cells}); {way}")
    return [*map(plain, header)], [[*map(plain, row)] for row in rows]


def columns(path: Path) -> dict[str, list[str]]:
    """Column -> the cells of a CSV file, as text.

    Raises:
        UserError: it cannot be read.
    """
    header, rows = read_csv(path)
    return {name: [row[j] for row in rows] for j, name in enumerate(header)}
