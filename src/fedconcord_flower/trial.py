"""A deployment on this machine alone: a real SuperLink and a real SuperNode a site, with TLS and keys, on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fedconcord.federation.data import federated
from fedconcord.study.runs.events import Finished
from fedconcord.study.runs.records import finished
from fedconcord.support.errors import LostError, UserError
from fedconcord.support.files import sweep
from fedconcord_flower import commands, grid, keys
from fedconcord_flower.app import PACKAGE, Order, write_app
from fedconcord_flower.nodes import ANSWERS, Link, Node, Nodes, Tell
from fedconcord_flower.processes import Processes, check_loopback, environment, free_port, lost_sentence
from fedconcord_sites import policy
from fedconcord_sites.edge import Edge
from fedconcord_sites.edges import tops_of
from fedconcord_sites.form import input_settings, source_of
from fedconcord_sites.overview import Overview, overview
from fedconcord_sites.serve import NO_EDGES, check
from fedconcord_sites.site import NAMED, Site

HOST = "127.0.0.1"
SUPERLINK = "superlink"
STARTS = 5  # of a SuperLink, each time at another port
TAKEN = "address already in use"
FINISHED = "finished"
PAUSE = 0.5  # seconds between two looks


class CutError(LostError):
    """The SuperLink ended after a round, and with it all that it knew: what is in the folder can be resumed."""


class Member(NamedTuple):
    """One site."""

    name: str
    data: Path | None  # its samples; None for its part of data that the job names
    later: bool = False  # its SuperNode starts after round 1


class Trial(NamedTuple):
    """What is tried."""

    settings: str  # the job, TOML
    members: Sequence[Member]
    folder: Path  # of the results
    place: Path  # of keys, logs and what sites remember
    limit: float  # seconds until all sites have to be there
    wait: float  # seconds for an answer
    resume: bool
    policy: Path | None = None  # of every site; the usual one if none
    edges: Mapping[str, Sequence[str]] = NO_EDGES  # edge server -> the sites and edge servers right below it


class Tier(NamedTuple):
    """A SuperLink with those who come to it, and the run that was submitted to it."""

    members: Sequence[Node]  # those who come
    control: grid.Control
    nodes: Nodes
    number: int


def job_of(place: Path) -> Path:
    """The settings of the last start of a trial.

    Raises:
        UserError: there was none.
    """
    paths = sorted(place.glob(f"*/app/{PACKAGE}/job.toml"))
    if not paths:
        raise UserError(f"{place} has no trial to continue; --resume takes the folder of results of an earlier one")
    return paths[-1]


def side_by_side(settings: str, members: Sequence[Member]) -> Overview:
    """What the sites' own files hold, and what looks wrong.

    Raises:
        UserError: the job's settings are wrong; a site's file cannot be read.
    """
    reading = input_settings(source_of(settings))
    return overview({one.name: federated.open_file(one.data, reading) for one in members if one.data is not None})


def differences(
    settings: str,
    members: Sequence[Member],
    place: Path,
    rules: policy.Policy = policy.USUAL,
    edges: Mapping[str, Sequence[str]] = NO_EDGES,
) -> list[str]:
    """What keeps these sites from this job, in a sentence each: the comparison before round 0, in this process alone.

    Raises:
        UserError: the job's settings are wrong, or cannot be deployed; a site's file cannot be read.
    """
    ring = _keys(place / "keys", members)
    ends: dict[str, Site | Edge] = {
        one.name: Site(settings, one.data or NAMED, place / one.name, one.name, policy=rules, keys=ring)
        for one in members
        if not one.later
    }

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        return {name: ends[name].answer(data) for name, data in messages.items()}

    ends |= {name: Edge(settings, exchange) for name in edges}
    rows = _rows(settings, members)
    return check(settings, [one.name for one in members], exchange, 0.0, rows, edges)


def run(trial: Trial, tell: Tell) -> Finished:
    """Start everything, run the job, end everything; what came of it.

    A SuperLink that ends is started again with all others, and the run resumed, if there was a round since its start.

    Raises:
        LostError: a process ended that should not, sites did not come, or the job failed; the sentence says why.
        UserError: the job cannot run.
    """
    while True:
        try:
            return _once(trial, tell)
        except CutError as cut:
            tell({"say": f"{cut}; all processes are started again, and the run goes on from its last round"})
            trial = trial._replace(resume=True)


def _once(trial: Trial, tell: Tell) -> Finished:
    """One start of everything."""
    names = [member.name for member in trial.members]
    check_loopback()
    trial = trial._replace(place=trial.place.resolve())
    sweep(trial.place)
    now = str(time.time_ns())
    began = trial.place / now  # certificate and app of this start: a SuperLink in memory knows no earlier ones
    began.mkdir(parents=True)
    events = began / "events.jsonl"
    ring = _keys(trial.place / "keys", [*trial.members, *(Member(name, None) for name in trial.edges)])
    ends = {member.name: _node(trial, ring, member) for member in trial.members}
    later = [ends[member.name] for member in trial.members if member.later]
    for name in trial.edges:
        ends[name] = _node(trial, ring, Member(name, None))._replace(edge=_meeting(trial, name))
    results, see = str(trial.folder.resolve()), str(events.resolve())
    rows = _rows(trial.settings, trial.members)
    order = Order(names, results, trial.wait, trial.resume, see, rows, trial.edges)
    tops = tops_of(trial.edges)
    from_above = [*tops]  # an edge after the one above it
    for name in from_above:
        from_above += [one for one in trial.edges[name] if one in trial.edges]
    with ExitStack() as opened:
        edges = list[Below]()
        for name in reversed(from_above):
            edges.append(Below(trial, name, began / name, [ends[one] for one in trial.edges[name]], later, tell))
            opened.callback(edges[-1].opened.close)
            edges[-1].start()
        there = [ends[name] for name in tops or names]
        _follow(_tier(opened, trial, "", began, order, there, later, tell), edges, events, later)
    return finished(trial.folder)


def _tier(
    opened: ExitStack,
    trial: Trial,
    name: str,
    began: Path,
    order: Order,
    nodes: Sequence[Node],
    later: Sequence[Node],
    tell: Tell,
) -> Tier:
    """A SuperLink to which these come, and the app submitted to it.

    Args:
        opened: ends it with all its processes.
        name: of the edge server; '' for the root.
        began: a new folder for its certificate and its app.
        later: nodes that are not started yet.
    """
    write_app(began / "app", trial.settings, order)
    files = keys.write_server(began, ["localhost", HOST])
    logs, home = trial.place / "logs" / name, trial.place / "home" / name
    processes = opened.enter_context(Processes(logs, environment(home)))
    link, control = _superlink(processes, files, trial.limit)
    opened.callback(control.close)
    watched = Nodes(processes, link, control.sites, began, apps=True, tell=tell)
    for node in nodes:
        control.register(node.name, keys.public_key(node.key.with_suffix(".pub")))
        if node not in later:
            watched.start(node)
    watched.start_worker()
    _join(watched, [node.name for node in nodes if node not in later], trial.limit)
    return Tier(nodes, control, watched, control.submit(began / "app"))


class Below:
    """An edge server with those right below it, which is started again where one of its processes ended."""

    def __init__(
        self, trial: Trial, name: str, began: Path, nodes: Sequence[Node], later: Sequence[Node], tell: Tell
    ) -> None:
        self.trial, self.name, self.began, self.nodes, self.later, self.tell = trial, name, began, nodes, later, tell
        self.starts, self.opened = 0, ExitStack()

    def start(self) -> None:
        """Raises as `run`."""
        self.starts += 1
        began, sites = self.began.with_name(f"{self.name}-{self.starts}"), [node.name for node in self.nodes]
        began.mkdir()
        order = Order(sites, "", self.trial.wait, False, "", edge=str(_meeting(self.trial, self.name)))
        self.tier = _tier(self.opened, self.trial, self.name, began, order, self.nodes, self.later, self.tell)

    def look(self) -> None:
        """See that all is there, or start it again."""
        try:
            self.tier.nodes.watch()
            status, details = self.tier.control.status(self.tier.number)
            if status == FINISHED and not details.startswith("completed"):
                raise LostError(f"its app {details or 'failed'}")
        except LostError as lost:
            self.tell({"say": f"edge server {self.name}: {lost}; it is started again, with what is below it"})
            self.opened.close()
            self.start()


def _meeting(trial: Trial, edge: str) -> Path:
    """Where an edge server attends to its SuperNode."""
    return trial.place / "edges" / edge


def _keys(folder: Path, members: Sequence[Member]) -> Path:
    """The folder of all members' keys, which are made where they are not there: a run that goes on has the same."""
    for member in members:
        if not (folder / f"{member.name}.key").exists():
            keys.write_site(folder, member.name)
    return folder


def _node(trial: Trial, ring: Path, member: Member) -> Node:
    """A member's SuperNode."""
    return Node(
        member.name, ring / f"{member.name}.key", member.data, trial.place / "sites" / member.name, trial.policy
    )


def _rows(settings: str, members: Sequence[Member]) -> dict[str, int]:
    """How many rows the files of those have that come later, which has to be said before round 0.

    Raises:
        UserError: a file cannot be read.
    """
    reading = input_settings(source_of(settings))
    files = {one.name: one.data for one in members if one.later and one.data is not None}
    return {name: federated.open_file(path, reading).rows for name, path in files.items()}


def _superlink(processes: Processes, files: keys.Server, limit: float) -> tuple[Link, grid.Control]:
    """A SuperLink that answers; at another port where somebody took the first meanwhile."""
    for tries_left in reversed(range(STARTS)):
        port = free_port()
        link = Link(f"{HOST}:{port}", files.authority)
        processes.start(SUPERLINK, commands.superlink_command(HOST, port, *files))
        control = grid.Control(*link)
        end = time.monotonic() + limit
        while not (lost := processes.ended()):
            if control.answers():
                return link, control
            if time.monotonic() > end:
                raise LostError(f"the SuperLink did not answer within {limit:.0f} s; {processes.states()}")
            time.sleep(PAUSE)
        control.close()
        if not tries_left or not any(TAKEN in line for line in lost[0].lines):
            raise LostError(lost_sentence(lost[0]))
    raise AssertionError("the last start returns or raises")


def _join(nodes: Nodes, sites: Sequence[str], limit: float) -> None:
    """Wait until these sites are there."""
    end = time.monotonic() + limit
    while True:
        states = nodes.watch()
        missing = [site for site in sites if states.get(site) != ANSWERS]
        if not missing:
            return
        if time.monotonic() > end:
            raise LostError(
                f"{len(missing)} of {len(sites)} sites were not there after {limit:.0f} s ({', '.join(missing)}); "
                f"{nodes.processes.states()}; --limit SECONDS waits longer"
            )
        time.sleep(PAUSE)


def _follow(root: Tier, edges: Sequence[Below], events: Path, later: list[Node]) -> None:
    """Tell what happens until the run is over, and start those that come later after round 1: none is later then.

    Raises:
        CutError: the SuperLink ended after a round.
        LostError: it failed.
        UserError: the server's half refused the job.
    """
    _, control, nodes, number = root
    lines_read, status, details, rounds = 0, "", "", 0
    while status != FINISHED:
        for edge in edges:
            edge.look()
        try:
            nodes.watch()
            status, details = control.status(number)
        except LostError as lost:
            time.sleep(PAUSE)  # what ended is known by then
            cut = rounds and any(one.name == SUPERLINK for one in nodes.processes.ended())
            raise CutError(str(lost)) if cut else lost from None
        lines = events.read_bytes().split(b"\n")[:-1] if events.exists() else []
        for line in lines[lines_read:]:
            event = json.loads(line)
            if "error" in event:
                raise UserError(event["error"])
            nodes.tell(event)
            rounds += "round" in event
            if later and event.get("round", 0) > 0:
                for tier in (root, *(edge.tier for edge in edges)):
                    for node in (one for one in tier.members if one in later):
                        tier.nodes.start(node)
                later.clear()
        lines_read = len(lines)
        time.sleep(0 if status == FINISHED else PAUSE)
    if not details.startswith("completed"):
        raise LostError(f"the run at the server {details or 'failed'}; {nodes.processes.states()}")
