"""What every engine is: a way to reach the clients of a job, with the same meaning as the serial engine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.rows import First, Storage, Store, look
from fedconcord.method.contract import (
    PRELUDE,
    Algorithm,
    Costs,
    Gathered,
    Outcome,
    Phase,
    Plan,
    Population,
    Problem,
    Tree,
    TwoBlockRow,
    bytes_of_all,
    tree_bytes,
    tree_map,
    weights,
)
from fedconcord.method.step.assignment import Assignment, block_gradients, settled
from fedconcord.method.step.samples import losses as losses_at

T = TypeVar("T")


class Abilities(NamedTuple):
    """What other rooms may ask of an engine, so that none needs to know which engine it is."""

    clients_here: bool = True  # this process has the samples and the rows of all clients
    choices: Mapping[str, Any] = MappingProxyType({})  # that it makes for a job, by their keys; none if it makes none
    stored_row: Callable[[Tree], Tree] = lambda row: row  # what it stores of a client with this row
    is_timed: bool = True  # clients take the time that is simulated, and not what they take


class CohortLink(Protocol):
    """How a server reaches the clients of one round, for one attempt at it."""

    def gather(self, phase: Phase, plan: Plan) -> Gathered:
        """Send the message of a phase to the cohort, and sum what its replies contribute.

        Who does not reply, or with numbers that are not finite, is out of the round, whose weights are those of the
        others; no client computes or sends anything twice for that.
        """
        ...

    def train_silently(self, plan: Plan) -> None:
        """Let the cohort take its local steps in a round without messages, and keep what it makes of its rows."""
        ...

    def keep(self, plan: Plan) -> None:
        """Let the last replies of these clients count: their new rows replace the old ones."""
        ...

    @property
    def costs(self) -> Costs:
        """What the attempt cost so far."""
        ...


class Clients(Protocol):
    """All clients of a job, as an engine reaches them."""

    def prologue(self, server: Tree, population: Population) -> Outcome:
        """Ask all of them once before round 0, for methods with a prologue."""
        ...

    def losses(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """The loss [S] of each of these clients over all its samples at x [d]."""
        ...

    def attempt(self, server: Tree, plan: Plan, decide: Callable[[CohortLink], T]) -> T:
        """Reach the cohort of a plan until the server has decided; where it is lost in between, from the start."""
        ...

    def deliver(self, plan: Plan, message: Tree) -> int:
        """Send the message after the server's step to the clients whose reply counted; return its bytes."""
        ...


class Engine(Protocol):
    """A way to the clients of a job. Engines differ in speed, not in results (1e-12 relative in float64)."""

    @property
    def team(self) -> Team:
        """The processes that share every round."""
        ...

    @property
    def can(self) -> Abilities:
        """What else it is able to do."""
        ...

    def prepare(self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int = 1) -> Engine:
        """This engine with every choice made, for so many rounds like this one, that it would make in each round."""
        ...

    def open(
        self, problem: Problem, assignment: Assignment, storage: Storage, template: Tree, first: First | None
    ) -> Store:
        """An empty store of clients' rows."""
        ...

    def clients(self, problem: Problem, assignment: Assignment, store: Store) -> Clients:
        """The clients of a job whose rows are in a store that this engine opened."""
        ...


# -- what simulations do alike: all clients are at hand --------------------------------------------------------


class Simulated(NamedTuple):
    """`Clients` in this process, or in the processes of a team."""

    problem: Problem
    assignment: Assignment
    store: Store
    cohort: Callable[[Simulated, Tree, Plan], CohortLink]  # (these, server, plan) -> those of one round
    team: Team = ALONE

    def prologue(self, server: Tree, population: Population) -> Outcome:
        """Every client's block gradients at x^0, and what the server makes of them: the one pass over all clients.

        Rows are not written: what a client holds after it is made when it first takes part (`first_rows`).
        """
        ask = self.assignment.algorithm.phases.prologue
        assert ask is not None
        total, bytes_sent, evaluations = None, 0, 0
        for i in np.flatnonzero(self.team.owns(np.arange(population.n))).tolist():
            gradients = block_gradients(self.problem.objective, self.assignment, i, i, server.x)
            share = ask.send(gradients, population.p[i].to(gradients))
            total = share if total is None else tree_map(torch.add, total, share)
            bytes_sent, evaluations = bytes_sent + tree_bytes(share), evaluations + len(gradients)
        total, (bytes_sent, evaluations) = self.team.total(total, (bytes_sent, evaluations))
        return Outcome(ask.update(server, total), population.n * tree_bytes(server.x), bytes_sent, evaluations)

    def losses(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        return losses(self.problem, x, ids)

    def attempt(self, server: Tree, plan: Plan, decide: Callable[[CohortLink], T]) -> T:
        return decide(self.cohort(self, server, plan))

    def deliver(self, plan: Plan, message: Tree) -> int:
        settle, ids_heard = self.assignment.algorithm.phases.settle, plan.ids[plan.heard]
        assert settle is not None
        ids = ids_heard[self.team.owns(ids_heard)]
        if len(ids):
            self.store.scatter(ids, settled(settle, message, look(self.store, ids)))
        return len(ids_heard) * tree_bytes(message)

    def bytes_down(self, server: Tree, phase: Phase | None, plan: Plan) -> int:
        """Bytes that go down in a phase, or in a round without messages (None): the phase's message to each client that
        works or is lost in mid-round, counted by the first process, and x^0 to those of this process's that begin."""
        algorithm, count = self.assignment.algorithm, 0
        if phase is not None and self.team.rank == 0:
            ids = np.concatenate([plan.ids[~plan.answers], plan.aside.lost, plan.aside.stale]).astype(np.int64)
            count = bytes_of_all(phase.portion, phase.message, ids)
        if phase is None or phase.number == PRELUDE or algorithm.phases.prelude is None:
            count += joining(algorithm, self.store, plan, self.team, phase is not None) * tree_bytes(server.x)
        return count

    def sound(self, plan: Plan, is_finite: np.ndarray) -> Plan:
        """The plan without those whose reply comes and is not finite; is_finite: [S] bool."""
        algorithm = self.assignment.algorithm
        return weights.without(plan, plan.heard & ~is_finite, algorithm.weights, algorithm.needs.everyone)


def joining(algorithm: Algorithm, store: Store, plan: Plan, team: Team, talks: bool) -> int:
    """How many clients of this process, those that are lost among them, begin and must be sent x^0, which round 0
    broadcasts anyway."""
    if plan.version is not None:  # of all processes together
        return plan.aside.newcomers if team.rank == 0 else 0
    everyone = np.append(plan.ids, np.array(plan.aside.lost if talks else (), np.int64))
    ids = everyone[team.owns(everyone)]
    has_it = not algorithm.needs.x0 or (plan.round == 0 and talks)
    return 0 if has_it else int((~store.known(ids)).sum())


def losses(problem: Problem, x: Tensor, ids: np.ndarray) -> np.ndarray:
    """The loss [S] of each of these clients over all its samples at x [d]."""
    each: np.ndarray = losses_at(problem.objective, x, ids).double().cpu().numpy()
    return each


def first_rows(problem: Problem, assignment: Assignment, server: Tree, template: Tree) -> First | None:
    """What a client holds after the prologue, computed when it first takes part: one that never does costs nothing.

    It depends on x^0 (`server` before round 0) and the client alone: the same bits whenever it is asked for.
    """
    prologue = assignment.algorithm.phases.prologue
    if prologue is None:
        return None
    x = server.x
    empty = template.row if isinstance(template, TwoBlockRow) else template

    def rows(ids: np.ndarray) -> Tree:
        each = [prologue.row(empty, block_gradients(problem.objective, assignment, int(i), int(i), x)) for i in ids]
        stacked = tree_map(lambda *leaves: torch.stack(leaves), *each)
        if not isinstance(template, TwoBlockRow):
            return stacked
        return TwoBlockRow(stacked, template.private.expand(len(ids), *template.private.shape).clone())

    return rows
