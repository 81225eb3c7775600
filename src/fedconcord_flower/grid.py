"""Flower's Grid as the transport of a deployment, and all that this package asks of Flower: no other file imports it.

`server` and `client` make the two apps that Flower runs (message API). `Control` speaks to a SuperLink as its operator.
`work` runs the tasks of SuperLink and SuperNodes, in place of Flower's SuperExec, which starts an interpreter for every
message: here one process has imported everything and forks, which takes 0.1 s instead of seconds. Run as a module the
file is a SuperLink, a SuperNode or that worker; `commands` has their commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

from fedconcord.support import imports
from fedconcord.support.errors import LostError, UserError, sentence
from fedconcord.support.files import write_text
from fedconcord_flower import INSTALL
from fedconcord_flower.carrier import POLL, Back, Carrier, Letter
from fedconcord_flower.door import Door, networks
from fedconcord_flower.events import nameless, plain, teller
from fedconcord_flower.outside import as_data
from fedconcord_flower.stamps import stamp_output

if __name__ == "__main__":
    stamp_output()  # before flwr's loggers take the streams
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
try:
    Path.home()
except RuntimeError:  # a user without HOME and without a name, as in some containers: flwr looks for it all the same
    os.environ.setdefault("FLWR_HOME", str(Path(tempfile.gettempdir()) / f"flwr-{os.getuid()}"))

try:
    import httpx
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.cli.build import build_fab_from_disk
    from flwr.clientapp import ClientApp
    from flwr.proto.control_pb2 import (
        ListNodesRequest,
        ListRunsRequest,
        RegisterNodeRequest,
        StartRunRequest,
        UnregisterNodeRequest,
    )
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.constant import NodeStatus, TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
except ImportError as error:
    raise UserError(INSTALL) from error

KIND = "query.frame"  # of our messages: Flower's "query" with a name
FRAME = "frame"
NEEDED = (  # what answers need: imported by the worker once, for all its forks
    *("fedconcord_sites.serve", "fedconcord_sites.site", "pyarrow.compute", "sklearn.datasets"),
    "torch._dynamo",  # torch.func imports it with the first gradient, for more than a second
)
TRIES = 4  # of a question to a SuperLink
TASKS = 20  # that a SuperNode remembers


# -- the two apps --------------------------------------------------------------------------------------------------


def server(settings: str) -> ServerApp:
    """The server's app, for `app = server(settings)` in a module that Flower loads.

    Its run configuration names `sites` (separated by commas), `folder` (of the results), `wait` (seconds for an
    answer), `resume`, `check` (compare server and sites, train nothing), `events` (a file that gets lines of JSON,
    or ""), `later` (NAME=ROWS of sites that may come after round 0, separated by commas), `edges` (NAME=SITE+SITE of
    edge servers, a site or an edge server), and at one of these `edge` (the folder that it shares with its SuperNode).
    """
    imports.trust(settings)  # an app is code: who lets it in lets in what it names
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedconcord_flower.app import edges_of, later_of
        from fedconcord_sites.edge import Edge
        from fedconcord_sites.edges import tops_of
        from fedconcord_sites.form import has_secret_cohorts, source_of
        from fedconcord_sites.serve import check, serve

        config = context.run_config
        sites = [name.strip() for name in str(config["sites"]).split(",")]
        tell, wait = teller(str(config["events"])), float(config["wait"])
        folder, resume = Path(str(config["folder"])), bool(config["resume"])
        try:
            exchange = Carrier(GridPost(grid), nameless(tell) if has_secret_cohorts(source_of(settings)) else tell)
            if config["edge"]:
                return Edge(settings, exchange).attend(Path(str(config["edge"])))
            later, edges = later_of(str(config["later"]), sites), edges_of(str(config["edges"]))
            exchange.gather(tops_of(edges) or [name for name in sites if name not in later], wait)
            if config["check"]:
                return tell({"differences": check(settings, sites, exchange, wait, later, edges)})
            see, flow = (lambda event: tell(plain(event))), exchange.flow
            serve(settings, sites, exchange, folder, see, wait, resume, later=later, flow=flow, edges=edges)
            write_text(folder / "job.toml", settings)  # from which a signature has the job's digest
        except (UserError, LostError, OSError) as error:
            tell({"error": sentence(error)})
            raise

    return app


def client(settings: str) -> ClientApp:
    """A site's app.

    Its node configuration names `name`, `data` (the site's file, or "" for data that the job names), `folder` (of what
    the site remembers), and may name `policy` (its file), `keys` (the folder of its key and the other
    sites', for secure sums) and `server` (its address, for the ledger). That of an edge server names `edge` alone.
    """
    app = ClientApp()

    @app.query("frame")
    def answer(message: Message, context: Context) -> Message:
        from fedconcord_sites import mailbox, policy
        from fedconcord_sites.site import Site

        config = {key: str(value) for key, value in context.node_config.items()}
        message_bytes = _unpacked(message)
        if config.get("edge"):
            data = mailbox.ask(Path(config["edge"]), message_bytes, message.metadata.ttl)
            return Message(_packed(data), reply_to=message)
        try:
            rules = policy.read(Path(config["policy"])) if config.get("policy") else policy.USUAL
            if rules is policy.USUAL or rules.lists(settings):
                imports.trust(settings)  # without a policy the app's own code runs, which may import what it likes
            place, server = (Path(config["data"]), Path(config["folder"])), config.get("server", "")
            keys, tell = Path(config["keys"]) if config.get("keys") else None, partial(print, flush=True)
            site = Site(settings, *place, config["name"], policy=rules, server=server, tell=tell, keys=keys)
            return Message(_packed(site.answer(message_bytes)), reply_to=message)
        except UserError as error:  # the site's own fault; the server says it to people
            print(f"error: {error}", flush=True)
            return Message(_packed(_refusal(message_bytes, str(error))), reply_to=message)

    return app


def _refusal(message: bytes, why: str) -> bytes:
    """What a site says that cannot answer."""
    from fedconcord.execution.messages import codec

    frame = codec.read(message)
    return codec.write(codec.Frame("refused", frame.method, frame.round, frame.client, {"why": why}))


def _packed(data: bytes) -> RecordDict:
    return RecordDict({FRAME: ArrayRecord({FRAME: Array("uint8", (len(data),), "bytes", data)})})


def _unpacked(message: Message) -> bytes:
    """The bytes of a message; none where it is not one of ours, which the core then refuses and counts."""
    record = message.content.get(FRAME) if message.has_content() else None
    array = record.get(FRAME) if isinstance(record, ArrayRecord) else None
    return bytes(array.data) if array is not None else b""


class GridPost:
    """Flower's Grid as a `carrier.Post`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> dict[str, tuple[int, str]]:
        """As `Post` says."""
        return {node.name: (node.node_id, node.last_activated_at) for node in self.grid.get_nodes()}

    def send(self, letters: Sequence[Letter]) -> list[str]:
        """As `Post` says."""
        messages = [Message(_packed(one.data), one.node, KIND, ttl=one.seconds) for one in letters]
        return [identity or "" for identity in self.grid.push_messages(messages)]

    def fetch(self, identities: Sequence[str]) -> list[Back]:
        """As `Post` says."""
        return [
            Back(
                reply.metadata.reply_to_message_id,
                reply.metadata.src_node_id,
                _unpacked(reply) if reply.has_content() else None,
                str(reply.error.reason) if reply.has_error() else "",
            )
            for reply in self.grid.pull_messages(list(identities))
        ]


# -- as the operator of a SuperLink --------------------------------------------------------------------------------


class Control:
    """What an operator asks of a SuperLink: which sites it knows, and runs to start.

    Every method raises LostError where the SuperLink does not answer, or refuses.
    """

    def __init__(self, address: str, authority: Path) -> None:
        direct = filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1"))
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(direct)  # a proxy cannot reach this machine's own
        self.address = address
        self.http = ControlHttpClient.from_server_address(
            address, False, authority.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        )

    def close(self) -> None:
        """Let go of the connection."""
        self.http.close()

    def answers(self) -> bool:
        """Whether the SuperLink is up."""
        try:
            self.http.ListNodes(ListNodesRequest())
        except httpx.HTTPError:
            return False
        return True

    def sites(self) -> dict[str, str]:
        """'registered', 'online' or 'offline' by the site's name."""
        return {node.name: node.status for node in self._nodes() if node.name}

    def contacts(self) -> dict[str, tuple[str, str]]:
        """Its state and since when (ISO 8601, '' for one that never came), by the site's name."""
        since = {NodeStatus.ONLINE: "last_activated_at", NodeStatus.OFFLINE: "last_deactivated_at"}
        return {node.name: (node.status, getattr(node, since.get(node.status, ""), "")) for node in self._nodes()}

    def states(self) -> dict[bytes, str]:
        """The same by the public key (PEM)."""
        return {node.public_key: node.status for node in self._nodes()}

    def state_of(self, key: bytes) -> str | None:
        """The state of the site with this public key (PEM); None for a key that the SuperLink does not know."""
        return self.states().get(key)

    def register(self, site: str, key: bytes) -> None:
        """Let a site in by its public key (PEM)."""
        self._ask(self.http.RegisterNode, RegisterNodeRequest(public_key=key, name=site))

    def dismiss(self, key: bytes) -> None:
        """Let a site in no more by this public key (PEM), from its next request on."""
        for node in self._nodes():
            if node.public_key == key:
                try:
                    self._ask(self.http.UnregisterNode, UnregisterNodeRequest(node_id=node.node_id))
                except LostError:  # flwr fails on a site that was never there, after it has dismissed it
                    if self.state_of(key) is not None:
                        raise

    def submit(self, app: Path) -> int:
        """Start a run of the app in a folder, as `flwr run` does; the run's number."""
        bundle = build_fab_from_disk(app)
        fab = Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle)
        return int(self._ask(self.http.StartRun, StartRunRequest(fab=fab)).run_id)

    def status(self, run: int) -> tuple[str, str]:
        """('finished', 'completed'), ('finished', 'failed: why'), ('running', '') and so on."""
        status = self._ask(self.http.ListRuns, ListRunsRequest(run_id=run)).run_dict[run].status
        return status.status, ": ".join(filter(None, (status.sub_status, status.details)))

    def _nodes(self) -> Sequence[Any]:
        nodes = self._ask(self.http.ListNodes, ListNodesRequest()).nodes_info
        return [node for node in nodes if node.status != NodeStatus.UNREGISTERED]

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        for _ in range(TRIES):
            try:
                return call(request)
            except httpx.TimeoutException:  # after 30 s: a busy machine
                continue
            except httpx.HTTPStatusError as error:
                text = " ".join(error.response.text.split()) or str(error.response.status_code)
                raise LostError(f"the server at {self.address} refuses: {text}") from None
            except httpx.HTTPError as error:
                raise LostError(f"the server at {self.address} is not there any more ({error})") from None
        raise LostError(f"the server at {self.address} does not answer in time")


# -- processes -----------------------------------------------------------------------------------------------------


def work(runtimes: Path) -> None:
    """Fetch tasks and run each in a fork, for ever.

    Each place where tasks are has a fork of its own that asks there: one that does not answer keeps nobody waiting.
    """
    from fedconcord.study.settings.sources import keys  # which other processes of Flower's have no use for

    for module in ("flwr.superlink.runtime", *NEEDED):
        import_module(module)
    runtime = import_module("flwr.supernode.runtime.run_clientapp")
    load = as_data(runtime.get_load_client_app_fn, runtime.get_project_dir, client)
    setattr(runtime, "get_load_client_app_fn", load)  # noqa: B010  (its types know no such attribute)
    keys()  # the schema, made once
    forks = dict[tuple[str, ...], int]()  # place -> who asks there
    while True:
        for place in _places(runtimes) - forks.keys():
            forks[place] = _fork(partial(_fetch, runtimes, place))
        forks = {place: fork for place, fork in forks.items() if os.waitpid(fork, os.WNOHANG)[0] == 0}
        time.sleep(POLL)


def _places(runtimes: Path) -> set[tuple[str, ...]]:
    """(kind of tasks, address, certificate) of each place that `commands.write_runtimes` wrote."""
    return {tuple(place) for place in json.loads(runtimes.read_text())}


def _fetch(runtimes: Path, place: tuple[str, ...]) -> None:
    """Ask for tasks at one place while it is among those written, and run each in a fork."""
    from flwr.superlink.runtime import run_serverapp
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    kind, address, authority = place
    root = Path(authority).read_bytes() if authority else None
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    http = RuntimeHttpClient.from_server_address(address, root is None, root, [version])
    me, forks = os.getpid(), set[int]()
    while place in _places(runtimes):
        with contextlib.suppress(httpx.HTTPError):  # not up yet, or gone: who started it watches it
            token = http.AcquireTask(AcquireTaskRequest(supported_task_types=[kind])).token
            if token and kind == TaskType.CLIENT_APP:
                forks.add(_fork(partial(run_clientapp, address, token, root is None, root, parent_pid=me)))
            elif token:
                forks.add(_fork(partial(run_serverapp, address, Queue(), token, root is None, root, parent_pid=me)))
        forks = {fork for fork in forks if os.waitpid(fork, os.WNOHANG)[0] == 0}
        time.sleep(POLL)


def _fork(run: Callable[[], object]) -> int:
    """Run something in a fork of this process, which ends with it; the fork's number."""
    if (child := os.fork()) != 0:
        return child
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def forgetting(finish: Callable[..., bool]) -> Callable[..., bool]:
    """A SuperNode's way to finish a task that forgets old ones, which it would keep with their logs for ever."""

    def finish_task(state: Any, task_id: int, sub_status: str, details: str) -> bool:
        is_finished = finish(state, task_id, sub_status, details)
        for old in list(state.task_store)[:-TASKS]:  # one at a time is worked on
            state.task_store.pop(old, None)
            state.task_logs.pop(old, None)
        return is_finished

    return finish_task


def main(arguments: Sequence[str]) -> None:
    """A SuperLink, a SuperNode or a worker, as `commands` says."""
    what, *rest = arguments
    if what == "superlink":
        from flwr.superlink import main as superlink
        from flwr.superlink.cli import flower_superlink

        operators, *rest = rest
        create = superlink.create_app
        setattr(superlink, "create_app", lambda *order: Door(create(*order), networks(operators)))  # noqa: B010
        sys.argv = ["flower-superlink", *rest]
        flower_superlink()
    elif what == "supernode":
        from flwr.supernode import start_client_internal
        from flwr.supernode.cli import flower_supernode
        from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

        # asks for messages every three seconds, which would be most of a round
        often = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, POLL)))
        setattr(start_client_internal, "time", often)  # noqa: B010  (its types know no such attribute)
        setattr(InMemoryNodeState, "finish_task", forgetting(InMemoryNodeState.finish_task))  # noqa: B010
        sys.argv = ["flower-supernode", *rest]
        flower_supernode()
    else:
        work(Path(rest[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
