"""From source to machine code: compiled once after an installation, then read from the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedconcord.method.contract import Network
from fedconcord.method.step.samples import Samples
from fedconcord.method.step.sizes import Fixed
from fedconcord.method.step.walk import Chain
from fedconcord.support import files
from fedconcord.support.errors import UserError

CHILD = "import sys; from fedconcord.method.step.compiled.loading import compile_into; compile_into(*sys.argv[1:])"
BYTES: Any = {"bool": ctypes.c_int8, "int": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double}


@cache
def installed() -> bool:
    """Whether numba is there: looked up once, as every round asks and a look takes a twentieth of a short one."""
    return importlib.util.find_spec("numba") is not None


class Code:
    """A function that numba compiled, called by its address with what tuples and arrays consist of.

    Args:
        content: its name, and a line below it the machine code.
        like: arguments of the kinds that it takes.
    """

    def __init__(self, content: bytes, like: tuple[Any, ...]) -> None:
        name, _, machine_code = content.partition(b"\n")
        self._engine = engine_of(machine_code)  # which holds the code
        self._kinds = [_kind(leaf) for leaf in _leaves(like)]
        types = [BYTES[type(value).__name__] for leaf in _leaves(like) for value in _values(leaf)]
        call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *types)  # it lets go of Python's lock
        self._call = call(self._engine.get_function_address(name.decode()))

    def __call__(self, *arguments: Any) -> None:
        leaves, result, error = _leaves(arguments), ctypes.c_void_p(), ctypes.c_void_p()
        assert [_kind(leaf) for leaf in leaves] == self._kinds  # or it would read what is not there
        values = [value for leaf in leaves for value in _values(leaf)]
        status = self._call(ctypes.addressof(result), ctypes.addressof(error), *values)
        assert status == 0


def engine_of(machine_code: bytes) -> Any:
    """What holds machine code and knows its addresses."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    return engine


def _leaves(arguments: tuple[Any, ...]) -> list[Any]:
    """The arrays and numbers of arguments, some of which are tuples."""
    return [leaf for one in arguments for leaf in (one if isinstance(one, tuple) else (one,))]


def _kind(leaf: Any) -> tuple[Any, ...]:
    """What a leaf has to be like for the code to read it."""
    return (leaf.dtype, leaf.ndim, leaf.flags.carray) if isinstance(leaf, np.ndarray) else (type(leaf),)


def _values(leaf: Any) -> tuple[Any, ...]:
    """As numba passes a leaf: who holds an array comes first, and is nobody."""
    if isinstance(leaf, np.ndarray):
        place = leaf.__array_interface__["data"][0] if leaf.size else 0
        return 0, 0, leaf.size, leaf.itemsize, place, *leaf.shape, *leaf.strides
    return (leaf,)


@cache
def load(dtype: torch.dtype) -> Code:
    """The compiled function for numbers of this kind, read from the user's cache: no compiler is loaded for it.

    Where it has to be compiled a process of its own does so, and it is said; so it is where the file is damaged, which
    would end this process. Processes that ask at once wait for the first, and read what it wrote.

    Raises:
        UserError: it cannot be compiled.
    """
    kind = str(dtype).removeprefix("torch.")
    path = _folder() / f"{kind}.o"
    with _alone(path.parent / "lock"):
        while (content := _content(path)) is None:
            logging.getLogger("fedconcord").warning(
                "compiling the local steps of dense networks for %s: once an installation, about a quarter of a minute",
                kind,
            )
            _child(["-c", CHILD, kind, str(path)])
    return Code(content, _nobody(dtype))


def machine_code(key: str, text: Callable[[], str]) -> bytes:
    """What LLVM makes of its language, read from the user's cache as `load` has it; a tenth of a second the first time.

    Args:
        key: of the code in the cache: the text, or what it is written from, its program among it.

    Raises:
        UserError: it cannot be compiled.
    """
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.o"
    with _alone(path.parent / "lock"):
        while (content := _content(path)) is None:
            _write(path, _child([str(Path(__file__).with_name("llvm.py")), *processor()], text()))
    return content


def processor() -> tuple[str, str]:
    """Name and features of the processor that code is made for: this one, or the one of numba's settings."""
    import llvmlite.binding as llvm

    name = os.environ.get("NUMBA_CPU_NAME")
    features = "" if name else llvm.get_host_cpu_features().flatten()
    return name or llvm.get_host_cpu_name(), os.environ.get("NUMBA_CPU_FEATURES", features)


def _child(command: list[str], text: str = "") -> bytes:
    """What a process of Python's prints to its standard output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-P", *command], input=text.encode(), env=environment, capture_output=True)
    if ended.returncode != 0:
        why = (ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        raise UserError(f"the local steps cannot be compiled ({why}); use engine.kernel torch")
    return ended.stdout


def _content(path: Path) -> bytes | None:
    """What a file holds behind the sum of it in the first line; None where there is no file, or the sum is another."""
    sum_, _, content = path.read_bytes().partition(b"\n") if path.exists() else (b"", b"", b"")
    return content if hashlib.sha256(content).hexdigest().encode() == sum_ else None


def compile_into(kind: str, path: str) -> None:
    """Compile the function for numbers of a kind, float32 or float64, into a file."""
    from numba import typeof

    from fedconcord.method.step.compiled.network import cohort

    types = tuple(map(typeof, _nobody(getattr(torch, kind))))
    cohort.compile(types)
    made = cohort.overloads[types]
    content = f"{made.fndesc.llvm_func_name}\n".encode() + made.library._get_compiled_object()
    _write(Path(path), content)


def _write(path: Path, content: bytes) -> None:
    files.write_bytes(path, f"{hashlib.sha256(content).hexdigest()}\n".encode() + content)


def _folder() -> Path:
    """Where compiled code lies, named after what makes it: source, versions, processor and numba's settings."""
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    machine = f"{processor()} {settings}"
    versions = f"{version('numba')} {version('llvmlite')} {np.__version__} {sys.implementation.cache_tag}"
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


def _nobody(dtype: torch.dtype) -> tuple[Any, ...]:
    """The arguments of a call with nobody in it."""
    from fedconcord.method.step.compiled import arguments

    none = torch.empty(0, dtype=torch.int64)
    network = Network((1, 1), "cross_entropy", torch.empty(0, 0, dtype=torch.uint8), None, None, none)
    chain = Chain(torch.empty(0, 2, dtype=dtype), (), Fixed(0.0))
    samples, x = Samples(none.reshape(0, 0, 0), None), chain.x.numpy()
    return arguments({}, chain.size, x, network, samples, None, none.numpy(), x)
