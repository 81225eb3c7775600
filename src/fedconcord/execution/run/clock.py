"""Where the seconds of a run go: seconds.json, beside the tables, as no run repeats them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord.support.readers import read_json

NAME = "seconds.json"
PARTS = ("start", "load", "compile", "train", "evaluate", "write")
"""The command before it reads settings; data, partition and problem; kernels; rounds; models judged; files."""


class Clock:
    """Every moment goes to one part, so that the parts add up to the whole.

    Args:
        began: when the first lap began; now if none.
    """

    def __init__(self, began: float | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.last = now() if began is None else began
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.before = dict.fromkeys(PARTS, 0.0)  # of the run until it was resumed

    def lap(self, part: str) -> None:
        """The time since the last lap went to a part."""
        now = self.now()
        self.seconds[part] += now - self.last
        self.last = now

    def move(self, seconds: float, part: str, to: str) -> None:
        """So many seconds of a part were another's."""
        self.seconds[part] -= seconds
        self.seconds[to] += seconds

    def go_on(self, folder: Path) -> None:
        """Add to what the run of a folder took before; a file that is not there counts as none.

        Raises:
            UserError: it is damaged.
        """
        try:
            saved = read_json(folder / NAME, "restore or remove it")
            self.before = {part: float(saved[part]) for part in PARTS}
        except FileNotFoundError:
            self.before = dict.fromkeys(PARTS, 0.0)
        except (KeyError, TypeError) as broken:
            raise UserError(f"cannot read {folder / NAME} ({broken}); restore or remove it") from None

    def contents(self) -> dict[str, bytes]:
        """seconds.json, up to now, by its name."""
        self.lap("write")
        return {NAME: files.as_json({part: round(self.before[part] + self.seconds[part], 6) for part in PARTS})}

    def sentence(self) -> str:
        """Where the time went since it began, the parts that a person would notice."""
        whole = sum(self.seconds.values())
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self.seconds.items() if seconds >= 0.05)
        return f"time: {whole:.1f} s ({parts})"


def of_process() -> Clock:
    """A clock that began with this process, where the system says when that was."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return Clock()
    return Clock(time.perf_counter() - age)
