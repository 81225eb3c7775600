"""What every engine is: one round from a plan, with the same meaning as the serial engine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import (
    Algorithm,
    Outcome,
    Plan,
    Population,
    Problem,
    Tree,
    TwoBlockRow,
    cohort_of,
    finite,
    space_of,
    tree_bytes,
    tree_map,
)
from fedconcord.engines.team import ALONE, Team
from fedconcord.federation import weights
from fedconcord.local.duty import Duty, block_gradients
from fedconcord.state import First, Storage, Store


class Engine(Protocol):
    """Runs rounds. Engines differ in speed, not in results (1e-12 relative in float64)."""

    @property
    def team(self) -> Team:
        """The processes that share every round."""
        ...

    def resolve(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Engine:
        """This engine with every choice made, for so many rounds like this one, that it would make in each round."""
        ...

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """An empty store of clients' rows."""
        ...

    def kept(self, template: Tree) -> Tree:
        """What is stored of a client whose row is like the template."""
        ...

    def report(self, store: Store) -> dict[str, int]:
        """What run.json says of the way, by name; nothing where all clients are at hand."""
        ...

    def prologue(self, problem: Problem, duty: Duty, server: Tree, store: Store, population: Population) -> Outcome:
        """All clients once before round 0, for methods that ask for it."""
        ...

    def losses(self, problem: Problem, x: Tensor, store: Store, ids: np.ndarray) -> np.ndarray:
        """The loss [S] of each of these clients over all its samples at x [d]."""
        ...

    def round(self, problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan) -> Outcome:
        """One round: returns the new server state and writes the cohort's rows to the store.

        The cohort may be empty, where all were lost.
        """
        ...


# -- what simulations do alike: all clients are at hand --------------------------------------------------------


def kept(duty: Duty, plan: Plan, sent: Sequence[Tree]) -> Plan:
    """The plan without those whose message is not finite; `sent`: one of each client of the plan, unstacked."""
    sound = [bool(finite(one, 1)) for one in sent]
    return weights.without(plan, plan.heard & ~np.array(sound), duty.algorithm.weights, duty.algorithm.needs_everyone)


def refused(chosen: Plan, plan: Plan) -> tuple[int, ...]:
    """The clients that are not in what became of a plan."""
    return tuple(np.setdiff1d(chosen.ids, plan.ids).tolist())


def joining(algorithm: Algorithm, store: Store, plan: Plan, team: Team, talks: bool) -> int:
    """How many clients of this process, those that are lost among them, begin and must be sent x^0, which round 0
    broadcasts anyway."""
    everyone = np.append(plan.ids, np.array(plan.aside.lost if talks else (), np.int64))
    ids = everyone[team.owns(everyone)]
    sent = not algorithm.needs_x0 or (plan.round == 0 and talks)
    return 0 if sent else int((~store.known(ids)).sum())


def nobody(problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan, team: Team = ALONE) -> Outcome:
    """A round in which nobody takes part, or all were lost."""
    communicates, unheard = duty.algorithm.communicates, duty.algorithm.unheard
    cohort = cohort_of(space_of(problem), plan)
    talks = communicates is None or communicates(cohort)
    sent = tree_bytes(duty.algorithm.broadcast(server)) if talks else 0
    after = server if unheard is None else unheard(server, cohort)
    down = len(plan.aside.lost) * sent
    if duty.algorithm.needs_x0:
        _, (first,) = team.total(server.x.new_zeros(1), (joining(duty.algorithm, store, plan, team, talks),))
        down += first * tree_bytes(server.x)
    return Outcome(after, down, 0, 0)


def losses(problem: Problem, x: Tensor, ids: np.ndarray) -> np.ndarray:
    """The loss [S] of each of these clients over all its samples at x [d]."""
    objective = problem.objective
    with torch.no_grad():
        return np.array([float(objective.loss(x, objective.samples(int(i)))) for i in ids])


def prologue(problem: Problem, duty: Duty, server: Tree, population: Population, team: Team = ALONE) -> Outcome:
    """Every client's block gradients at x^0, and what the server makes of them: the one pass over all clients.

    Rows are not written: what a client holds after it is made when it first takes part (`first_rows`).
    """
    ask = duty.algorithm.prologue
    assert ask is not None
    total, sent, evaluations = None, 0, 0
    for i in np.flatnonzero(team.owns(np.arange(population.n))):
        gradients = block_gradients(problem.objective, duty, int(i), int(i), server.x)
        share = ask.send(gradients, population.p[i].to(gradients))
        total = share if total is None else tree_map(torch.add, total, share)
        sent, evaluations = sent + tree_bytes(share), evaluations + len(gradients)
    total, (sent, evaluations) = team.total(total, (sent, evaluations))
    return Outcome(ask.update(server, total), population.n * tree_bytes(server.x), sent, evaluations)


def first_rows(problem: Problem, duty: Duty, server: Tree, template: Tree) -> First | None:
    """What a client holds after the prologue, computed when it first takes part: one that never does costs nothing.

    It depends on x^0 (`server` before round 0) and the client alone: the same bits whenever it is asked for.
    """
    prologue = duty.algorithm.prologue
    if prologue is None:
        return None
    x = server.x
    empty = template.row if isinstance(template, TwoBlockRow) else template

    def rows(ids: np.ndarray) -> Tree:
        found = [prologue.row(empty, block_gradients(problem.objective, duty, int(i), int(i), x)) for i in ids]
        stacked = tree_map(lambda *leaves: torch.stack(leaves), *found)
        if not isinstance(template, TwoBlockRow):
            return stacked
        return TwoBlockRow(stacked, template.private.expand(len(ids), *template.private.shape).clone())

    return rows
