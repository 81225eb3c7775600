"""Lines of logs that begin with the time, in UTC."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO, cast

STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")  # some of Flower's lines have one


class Stamped:
    """A stream of text with the time before each line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.begins = True  # a line

    def write(self, text: str) -> int:
        """Write it in one piece, since several threads write.

        Raises:
            TypeError: it is no text, by which click finds out what kind of stream this is.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is written here, not {type(text).__name__}")
        pieces = []
        for line in text.splitlines(keepends=True):
            if self.begins and not STAMP.match(line):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                pieces.append(now.replace("+00:00", "Z "))
            pieces.append(line)
            self.begins = line.endswith("\n")
        self.stream.write("".join(pieces))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def stamp_output() -> None:
    """From here on, on stdout and stderr of this process; Flower puts the original streams back after a task."""
    for name in ("stdout", "stderr"):
        stream = cast(TextIO, Stamped(getattr(sys, name)))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
