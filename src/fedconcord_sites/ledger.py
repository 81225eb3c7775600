"""A site's ledger: a line a message of what was asked, what was answered, and names and sizes of all that left.

Lines are only ever added. Each begins with the SHA-256 of the line before it and of its own text, so that a line that
is changed, or taken out of the middle, is found; `head` is that of the last one, which somebody may note elsewhere to
find that the end was cut off. A line is in the file before its answer leaves. What a site has answered before it knows
from here, after a restart too: the file is put aside by nobody but the site's own people.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedconcord.support import files
from fedconcord.support.errors import UserError

NAME = "ledger.txt"
FIRST = "0" * 64  # in place of the hash of a line before the first
Line = Mapping[str, Any]


def hashed(before: str, text: str) -> str:
    """The hash of a line whose text is this, after a line of that hash."""
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


class Ledger:
    """The ledger in a file, which need not be there yet.

    What was read is kept, and only what came since is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[Line] = []
        self.hashes: list[str] = []  # of the lines that were read
        self._end = 0

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self.hashes[-1] if self.hashes else FIRST

    def lines(self) -> Sequence[Line]:
        """All lines, each verified against the one before.

        A last line without its end is of a crash while it was written: its answer never left, and it counts as none.

        Raises:
            UserError: a line was changed or taken out, or the file cannot be read.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._end:
            self._lines, self.hashes, self._end = [], [], 0
        if size > self._end:
            with self.path.open("rb") as file:
                file.seek(self._end)
                whole = file.read().rpartition(b"\n")[0]
            for raw in whole.split(b"\n") if whole else ():
                self._take(raw)
            self._end += len(whole) + bool(whole)
        return self._lines

    def _take(self, raw: bytes) -> None:
        number = len(self._lines) + 1
        try:
            mark, _, text = raw.decode().partition(" ")
            if mark != hashed(self.head, text):
                raise ValueError
            line = json.loads(text)
        except ValueError:
            raise UserError(
                f"line {number} of the ledger {self.path} was changed, or one before it was taken out; restore the "
                "file from a copy: without it the site does not know what it has answered"
            ) from None
        self._lines.append(line)
        self.hashes.append(mark)

    def append(self, line: Line) -> None:
        """Put a line down, with the time; it survives a crash of the machine."""
        self.lines()
        text = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **line}, ensure_ascii=False)
        raw = f"{hashed(self.head, text)} {text}".encode()
        files.private_folder(self.path.parent)
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(self._end)  # what a crash left half written
            file.seek(self._end)
            file.write(raw + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(raw)
        self._end += len(raw) + 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else asks and answers from this ledger meanwhile, where the system has locks."""
        files.private_folder(self.path.parent)
        with open(os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            try:
                import fcntl
            except ImportError:  # Windows
                yield
                return
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def epsilon_of(lines: Iterable[Line]) -> float:
    """What these lines spend of a file's privacy: the largest epsilon of each run, added (deltas add as well)."""
    by_run: dict[str, float] = {}
    for line in lines:
        if "epsilon" in line:
            by_run[line["run"]] = max(by_run.get(line["run"], 0.0), float(line["epsilon"]))
    return sum(by_run.values())


def shown(line: Line) -> str:
    """A line for people."""
    run, job = str(line.get("run", "")), str(line.get("job", ""))[:12]
    words = [str(line["time"]), str(line.get("server") or "-"), f"job {job}", f"run {run}", f"round {line['round']}"]
    words.append(f"{line['kind']} -> {line['answer']}")
    if "why" in line:
        return " ".join([*words, f"({line['why']})"])
    words += [f"{line['bytes']} bytes", *line.get("tensors", ())]
    words += [f"{count} texts of {name!r}" for name, count in line.get("texts", {}).items()]
    if "epsilon" in line:
        words.append(f"epsilon {line['epsilon']:.4g} of this run")
    return " ".join(words)
