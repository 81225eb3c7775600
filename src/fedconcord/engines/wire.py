"""Server and clients in one process that share nothing but bytes: the proof that a client can live on its own.

Every client holds a copy of its own samples and its own rows, the server holds none; what passes between them are the
frames of `remote.codec`, with faults injected by the run's seed. Without faults it computes what `serial` computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconcord.core import Plan, Problem, Tree, rng, tree_map
from fedconcord.engines.base import Abilities, Clients
from fedconcord.engines.team import ALONE, Team
from fedconcord.local.duty import Duty
from fedconcord.remote.client import Kept, RemoteClient, kept_like
from fedconcord.remote.codec import Frame
from fedconcord.remote.link import Faults, Link, Parcel, Traffic
from fedconcord.remote.store import RemoteStore, remote_store
from fedconcord.remote.sums import PLAIN, Sums
from fedconcord.remote.way import Hooks, RestartError, Send
from fedconcord.state import First, Storage, Store
from fedconcord.transforms.forms import forms

RESTARTS = 3  # of the server in one round, so that every round ends


@dataclass(frozen=True)
class Wire:
    """Runs rounds over a wire with faults.

    Args:
        faults: what goes wrong.
        tries: how often a client is asked in a round before it is left out.
        seed: of the faults.
    """

    faults: Faults = Faults()  # what goes wrong
    tries: int = 5  # how often a client is asked in a round
    seed: int = 0  # of the faults
    team: Team = ALONE  # the processes that share every round

    @property
    def can(self) -> Abilities:
        """The clients hold their own rows, and nothing is chosen."""
        return Abilities(clients_here=False)

    def prepare(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Wire:
        """Itself: there is nothing to choose."""
        return self

    def stored_row(self, template: Tree) -> Tree:
        """The row that counts and the pending one."""
        return kept_like(template)

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """The clients' own shelves, behind one store; after a prologue each makes its first row itself."""
        shelves = storage.open(kept_like(template), None, problem.roster.n)
        way = SimulatedWay(self, problem, duty, shelves)
        return RemoteStore(way, duty.algorithm, problem, template, shelves)

    def clients(self, problem: Problem, duty: Duty, store: Store) -> Clients:
        """All of them, behind the store."""
        return remote_store(store)


def traffic_of(store: Store) -> dict[str, int]:
    """What went over the wire, by name, for run.json; nothing where all clients are at hand."""
    return store.traffic._asdict() if isinstance(store, RemoteStore) else {}


class Shelf(NamedTuple):
    """One client's rows in a store of all clients'."""

    store: Store
    id: int

    def read(self) -> Kept | None:
        """What the client kept, None before it ever did."""
        ids = np.array([self.id])
        if not self.store.known(ids)[0]:
            return None
        template, stored = self.store.template, self.store.gather(ids)
        kept: Kept = tree_map(lambda leaf, like: leaf[0].reshape(like.shape), stored, template)
        return kept

    def write(self, kept: Kept) -> None:
        """Keep this in its place."""
        self.store.scatter(np.array([self.id]), tree_map(lambda leaf: leaf[None], kept))


class SimulatedWay:
    """The way to clients in this process, with its faults and the messages that are under way; see `remote.store.Way`.

    Each client has a copy of its own samples and its shelf, and nothing else.
    """

    name = "wire"
    elsewhere = "the checkpoint is of a run on another engine than wire; resume with the engine it had"
    method: str | None = None
    is_simulated = True
    hooks: Hooks = Hooks()
    sums: Sums = PLAIN

    def __init__(self, engine: Wire, problem: Problem, duty: Duty, shelves: Store) -> None:
        self.engine, self.problem, self.duty, self.shelves = engine, problem, duty, shelves
        self.forms = forms(duty.algorithm, problem.init(0))
        self.tries, self.link = engine.tries, Link(engine.faults)
        self.clients: dict[int, RemoteClient] = {}  # what a restart loses

    @property
    def exchanges(self) -> int:
        return self.link.now

    def begin(self) -> Send:
        """As `Way` says; the server restarts a few times at most."""
        draw = rng.generator(self.engine.seed, rng.Purpose.FAULT, self.link.now)
        probability, restarts = self.engine.faults.server_restart, 0

        def exchange(sent: list[tuple[int, bytes]], silent: frozenset[int]) -> list[tuple[int, bytes]]:
            nonlocal restarts
            arrived = self.link.exchange(draw, sent, partial(self._answer, draw), silent)
            if probability and restarts < RESTARTS and draw.random() < probability:
                restarts += 1
                raise RestartError
            return arrived

        return exchange

    def _answer(self, draw: np.random.Generator, client: int, data: bytes) -> list[bytes]:
        """What reaches a client, and what it answers; it is made when it is first reached, and after a restart."""
        if self.engine.faults.restart and draw.random() < self.engine.faults.restart:
            self.clients.pop(client, None)
            self.link.restarts += 1
        if client not in self.clients:
            shelf, samples = Shelf(self.shelves, client), self.problem.objective.alone(client)
            self.clients[client] = RemoteClient(client, self.duty, samples, shelf, self.forms)
        return self.clients[client].receive(data)

    def counted(self, traffic: Traffic) -> Traffic:
        link = self.link
        return traffic._replace(
            lost=link.lost,
            duplicated=link.duplicated,
            delayed=link.delayed,
            corrupted=link.corrupted,
            client_restarts=link.restarts,
        )

    def write(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The messages that are under way."""
        parcels = self.link.on_their_way()
        fields = {"now": self.link.now, "parcels": [[*parcel[:4], len(parcel.data)] for parcel in parcels]}
        return fields, {str(k): parcel.data for k, parcel in enumerate(parcels, 1)}

    def restore(self, frame: Frame, traffic: Traffic) -> None:
        parcels = [
            Parcel(due, order, client, up, frame.tensors[str(k)].numpy().tobytes())
            for k, (due, order, client, up, _) in enumerate(frame.fields["parcels"], 1)
        ]
        self.link.restore(frame.fields["now"], parcels, traffic)
