"""A server or a site on a team's own machines: looked at before it starts, and watched until it is stopped."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from fedconcord.support import files
from fedconcord.support.errors import LostError, UserError
from fedconcord_flower import commands, door, grid, keys, rotation
from fedconcord_flower.nodes import ANSWERS, HELD, STRANGE, Link, Node, Nodes, Tell
from fedconcord_flower.processes import Processes, environment, lost_sentence

SUPERLINK = "superlink"
PAUSE = 1.0  # seconds between two looks


def server(folder: Path, host: str, port: int, operators: str, tell: Tell) -> None:
    """A SuperLink and the worker for its apps, which let in every site whose NAME.pub is in the folder, also later.

    Args:
        operators: networks of who may submit runs beside this machine, separated by commas.

    Raises:
        UserError: a key or certificate is missing, expired or another's.
        LostError: a process ended, for instance since the port is taken.
    """
    files = keys.server_files(folder)
    keys.check_server(files)
    door.networks(operators)
    place = folder / "server"
    link = Link(f"127.0.0.1:{port}", files.authority)
    with Processes(place / "logs", environment(place / "home")) as processes, closing(grid.Control(*link)) as control:
        processes.start(SUPERLINK, commands.superlink_command(host, port, *files, operators))
        while not control.answers():
            for lost in processes.ended():
                raise LostError(lost_sentence(lost))
            time.sleep(PAUSE)
        door.check(*link)
        nodes = Nodes(processes, link, control.sites, place, apps=True, tell=tell)
        nodes.start_worker()
        tell({"say": f"the server listens at {host}:{port}; logs: {place / 'logs'}"})
        while True:
            admit(folder, control, tell)
            nodes.watch()
            time.sleep(PAUSE)


def admit(folder: Path, control: grid.Control, tell: Tell) -> None:
    """Let in the sites whose keys are in the folder, and no more those that were revoked or came with a new key."""
    refused, states = rotation.revoked(folder), control.states()
    for path in sorted([*folder.glob("*.pub"), *folder.glob("before/*.pub")]):
        if (key := keys.public_key(path)) not in states and key not in refused:
            keys.check_names([path.stem])
            control.register(path.stem, key)
            tell({"say": f"site {path.stem} may come"})
        after = folder / path.name
        if path != after and after.exists() and states.get(keys.public_key(after)) == ANSWERS:
            rotation.withdraw(folder, path)  # the site has come with the key after it
    for key in refused & states.keys():
        control.dismiss(key)
        tell({"say": f"a key was withdrawn, {keys.mark_of(key)}; whoever has it is refused"})


def site(
    name: str,
    address: str,
    data: Path | None,
    folder: Path,
    place: Path,
    tell: Tell,
    rules: Path | None = None,
    edge: Path | None = None,
) -> None:
    """A SuperNode and the worker for its tasks.

    Args:
        address: the server's, host:port.
        data: the site's samples; None for an edge server.
        folder: has ca.crt and the site's NAME.key and NAME.pub.
        place: of what the site remembers, and of logs.
        rules: the site's policy; the usual one if none.
        edge: of an edge server, the folder in which it attends.

    Raises:
        UserError: the policy, the key, the certificate, the file or the server is not as it must be.
        LostError: a process ended.
    """
    from fedconcord_sites import policy

    keys.check_names([name])
    if rules is not None:
        policy.read(rules)
    key, authority = folder / f"{name}.key", folder / "ca.crt"
    coming = key.with_suffix(f".key{rotation.NEXT}")
    public = keys.public_of(key)
    if data is not None and not data.exists():
        raise UserError(f"there is no file {data}; --data names the site's samples")
    keys.check_reachable(address, authority)
    files.private_folder(place)
    link = Link(address, authority)
    with closing(grid.Control(*link)) as control:
        if coming.exists() and control.state_of(keys.public_of(coming)) is not None:
            rotation.take_next(folder, name)
            public = keys.public_of(key)
            tell({"say": f"the server knows the next key of {name}, which takes the place of the present one"})
        end = time.monotonic() + HELD
        while (now := control.state_of(public)) == ANSWERS and time.monotonic() < end:
            tell({"say": f"the server takes {name} for there still, as after a crash; waiting until it does not"})
            time.sleep(5 * PAUSE)
        if now is None:
            raise UserError(f"the server at {address} does not know {key}; give {name}.pub to its operator")
        if now == ANSWERS:
            raise UserError(f"site {name} runs already elsewhere with this key; stop it there first")

        def states() -> dict[str, str]:
            """The site's own state; none while the server is away, which SuperNodes wait for."""
            try:
                state = control.state_of(public)
            except LostError:
                return {}
            return {name: STRANGE if state is None else state}

        with Processes(place / "logs", environment(place / "home")) as processes:
            nodes = Nodes(processes, link, states, place, apps=False, tell=tell)
            nodes.start(Node(name, key, data, place / "state", rules, edge))
            nodes.start_worker()
            tell({"say": f"site {name} is started; logs: {place / 'logs'}"})
            while True:
                nodes.watch()
                time.sleep(PAUSE)
