"""The engine of a deployment: rounds over an exchange with real sites, in place of clients in memory.

The server's half is `server`. What it has decided in a round is in the checkpoint before a site hears of it: the
message after the server's step goes with the site's next orders, and no round begins before the last one is put down.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedconcord.execution.engines.base import Abilities, Clients
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.messages.store import RemoteStore, remote_store
from fedconcord.execution.messages.sums import PLAIN, Sums
from fedconcord.execution.rows import First, Storage, Store
from fedconcord.method.contract import Plan, Problem, Tree
from fedconcord.method.step.assignment import Assignment
from fedconcord_sites.problem import Deployed
from fedconcord_sites.site_link import SiteLink


@dataclass(frozen=True)
class Sites:
    """Runs rounds at sites. Who does not answer in a round is out of it, and asked again in the next."""

    link: SiteLink
    deployed: Deployed
    sums: Sums = PLAIN
    team: Team = ALONE

    @property
    def can(self) -> Abilities:
        """Samples and rows never leave the sites, and nothing is chosen."""
        return Abilities(clients_here=False, stored_row=lambda row: (), is_timed=False)

    def prepare(self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int = 1) -> Sites:
        """Itself: there is nothing to choose."""
        return self

    def open(
        self, problem: Problem, assignment: Assignment, storage: Storage, template: Tree, first: First | None
    ) -> Store:
        """What the server remembers of its sites."""
        self.deployed.store = store = RemoteStore(self.link, assignment.algorithm, problem, template, sums=self.sums)
        return store

    def clients(self, problem: Problem, assignment: Assignment, store: Store) -> Clients:
        """The sites."""
        return remote_store(store)
