"""The engine of a deployment: rounds over an exchange with real sites, in place of clients in memory.

The server's half is `remote.server`. What it has decided in a round is in the checkpoint before a site hears of it: the
message after the server's step goes with the site's next orders, and no round begins before the last one is put down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Plan, Problem, Tree
from fedconcord.deploy.post import Post
from fedconcord.engines.base import Abilities, Clients
from fedconcord.engines.team import ALONE, Team
from fedconcord.local.duty import Duty
from fedconcord.remote.codec import Frame
from fedconcord.remote.link import Traffic
from fedconcord.remote.store import RemoteStore, remote_store
from fedconcord.remote.sums import PLAIN, Sums
from fedconcord.remote.way import Send
from fedconcord.state import First, Storage, Store


@dataclass(frozen=True)
class Sites:
    """Runs rounds at sites. Who does not answer in a round is out of it, and asked again in the next."""

    post: Post
    sums: Sums = PLAIN
    team: Team = ALONE

    @property
    def can(self) -> Abilities:
        """Samples and rows never leave the sites, and nothing is chosen."""
        return Abilities(clients_here=False)

    def prepare(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Sites:
        """Itself: there is nothing to choose."""
        return self

    def stored_row(self, template: Tree) -> Tree:
        """Nothing: rows are at the sites."""
        return ()

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """What the server remembers of its sites."""
        return RemoteStore(SitesWay(self.post, self.sums), duty.algorithm, problem, template, NoRows(template))

    def clients(self, problem: Problem, duty: Duty, store: Store) -> Clients:
        """The sites."""
        return remote_store(store)


class SitesWay:
    """The way to the sites; see `remote.store.Way`."""

    name = "sites"
    elsewhere = "the checkpoint is of a run without sites; resume it with the command that began it"
    tries = 1
    is_simulated = False

    def __init__(self, post: Post, sums: Sums) -> None:
        self.post, self.sums, self.hooks = post, sums, post.hooks
        self.method: str | None = post.run

    @property
    def exchanges(self) -> int:
        return self.post.number

    def begin(self) -> Send:
        """As `Way` says; a server in a process of its own is begun again with it."""
        return self.post.send

    def counted(self, traffic: Traffic) -> Traffic:
        """As `Way` says: what sites did is in the records."""
        return traffic

    def write(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The records of the sites."""
        return {"post": self.post.write()}, {}

    def restore(self, frame: Frame, traffic: Traffic) -> None:
        """As `Way` says.

        Raises:
            UserError: the checkpoint is of another deployment.
        """
        if frame.method != self.post.run:
            raise UserError("the checkpoint and deployment.json are of two runs; restore the folder as it was")
        self.post.restore(frame.fields["post"])


class NoRows:
    """A store without rows: they are at the sites."""

    def __init__(self, template: Tree) -> None:
        self.template = template

    def __len__(self) -> int:
        return 0

    def gather(self, ids: np.ndarray) -> Tree:
        """Refuse to.

        Raises:
            UserError: always.
        """
        raise UserError("clients' rows never leave their sites; what needs them cannot be had of a deployment")

    def scatter(self, ids: np.ndarray, rows: Tree) -> None:
        """Refuse to, as `gather` does."""
        self.gather(ids)

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Nobody's row is here."""
        return np.zeros(len(ids), bool)

    def ids(self) -> np.ndarray:
        """None."""
        return np.empty(0, np.int64)

    def export(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def commit(self) -> None:
        """Nothing is kept beside what was exported."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing."""
