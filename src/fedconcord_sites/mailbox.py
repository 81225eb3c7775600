"""Questions and answers between two processes of one machine, as files in a folder that is their owner's alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from fedconcord.support import files
from fedconcord.support.errors import LostError

POLL = 0.05  # seconds between two looks


def ask(folder: Path, data: bytes, seconds: float) -> bytes:
    """The answer to a question.

    Raises:
        LostError: it did not come in time, and is not wanted any more.
    """
    files.private_folder(folder)
    end = time.time_ns() + int(seconds * 1e9)
    question = folder / f"{end}-{secrets.token_hex(8)}.question"
    answer = question.with_suffix(".answer")
    try:
        files.write_bytes(question, data, mode=0o600)
        while time.time_ns() < end:
            if answer.exists():
                return answer.read_bytes()
            time.sleep(POLL)
        raise LostError(f"nobody answers in {folder} within {seconds:.0f} s; is the app of the edge server submitted?")
    finally:
        question.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)


def attend(folder: Path, answer: Callable[[bytes], bytes], is_over: Callable[[], bool]) -> None:
    """Answer questions one after the other, whose time ends first before others, until it is over."""
    files.private_folder(folder)
    while not is_over():
        questions = sorted(folder.glob("*.question"))
        for path in questions[:1]:
            try:
                is_late = int(path.name.partition("-")[0]) < time.time_ns()  # of a process that was killed
                data = b"" if is_late else answer(path.read_bytes())
            except FileNotFoundError:  # not wanted any more
                continue
            if path.exists() and not is_late:
                files.write_bytes(path.with_suffix(".answer"), data, mode=0o600)
            path.unlink(missing_ok=True)
        if not questions:
            time.sleep(POLL)
