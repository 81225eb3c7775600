"""Checksums of a folder's files, in a file beside them: what was changed after it was written is noticed.

checksums.json has the CRC-32s of each file's content, a list as two are right while the file is replaced: it is written
first, with the sum of what still lies there and of what comes. So a process that is killed between the two leaves
nothing that looks damaged. It has a sum of its own. A folder without it, of an older version, is read as it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from fedconcord.support import files

NAME = "checksums.json"
TRIES = 5  # of a reader while somebody writes


class DamagedError(ValueError):
    """A file is not what was written. Its text says why, in some words."""


def write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """`files.write_bytes` of files by name, in their order, with their checksums; what lies there already stays.

    Raises:
        DamagedError: the folder's checksums are damaged.
    """
    sums_of = _known(folder)
    before, new = dict(sums_of), dict[str, bytes]()
    for name, content in contents.items():
        old = (folder / name).read_bytes() if (folder / name).exists() else None
        there = [] if old is None or old == content else [_sum(old)]
        if name in sums_of:  # what is damaged now stays so
            there = [one for one in there if one in sums_of[name]]
        sums_of[name] = sorted({*there, _sum(content)})
        new |= {} if old == content else {name: content}
    if sums_of != before:
        files.write_json(folder / NAME, {**sums_of, NAME: [_total(sums_of)]})
    for name, content in new.items():
        files.write_bytes(folder / name, content)


def read(path: Path) -> bytes:
    """A file's content.

    Raises:
        OSError: it cannot be read.
        DamagedError: it, or the folder's checksums, are not what was written.
    """
    for _ in range(TRIES):  # its writer may have been faster than this
        expected = _known(path.parent).get(path.name)
        content = path.read_bytes()
        if expected is None or _sum(content) in expected:
            return content
    raise DamagedError(f"its checksum differs; if it was changed on purpose, remove {path.with_name(NAME)}")


def text(path: Path) -> str:
    """`read`, as UTF-8.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8.
        DamagedError: as `read`.
    """
    return read(path).decode()


def _known(folder: Path) -> dict[str, list[str]]:
    path = folder / NAME
    try:
        sums = json.loads(path.read_bytes())
        if sums.pop(NAME) == [_total(sums)]:
            return dict(sums)
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedError(f"{path} is damaged; if the files beside it are right, remove it")


def _total(sums_of: dict[str, list[str]]) -> str:
    return _sum(json.dumps(sums_of, sort_keys=True).encode())


def _sum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"
