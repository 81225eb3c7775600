"""One writer a folder: a lock that dies with its process.

The lock is the system's (`flock`) on an open file, so it is gone with the process whatever ends it, and a process id
that is used again means nothing. The file is removed when the lock is let go; one that a killed process left is
harmless. Several processes share it once the first of them had it alone: nobody else begins while one of them lives and
may write rows of its clients. Where the system or the file system has no such locks, nothing is locked.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError, reason

NAME = ".lock"
LEFT = re.compile(r"\.(checksums|run|compare|tune)\.json\.\d+\.tmp")  # the first files of a folder, half written
PATIENCE = 1.0  # seconds that a killed comparison's workers may take to end


@contextmanager
def held(folder: Path, team: Team = ALONE) -> Iterator[None]:
    """Write in a folder alone; it is made where it is missing, and goes again if nothing was written. What killed
    processes left half written there goes.

    Of several processes all call this. Rank 0 takes the lock for itself, and then all of them share it, but those that
    do not see the folder.

    Raises:
        UserError: another process writes there, or nothing can be written there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor: int | None = None

    def take() -> str:
        nonlocal descriptor
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _taken(folder / NAME)
            files.sweep(folder)
            if team.size > 1 and not _locked(descriptor, alone=False):  # somebody took it as it changed
                raise _taken_already(folder)
        except OSError as error:
            raise UserError(f"cannot write in the folder {folder} ({reason(error)}); give another one") from None
        return ""

    team.tell(take)
    if team.rank != 0:
        with suppress(OSError):
            descriptor = os.open(folder / NAME, os.O_RDWR)
            _locked(descriptor, alone=False)
    try:
        yield
    finally:
        if descriptor is not None:
            if _locked(descriptor):  # nobody shares it any more
                with suppress(OSError):
                    os.unlink(folder / NAME)  # while it is held: whoever opened it before finds it gone
            os.close(descriptor)
        with suppress(OSError):  # not empty
            for path in missing:
                path.rmdir()


def is_free(folder: Path) -> bool:
    """Whether a folder holds nothing, or only what a process left that was killed before it had written anything."""
    return all(path.name in (NAME, sums.NAME) or LEFT.fullmatch(path.name) for path in folder.iterdir())


def _taken(path: Path) -> int:
    """The descriptor of the file, locked."""
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if _locked(descriptor):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        os.close(descriptor)
        if time.monotonic() > until:
            raise _taken_already(path.parent)
        time.sleep(0.05)


def _taken_already(folder: Path) -> UserError:
    return UserError(
        f"another process is writing in the folder {folder}; wait until it has ended, or give another folder"
    )


def _locked(descriptor: int, alone: bool = True) -> bool:
    """Whether this open file is locked now, for itself alone or with others, or its file system has no locks."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
