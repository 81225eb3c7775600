"""Ctrl-C between two rounds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ctrl_c = threading.Event()
"""Set by every Ctrl-C, as one may be lost otherwise: where a run has nothing left to end it raises nothing, and a
compiler may swallow what it raises. A study clears it first: what came before is not its own."""


def raising(number: int, frame: object) -> None:
    """The handler of Ctrl-C before the rounds."""
    ctrl_c.set()
    raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a round is never cut in half; the second one acts as ever."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)
    if before is raising and ctrl_c.is_set():
        event.set()

    def note(number: int, frame: object) -> None:
        event.set()
        ctrl_c.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def heeded() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, in a process too that a shell started in the background, where it is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
