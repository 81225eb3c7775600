"""The one error that a user's mistake raises: a sentence that says what, where, given, and what to do."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedconcord.support.synonyms import SYNONYMS

OURS = str(Path(__file__).parents[1])


class UserError(ValueError):
    """A mistake in the input. Its text is one sentence; the command prints it without a traceback."""


class LostError(RuntimeError):
    """Another process of a distributed job is gone, so that this one cannot go on. Its text is one sentence."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that was meant, or None if none is near: one with the same last part, then by another word for
    it, then the most similar. Dashes, dots and capitals do not count.
    """
    whole = {_plain(name): name for name in reversed(list(known))}  # of two names the first one stays
    ends = {name.rpartition(".")[2]: whole[name] for name in whole}
    word = _plain(word)
    last = word.rpartition(".")[2]
    for name in (*SYNONYMS.get(word, ()), last, *SYNONYMS.get(last, ())):
        if name in ends:
            return ends[name]
    for term, names in ((word, whole), (last, ends)):
        if match := difflib.get_close_matches(term, names, n=1, cutoff=0.5):
            return names[match[0]]
    return None


def closest(word: str, names: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for the known name nearest to the word one, or '' if none is near."""
    name = nearest(word, names)
    return "" if name is None else f" (did you mean {name!r}?)"


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")


def reason(error: Exception) -> str:
    """Why a file could not be read, without the path and number that the system adds: the sentence has said which."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def in_words(error: BaseException) -> str:
    """What somebody else's code raised, on one line: its kind and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Around somebody else's code: whatever it raises becomes one sentence, with `what` ahead and where behind.

    Raises:
        UserError: as it came, or made of another error.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(OURS)]
        first = [one for one in frames if one.filename == frames[0].filename and "site-packages" not in one.filename]
        raise UserError(f"{what}: {in_words(error)}{_at(first)}") from error


def raised_with(files: Collection[str], error: BaseException) -> str | None:
    """What code in these files raised, and where, as a sentence, or what rounds with it did; None for other errors."""
    frames = traceback.extract_tb(error.__traceback__)
    if theirs := [one for one in frames if one.filename in files]:
        return f"{in_words(error)}{_at(theirs)}"
    if not files or not any(Path(one.filename).match("fedconcord/execution/job/*.py") for one in frames):
        return None
    names = ", ".join(sorted(Path(name).name for name in files))
    came = f"{in_words(error)}{_at(frames)}, which may come of what code in {names} returned"
    return f"{came}; a method is tested by fedconcord.testing.check_algorithm"


def _at(frames: Sequence[traceback.FrameSummary]) -> str:
    """' (mine.py, line 12)' of the last of these lines, or '' if there is none."""
    return "".join(f" ({Path(one.filename).name}, line {one.lineno})" for one in frames[-1:])


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The sentence for a name that is not in a list of names."""
    names = sorted(known)
    return UserError(f"unknown {what} {name!r}{closest(name, names)}; known: {', '.join(names) if names else 'none'}")


def sentence(error: UserError | LostError | OSError) -> str:
    """An error as one line that names the file it is about."""
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {what}" if error.filename else what
    return " ".join(str(error).split())
