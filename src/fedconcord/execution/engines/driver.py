"""The one driver of a round: what a server does, in order, whatever way an engine has to reach the clients.

A server that is lost in mid-round begins it again, so that all of the round up to its decision is one attempt, and
nothing of an attempt is kept elsewhere. The message after the server's step is sent when the attempt is over: a server
that began the round again would find clients for which it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedconcord.execution.engines.base import CohortLink, Engine
from fedconcord.execution.rows import Store
from fedconcord.federation.participation.servers import distinct
from fedconcord.method.contract import (
    PRELUDE,
    TRAIN,
    Algorithm,
    Outcome,
    Phase,
    Plan,
    Problem,
    Space,
    Tree,
    cohort_of,
    space_of,
    tree_bytes,
)
from fedconcord.method.step.assignment import Assignment
from fedconcord.support.errors import UserError


def through(plan: Plan) -> tuple[int, ...]:
    """How many edge servers of each tier [T] are above those whose reply comes."""
    return () if plan.servers is None else distinct(plan.servers[plan.heard])


def between(reached: tuple[int, ...], down: Tree, replied: tuple[int, ...], up: Tree) -> np.ndarray:
    """[T, 2] int64 bytes down and up between each tier of edge servers and what is above it: a message to so many
    servers, and a total from so many."""
    if not reached:  # no tree: a round of one server counts no bytes here
        return np.empty(0, np.int64)
    return np.multiply(np.array([reached, replied], np.int64).T, [tree_bytes(down), tree_bytes(up)])


class Decision(NamedTuple):
    """What the server decided in a round."""

    outcome: Outcome
    plan: Plan  # of the clients whose reply counts
    message: Tree | None = None  # to each of them, for methods with `settle`


def run_round(
    engine: Engine,
    problem: Problem,
    assignment: Assignment,
    server: Tree,
    store: Store,
    plan: Plan,
    versions: Mapping[int, Tree] = MappingProxyType({}),
) -> Outcome:
    """Run one round: return the new state of the server, and write the cohort's rows to the store.

    The cohort may be empty, where all were lost.

    Args:
        versions: what was broadcast before earlier updates, by their numbers, of those that the plan names.

    Raises:
        UserError: one of them is missing.
    """
    missing = () if plan.version is None else sorted({*plan.version.tolist()} - {plan.round, *versions})
    if missing:
        raise UserError(
            f"a reply of update {plan.round} began from version {missing[0]} of the model, which is not here; run "
            "asynchronous rounds one after the other with fedconcord.advance"
        )
    algorithm, space = assignment.algorithm, space_of(problem)
    clients = engine.clients(problem, assignment, store)
    outcome, final, message = clients.attempt(
        server, plan, lambda link: decide(link, algorithm, space, server, plan, versions)
    )
    if len(final.ids) < len(plan.ids):
        outcome = outcome._replace(missing=tuple(np.setdiff1d(plan.ids, final.ids).tolist()))
    if message is None:
        return outcome
    return outcome._replace(bytes_down=outcome.bytes_down + clients.deliver(final, message))


def decide(
    link: CohortLink,
    algorithm: Algorithm,
    space: Space,
    server: Tree,
    plan: Plan,
    versions: Mapping[int, Tree] = MappingProxyType({}),
) -> Decision:
    """Run a round up to the server's step, which `contract.contract` states."""
    if algorithm.phases.communicates is not None and not algorithm.phases.communicates(cohort_of(space, plan)):
        link.train_silently(plan)
        return Decision(Outcome(server, *link.costs), plan)
    down = message = broadcast = algorithm.broadcast(server)
    reached, refused = plan.reached, tuple[int, ...]()
    passed = between(reached, (), reached, ())
    if algorithm.phases.prelude is not None:
        phase = Phase(PRELUDE, broadcast, broadcast, algorithm.phases.prelude.contribute)
        plan, total, refused = link.gather(phase, plan)
        message = () if total is None else total
        passed = passed + between(reached, broadcast, through(plan), message)
        down = down if total is None else algorithm.phases.prelude.absorb(down, total)
    combine = None if algorithm.phases.combine is None else partial(algorithm.phases.combine, server)
    downs = {**versions, plan.round: down}
    plan, total, more = link.gather(
        Phase(TRAIN, message, down, algorithm.contribute, combine, downs, algorithm.phases.portion), plan
    )
    link.keep(plan)
    passed = passed + between(reached, message, through(plan), () if total is None else total)
    cohort, refused = cohort_of(space, plan), tuple(sorted((*refused, *more)))
    if total is None:
        after = server if algorithm.phases.unheard is None else algorithm.phases.unheard(server, cohort)
        return Decision(Outcome(after, *link.costs, refused, tuple(passed.ravel().tolist())), plan)
    after = algorithm.update(server, total, cohort)
    settling = None if algorithm.phases.settle is None else algorithm.phases.settle.send(broadcast, after)
    passed = passed + between(through(plan), () if settling is None else settling, through(plan), ())
    return Decision(Outcome(after, *link.costs, refused, tuple(passed.ravel().tolist())), plan, settling)
