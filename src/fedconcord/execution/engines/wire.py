"""Server and clients in one process that share nothing but bytes: the proof that a client can live on its own.

Every client holds a copy of its own samples and its own rows, the server holds none; what passes between them are the
frames of `messages.codec`, with faults injected by the run's seed. Without faults it computes what `serial` computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedconcord.execution.engines.base import Abilities, Clients
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.messages.client import RemoteClient, StoredState, stored_like
from fedconcord.execution.messages.link import Faults, Link
from fedconcord.execution.messages.store import RemoteStore, remote_store
from fedconcord.execution.rows import First, Storage, Store
from fedconcord.method.contract import Plan, Problem, Tree, tree_map
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.wrappers.forms import forms


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
        """The clients hold their own rows, one that counts and one that is pending; nothing is chosen."""
        return Abilities(clients_here=False, stored_row=stored_like)

    def prepare(self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int = 1) -> Wire:
        """Itself: there is nothing to choose."""
        return self

    def open(
        self, problem: Problem, assignment: Assignment, storage: Storage, template: Tree, first: First | None
    ) -> Store:
        """The clients' own shelves, behind one store; after a prologue each makes its first row itself."""
        shelves = storage.open(stored_like(template), None, problem.roster.n)
        messages = forms(assignment.algorithm, problem.init(0))

        def make(client: int) -> RemoteClient:
            return RemoteClient(client, assignment, problem.objective.alone(client), Shelf(shelves, client), messages)

        link = Link(self.faults, self.tries, self.seed, make)
        return RemoteStore(link, assignment.algorithm, problem, template, shelves)

    def clients(self, problem: Problem, assignment: Assignment, store: Store) -> Clients:
        """All of them, behind the store."""
        return remote_store(store)


def traffic_of(store: Store) -> dict[str, int]:
    """What went over the wire, by name, for run.json; nothing where all clients are at hand."""
    return store.traffic._asdict() if isinstance(store, RemoteStore) else {}


class Shelf(NamedTuple):
    """One client's rows in a store of all clients'."""

    store: Store
    id: int

    def read(self) -> StoredState | None:
        """What the client kept, None before it ever did."""
        ids = np.array([self.id])
        if not self.store.known(ids)[0]:
            return None
        template, stored = self.store.template, self.store.gather(ids)
        state: StoredState = tree_map(lambda leaf, like: leaf[0].reshape(like.shape), stored, template)
        return state

    def write(self, state: StoredState) -> None:
        """Keep this in its place."""
        self.store.scatter(np.array([self.id]), tree_map(lambda leaf: leaf[None], state))
