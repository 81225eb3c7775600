"""Pages of docs that are run as they stand: each `sh` block is one command, the `text` block below it what it prints.

`python tests/pages.py docs/tutorial.md` runs a page in a new folder and writes what the commands print now into it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```sh\n(?P<command>.*?)\n```\n```text\n(?P<said>.*?)\n?```$", re.MULTILINE | re.DOTALL)
PROGRESS = re.compile(  # what differs from run to run: times, and what is said now and then
    r"^(?:time: .*|\[\d+/\d+\] .*|.*: \d+ of \d+ rounds|.*: round \d+ of \d+.*)\n?", re.MULTILINE
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each command of a page and the output below it."""
    return [(found["command"], found["said"]) for found in BLOCK.finditer(page.read_text())]


def command(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command of the package in a folder, with more in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "fedconcord", *arguments],
        cwd=folder,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )


def says(folder: Path, line: str) -> str:
    """What a command of a page prints on stdout, without progress; it must succeed and complain of nothing."""
    program, *arguments = shlex.split(line.replace("\\\n", " "))
    assert program == "fedconcord"
    done = command(folder, *arguments, COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done.stderr}"
    return PROGRESS.sub("", done.stdout).strip()


def prepare(folder: Path) -> Path:
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def write(page: Path) -> None:
    """The page with what its commands print now."""
    with tempfile.TemporaryDirectory() as made:
        folder = prepare(Path(made))
        new = BLOCK.sub(
            lambda found: f"```sh\n{found['command']}\n```\n```text\n{says(folder, found['command'])}\n```",
            page.read_text(),
        )
    page.write_text(new)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
