"""What the program's own processes settle before torch is loaded, and how many cores a process has."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from contextlib import suppress
from pathlib import Path

TRIM, MMAP = -1, -3  # of glibc's malloc.h; docs/speed.md has what they save
KEPT, MAPPED, SPINS = 2**28, 2**26, 5000  # bytes; and turns of GNU OpenMP's waiting loop: 0.1 ms


def settle() -> None:
    """Let torch's threads sleep soon when they wait, and memory stay that is wanted again; a user's own settings count.

    Threads that spin keep the one that they wait for from its core where the cores have other work too; those that
    sleep at once are awake too late for the next product. Memory that is handed back after every product comes again
    in pages of zeros: here free memory is kept up to `KEPT`, and what is larger than `MAPPED` still goes back at once.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & {*os.environ}:
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": str(SPINS)}  # read when torch is loaded
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(MMAP, MAPPED)
            mallopt(TRIM, KEPT)


def cores(root: Path = Path("/")) -> int:
    """How many cores this process may keep busy: those that it may run on, or what its container may use, rounded up.

    Args:
        root: of the files in which Linux says what a container may use: cpu.max (cgroup v2), cpu.cfs_quota_us (v1).
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([here, *(max(1, math.ceil(quota)) for quota in _quotas(root))])


def machine() -> str:
    """What this machine is, in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else math.nan
    return f"{cores()} cores ({platform.machine()}), {memory:.0f} GiB, Python {platform.python_version()}"


def _quotas(root: Path) -> list[float]:
    """The limits in cores of the groups of this process and of those above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = (controllers, "cpu") if controllers else ("", "unified")
        for top in (root / "sys/fs/cgroup" / name for name in names):
            below = top / path.lstrip("/")
            # a container may see its own group as the top, under another path than this one
            groups = [top, *(group for group in (below, *below.parents) if group.is_relative_to(top) and group != top)]
            quotas += [quota for group in groups if (quota := _quota(group)) is not None]
    return quotas


def _quota(group: Path) -> float | None:
    """The limit of one group in cores; None where there is none."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota == "max" or int(quota) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
