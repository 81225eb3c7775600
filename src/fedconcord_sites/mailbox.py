"""Questions and answers between two processes of one machine, as files in a folder that is their owner's alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from fedconcord.support import files

POLL = 0.05  # seconds between two looks


def ask(folder: Path, data: bytes, seconds: float) -> bytes | None:
    """The answer to a question; None where it does not come in time, and is not wanted any more."""
    question = folder / f"{time.time_ns()}-{secrets.token_hex(8)}.question"
    answer, end = question.with_suffix(".answer"), time.monotonic() + seconds
    try:
        files.write_bytes(question, data, mode=0o600)
        while time.monotonic() < end:
            if answer.exists():
                return answer.read_bytes()
            time.sleep(POLL)
        return None
    except FileNotFoundError:  # nobody attends it yet
        return None
    finally:
        question.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)


def attend(folder: Path, answer: Callable[[bytes], bytes], is_over: Callable[[], bool]) -> None:
    """Answer questions one after the other, the oldest first, until it is over; those from before are dropped."""
    files.private_folder(folder)
    for path in [*folder.glob("*.question"), *folder.glob("*.answer")]:
        path.unlink(missing_ok=True)
    while not is_over():
        questions = sorted(folder.glob("*.question"))
        for path in questions[:1]:
            try:
                data = answer(path.read_bytes())
            except FileNotFoundError:  # not wanted any more
                continue
            if path.exists():
                files.write_bytes(path.with_suffix(".answer"), data, mode=0o600)
            path.unlink(missing_ok=True)
        if not questions:
            time.sleep(POLL)
