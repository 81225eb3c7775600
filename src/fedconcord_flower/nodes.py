"""SuperNodes that are looked after: one a site, started again where that may help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.support.errors import LostError
from fedconcord.support.files import write_text
from fedconcord_flower import commands
from fedconcord_flower.processes import Ended, Processes, exit_words, free_port, lost_sentence, quoted

Tell = Callable[[Mapping[str, Any]], None]
"""Is told what happens: the events of `fedconcord_flower.grid`, {"say": a sentence}, {"sites": state by name}."""

WORKER = "worker"
HELD = 180.0  # seconds to wait until a SuperLink takes a killed SuperNode for gone; it does after about 60
ANSWERS = "online"
STRANGE = "is not known to the server any more; was its key revoked?"


class Link(NamedTuple):
    """A SuperLink."""

    address: str  # host:port
    authority: Path  # the certificate by which it is known


class Node(NamedTuple):
    """A site and its SuperNode."""

    name: str  # under which the key is registered
    key: Path
    data: Path | None  # the site's samples; None for its part of data that the job names
    folder: Path  # of what the site remembers between rounds
    policy: Path | None = None  # what it answers; the usual if none
    edge: Path | None = None  # of an edge server, the folder in which it attends


class Nodes:
    """SuperNodes among watched processes, and the worker for their tasks.

    Args:
        states: asks the SuperLink for the state of a site by its name.
        place: a folder for their settings.
        apps: whether the worker runs the SuperLink's apps too.
    """

    def __init__(
        self,
        processes: Processes,
        link: Link,
        states: Callable[[], Mapping[str, str]],
        place: Path,
        apps: bool,
        tell: Tell,
    ) -> None:
        self.processes = processes
        self.link = link
        self.states = states
        self.place = place
        self.apps = apps
        self.tell = tell
        self.nodes: dict[str, Node] = {}  # by the name of the process
        self.ports: dict[str, int] = {}
        self.starts: dict[str, int] = {}  # since a site was last there
        self.gone: dict[str, float] = {}  # when a SuperNode was seen to have ended
        self.known: Mapping[str, str] = {}

    def start(self, node: Node) -> None:
        process = f"site-{node.name}"
        self.nodes[process] = node
        self.starts[process] = 0
        self._start(process)

    def start_worker(self) -> None:
        self._say_where()
        self.processes.start(WORKER, commands.worker_command(self._runtimes()))

    def watch(self) -> Mapping[str, str]:
        """Look after all processes, and say what changed; the sites' states.

        Raises:
            LostError: one ended that is not started again: a SuperNode that did not come to answer, any other at once.
        """
        self._look({})
        try:
            states = self.states()
        except LostError:
            time.sleep(1)  # what ended is known by then, and says more
            self._look({})
            raise
        if states != self.known:
            self.tell({"sites": dict(states)})
            self.known = states
        self._look(states)
        return states

    def _look(self, states: Mapping[str, str]) -> None:
        ended = {lost.name: lost for lost in self.processes.ended()}
        for process, lost in ended.items():
            if process not in self.nodes:
                raise LostError(lost_sentence(lost))
            self._again(lost, states.get(self.nodes[process].name))
        for process, node in self.nodes.items():
            if process not in ended and states.get(node.name) == ANSWERS:
                self.starts[process] = 1

    def _again(self, lost: Ended, state: str | None) -> None:
        """Start a SuperNode once more when it is let in: one that was killed is taken for there for a while."""
        site = self.nodes[lost.name].name
        if lost.name not in self.gone:
            if self.starts[lost.name] > 1:
                raise LostError(lost_sentence(lost))
            self.gone[lost.name] = time.monotonic()
            text = f"{exit_words(lost.code)}, last line {quoted(lost.lines[-1:])}"
            self.tell({"say": f"the SuperNode of {site} {text}; it is started again once the server takes it for gone"})
        if state in (None, STRANGE) or (state == ANSWERS and time.monotonic() - self.gone[lost.name] < HELD):
            return
        del self.gone[lost.name]
        self._start(lost.name)

    def _start(self, process: str) -> None:
        node = self.nodes[process]
        self.starts[process] += 1
        self.ports[process] = port = free_port()
        config = self.place / f"{process}.toml"
        data = "" if node.data is None else str(node.data.resolve())
        values = {"name": node.name, "data": data, "folder": str(node.folder.resolve()), "server": self.link.address}
        values["keys"] = str(node.key.parent.resolve())
        optional = {"policy": node.policy, "edge": node.edge}
        values |= {key: str(path.resolve()) for key, path in optional.items() if path is not None}
        write_text(
            config, "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        )
        self.processes.start(process, commands.supernode_command(*self.link, node.key, config, port))
        self._say_where()

    def _say_where(self) -> None:
        commands.write_runtimes(self._runtimes(), self.link if self.apps else None, list(self.ports.values()))

    def _runtimes(self) -> Path:
        return self.place / "runtimes.json"
