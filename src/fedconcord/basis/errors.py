"""The one error that a user's mistake raises: a sentence that says what, where, given, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in the input. Its text is one sentence; the command prints it without a traceback."""


class LostError(RuntimeError):
    """Another process of a distributed job is gone, so that this one cannot go on. Its text is one sentence."""


def closest(given: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for the known name closest to the given one, or '' if none is close."""
    lowered = {k.lower(): k for k in known}
    match = difflib.get_close_matches(given.lower(), lowered, n=1, cutoff=0.5)
    return f" (did you mean {lowered[match[0]]!r}?)" if match else ""


def reason(error: Exception) -> str:
    """Why a file could not be read, without the path and number that the system adds: the sentence has said which."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """The sentence for a name that is not in a list of names."""
    names = sorted(known)
    return UserError(f"unknown {what} {given!r}{closest(given, names)}; known: {', '.join(names) if names else 'none'}")


def sentence(error: UserError | LostError | OSError) -> str:
    """An error as one line that names the file it is about."""
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {what}" if error.filename else what
    return " ".join(str(error).split())
