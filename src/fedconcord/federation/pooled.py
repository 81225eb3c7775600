"""The rounds of a model that is trained on all samples in one place, with the budget of a federation's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedconcord.core import Algorithm, Plan, Roster
from fedconcord.federation.draws import Keyed
from fedconcord.federation.participation import View
from fedconcord.federation.schedule import Schedule


@dataclass(frozen=True)
class Pooled:
    """One client that holds all samples takes in every round as many local steps, of the same size and on as many
    samples each, as the cohort of a federated round takes together.

    Args:
        of: the federation's schedule.
        clients: its roster.
    """

    of: Schedule
    clients: Roster = field(compare=False)

    @property
    def seed(self) -> int:
        return self.of.seed

    @property
    def cohort(self) -> int:
        return 1

    @property
    def draws(self) -> Keyed:
        """Epochs of fresh permutations of all samples."""
        return self.of.draws

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        """Why the federation's rounds cannot be planned, or None."""
        return self.of.refuse(algorithm, self.clients.n)

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        """The plan of one round; nobody takes part where nobody does in the federation."""
        theirs = self.of.plan(round, algorithm, self.clients, view)
        there = min(len(theirs.ids), 1)
        one = np.ones(there)
        steps = np.full(there, theirs.steps.sum(), np.int64)
        return Plan(round, np.zeros(there, np.int64), steps, one, one, one, theirs.lr, theirs.seed)
