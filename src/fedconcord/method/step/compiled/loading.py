"""From source to machine code: compiled once after an installation, then read from the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from fedconcord.method.contract import Network
from fedconcord.method.step.samples import Samples
from fedconcord.method.step.sizes import Fixed
from fedconcord.method.step.walk import Chain
from fedconcord.support import files
from fedconcord.support.errors import UserError

CHILD = "import sys; from fedconcord.method.step.compiled.loading import compile_into; compile_into(*sys.argv[1:])"


def installed() -> bool:
    """Whether numba is there."""
    return sys.modules.get("numba") is not None or importlib.util.find_spec("numba") is not None


@cache
def load(dtype: torch.dtype) -> ModuleType:
    """The module of compiled functions, those for numbers of this kind ready.

    Where they have to be compiled it is said. Processes that ask at once wait for the first, and read what it wrote.

    A process of its own compiles: beside its result, what just compiled a function has other copies of what it calls,
    takes some of those, and so differs in last bits from every process that reads the result.

    Raises:
        UserError: they cannot be compiled.
    """
    folder = _folder()
    kind = str(dtype).removeprefix("torch.")
    done = folder / f"{kind}.done"
    with _alone(folder / "lock"):
        if not done.exists():
            logging.getLogger("fedconcord").warning(
                "compiling the local steps of dense networks for %s: once an installation, about a quarter of a minute",
                kind,
            )
            path = os.pathsep.join(filter(None, sys.path))
            child = [sys.executable, "-P", "-c", CHILD, kind, str(folder)]
            ended = subprocess.run(child, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)
            if ended.returncode != 0:
                why = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
                raise UserError(f"the local steps cannot be compiled ({why}); use engine.kernel torch")
            done.touch()
    code = _imported(folder)
    _try(code, dtype)
    return code


def compile_into(kind: str, folder: str) -> None:
    """Compile the functions for numbers of a kind, float32 or float64, into a folder."""
    _try(_imported(Path(folder)), getattr(torch, kind))


def _folder() -> Path:
    """Where compiled code lies, named after all that numba asks before it reads what is there: the content, place and
    time of the source, and the processor, or the one that its settings name. What it does not read it compiles in this
    process, with last bits as in `load`.
    """
    import llvmlite.binding as llvm
    import numba

    sources = sorted(Path(__file__).parent.glob("*.py"))
    source = b"".join(path.read_bytes() + f"{path.absolute()} {path.stat().st_mtime_ns}".encode() for path in sources)
    settings = [vars(numba.config)[name] for name in ("CPU_NAME", "CPU_FEATURES", "ENABLE_AVX")]
    machine = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {settings}"
    versions = f"{numba.__version__} {np.__version__} {sys.implementation.cache_tag}"
    name = hashlib.sha256(source + f"{machine} {versions}".encode()).hexdigest()[:16]
    folder = files.user_cache() / "compiled" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no place to keep it: compiled anew in every process
        return Path(tempfile.mkdtemp(prefix="fedconcord-"))
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process is here, where the system has locks."""
    with path.open("a") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # gone when the file is closed, whatever closes it
        yield


def _imported(folder: Path) -> ModuleType:
    """The module; numba notes a function's place on disk when it is decorated."""
    from numba import config

    settings = vars(config)
    before = settings["CACHE_DIR"]
    settings["CACHE_DIR"] = str(folder)
    try:
        from fedconcord.method.step.compiled import network
    finally:
        settings["CACHE_DIR"] = before
    return network


def _try(code: ModuleType, dtype: torch.dtype) -> None:
    """A call with nobody in it, which compiles or reads what a call of this kind needs."""
    from fedconcord.method.step.compiled import take

    none = torch.empty(0, dtype=torch.int64)
    network = Network((1, 1), "cross_entropy", torch.empty(0, 0, dtype=torch.uint8), None, None, none)
    chain = Chain(torch.empty(0, 2, dtype=dtype), (), Fixed(0.0))
    take(code, chain, network, Samples(none.reshape(0, 0, 0), None), None, np.empty(0, np.int64))
