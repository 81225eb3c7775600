"""Processes that are watched, and that end with whoever started them, however that ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from fedconcord.support.errors import UserError, reason
from fedconcord.support.files import for_owner
from fedconcord_flower.stamps import STAMP

KEEPER = "import os, signal, sys; sys.stdin.read(); os.killpg(0, signal.SIGKILL)"
ASTRAY = ("SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONWARNINGS", "PYTHONIOENCODING")
TAIL = 6  # lines of a log that a sentence quotes
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NOISE = re.compile(r"uvicorn\.access|ControlServicer\.List|^[ :]*$|^INFO ?: ?$")  # lines that say nothing


class Started(NamedTuple):
    """One process."""

    command: Sequence[str]
    log: Path  # stdout and stderr
    process: subprocess.Popen[bytes]


class Ended(NamedTuple):
    """A process that ended without being asked."""

    name: str
    code: int  # minus the signal that killed it
    log: Path
    lines: Sequence[str]  # the last of its log


def free_port() -> int:
    """A port of 127.0.0.1 that nobody had a moment ago; who starts something there must be ready to try another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_loopback() -> None:
    """Raises:
    UserError: processes of this machine cannot reach each other.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as here:
            socket.create_connection(here.getsockname(), timeout=10).close()
    except OSError as error:
        raise UserError(
            f"processes of this machine cannot reach each other at 127.0.0.1 ({reason(error)}), as a trial needs; "
            "bring up its loopback interface (ip link set lo up)"
        ) from None


def last_lines(log: Path, count: int = TAIL) -> list[str]:
    """The last lines of a log that say something, without times and colours."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    lines = [" ".join(STAMP.sub("", COLOUR.sub("", line), count=1).split()) for line in text[-20_000:].splitlines()]
    return [line for line in lines if not NOISE.search(line)][-count:]


class Processes:
    """Processes by name, in one group that a keeper kills when this process ends: after Ctrl-C, an error, kill -9.

    The keeper holds the group's number and reads a pipe whose other end only this process has. Its end, whatever the
    cause, is the end of the pipe, and then of the group with all that its members started.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self.environment = dict(environment)
        self.started: dict[str, Started] = {}
        self.keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processes:
        self.keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process under a name; of a second one under the same name the log goes on in the same file."""
        assert self.keeper is not None, "within `with`"
        log = self.logs / f"{name}.log"
        with open(log, "ab", opener=for_owner) as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                process_group=self.keeper.pid,
            )
        self.started[name] = Started(command, log, process)

    def ended(self) -> list[Ended]:
        """Those that are no longer there."""
        codes = [(name, one.log, one.process.poll()) for name, one in self.started.items()]
        return [Ended(name, code, log, last_lines(log)) for name, log, code in codes if code is not None]

    def states(self) -> str:
        """Each process, whether it runs and what it said last, for a sentence."""
        lines = []
        for name, one in self.started.items():
            code = one.process.poll()
            state = "runs" if code is None else exit_words(code)
            lines.append(f"{name} {state}, last line {quoted(last_lines(one.log, 1))}")
        return "; ".join(lines)

    def stop(self) -> None:
        """End all of them, and wait until they are gone."""
        if self.keeper is None:
            return
        pipe: IO[bytes] | None = self.keeper.stdin
        assert pipe is not None
        pipe.close()
        self.keeper.wait()
        for one in self.started.values():
            one.process.wait()
        self.keeper = None


def exit_words(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def quoted(lines: Sequence[str]) -> str:
    return repr(" | ".join(lines)) if lines else "none"


def lost_sentence(lost: Ended) -> str:
    return f"the process {lost.name} {exit_words(lost.code)}; its last lines in {lost.log}: {quoted(lost.lines)}"


def environment(home: Path) -> dict[str, str]:
    """This process's environment without what may lead Flower's processes elsewhere.

    No proxies, which http clients would ask even for 127.0.0.1, and no authorities of others; no installations,
    look-ups of new versions or telemetry, which need a network; a home of their own; warnings that are no errors; and
    text in UTF-8, as Flower prints signs that other codings lack.

    Args:
        home: where Flower unpacks its apps and keeps its settings.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("FLWR_") and name not in ASTRAY
    }
    bins = os.path.dirname(sys.executable)
    return environment | {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "NO_PROXY": "*",
        "PATH": os.pathsep.join([bins, os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
    }
