"""Atomic writes, where a reader sees the old file or the new one and never half of one; names of folders."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconcord.support.errors import UserError


def write_bytes(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Replace the file's content in one step, by one piece or by several in turn; it survives a crash of the machine.

    Args:
        mode: who may read and write it, less the process's umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            for piece in (content,) if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)  # which the caller knows
        raise
    finally:
        temporary.unlink(missing_ok=True)


def private_folder(path: Path) -> None:
    """A folder for its owner's eyes, made if it is not there; one that is there keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def for_owner(path: str, flags: int) -> int:
    """An opener of `open`: a file that it makes is for its owner's eyes."""
    return os.open(path, flags, 0o600)


def sweep(folder: Path) -> None:
    """Remove what processes left half written, in a folder and below, that were killed; those that live finish it."""
    for path in folder.rglob(".*.tmp"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and not _alive(int(number)):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Indented JSON; keys keep their order."""
    write_bytes(path, as_json(value))


def as_json(value: Any) -> bytes:
    """What `write_json` writes."""
    return (json.dumps(value, indent=2) + "\n").encode()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> None:
    """A CSV file. Floats are written in full (shortest text that reads back to the same bits)."""
    write_bytes(path, as_csv(header, rows))


def as_csv(header: Sequence[Any], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> bytes:
    """What `write_csv` writes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(inert, header))
    for row in rows:
        cells = [row.get(name, "") for name in header] if isinstance(row, Mapping) else row
        writer.writerow(map(inert, cells))
    return out.getvalue().encode()


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of a formula


def inert(cell: Any) -> Any:
    """A cell that no spreadsheet computes: a text that begins as a formula does, and is no number, has an apostrophe
    before it; so has one that begins with such an apostrophe, that `plain` gives every text back."""
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def plain(cell: str) -> str:
    """The text of a cell that `inert` wrote."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def folder_name(label: str) -> str:
    """A label as a file name that no shell or browser stumbles over: fedprox(mu=0.1) -> fedprox-mu=0.1."""
    return re.sub(r"-+", "-", re.sub(r"[^\w.=+-]", "-", label)).strip("-.") or "run"


def free_folder(parent: Path, stem: str, out: str | Path | None = None) -> Path:
    """`out`, if it is given, else the first of parent/stem-1, parent/stem-2, ... that does not exist.

    Raises:
        UserError: `out` is a file, or holds something.
    """
    if out is not None:
        if (folder := Path(out)).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there and is not empty; give another folder as out")
        return folder
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def user_cache() -> Path:
    """Where the program keeps what it can make or fetch again; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "fedconcord"
