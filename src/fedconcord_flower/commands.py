"""Commands that start a SuperLink, a SuperNode and the worker for their tasks: `fedconcord_flower.grid` as a module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedconcord.support.files import write_json

SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"  # Flower's names of the two kinds of tasks


def _module(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "fedconcord_flower.grid", *arguments]


def superlink_command(
    host: str, port: int, authority: Path, certificate: Path, key: Path, operators: str = ""
) -> list[str]:
    """A SuperLink that lets in only sites whose keys are registered, and starts no process of its own.

    What it knows is in memory. With a file (`--database`) that of flwr 1.41 answers some questions with an error when
    several sites ask at once, and the run ends.

    Args:
        operators: networks of who may submit runs, as `door.networks` reads them; this machine may in any case.
    """
    return _module(
        *("superlink", operators, "--host", host, "--port", str(port)),
        *("--isolation", "process", "--enable-supernode-auth"),
        *("--disable-runtime-dependency-installation", "--ssl-ca-certfile", str(authority)),
        *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
    )


def supernode_command(server: str, authority: Path, key: Path, config: Path, port: int) -> list[str]:
    """A SuperNode that starts no process of its own; its tasks are fetched at the port, from this machine alone.

    Args:
        config: a TOML file with the site's `name`, `data` and `folder`.
    """
    return _module(
        *("supernode", "--superlink", server, "--root-certificates", str(authority), "--isolation", "process"),
        *("--auth-supernode-private-key", str(key), "--node-config", str(config)),
        *("--host", "127.0.0.1", "--port", str(port)),
    )


def worker_command(runtimes: Path) -> list[str]:
    """The worker for what `write_runtimes` wrote."""
    return _module("work", str(runtimes))


def write_runtimes(path: Path, superlink: tuple[str, Path] | None, supernodes: Sequence[int]) -> None:
    """Tell a worker, which may run already, where tasks are.

    Args:
        superlink: its address, and the certificate by which it is known.
        supernodes: ports of this machine.
    """
    link = [] if superlink is None else [(SERVER_APP, superlink[0], str(superlink[1]))]
    write_json(path, [*link, *((CLIENT_APP, f"127.0.0.1:{port}", "") for port in supernodes)])
