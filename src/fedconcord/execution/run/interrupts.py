"""Ctrl-C between two rounds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_interrupted = threading.Event()


def raising(number: int, frame: object) -> None:
    """The handler of Ctrl-C before the rounds: KeyboardInterrupt, kept in mind as a compiler may swallow it."""
    _interrupted.set()
    raise KeyboardInterrupt


def forget() -> None:
    """A Ctrl-C of the run before is not one of the next."""
    _interrupted.clear()


@contextmanager
def deferred() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a round is never cut in half; the second one acts as ever."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)
    if before is raising and _interrupted.is_set():
        event.set()

    def note(number: int, frame: object) -> None:
        event.set()
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
