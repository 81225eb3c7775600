"""The default engine: the clients of a cohort trained at once, as rows of one matrix [S, d]."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import (
    Cohort,
    Objective,
    Outcome,
    Plan,
    Population,
    Problem,
    Space,
    Tree,
    cohort_of,
    finite,
    model_of,
    orders_of,
    senders_of,
    space_of,
    tree_bytes,
    tree_map,
    workers,
)
from fedconcord.engines import base
from fedconcord.engines import chunk as chunk_rule
from fedconcord.engines.team import ALONE, Team
from fedconcord.federation import weights
from fedconcord.local import compiled
from fedconcord.local.duty import Duty, clients_of, close_rows, curvature, open_rows, settled, with_oracle
from fedconcord.local.graphs import Graphs
from fedconcord.local.samples import full_gradient
from fedconcord.local.stacked import solve
from fedconcord.state import First, MemoryStore, Storage, Store


@dataclass(frozen=True)
class Stacked:
    """Trains `chunk` clients at a time, on `workers` threads; "auto" goes by the rules of `engines.chunk`.

    None takes the whole cohort as one chunk. A chunk's clients are sorted by their number of steps, most first, and
    step k runs on the prefix that still has one: unequal clients cost their own steps. Every worker has its share of
    torch's threads. What is summed is summed in the order of the chunks, so that no bit depends on who was first.
    A team of several processes trains each its own clients and sums what they send. With `kernel` "compiled" the local
    steps of a client are one compiled call (`local.compiled`). With `graphs`, on a GPU, local steps that every round
    repeats are recorded and replayed.
    """

    chunk: int | Literal["auto"] | None = "auto"  # clients side by side; all if none
    workers: int | Literal["auto"] = "auto"  # threads
    team: Team = ALONE  # the processes that share every round
    kernel: chunk_rule.Kernel | Literal["auto"] = "auto"  # what does a client's local steps
    graphs: Graphs | None = None  # recorded steps, on a GPU

    def resolve(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Stacked:
        """This engine with its choices made, for so many rounds like this one; rank 0's choices for a team.

        Compiled steps are loaded, or compiled.

        Raises:
            UserError: gradients of several clients at once cannot be computed, so that no round could be; or compiled
                steps are asked for and numba is not installed, or they are not for this job.
        """

        def choice() -> str:
            by = self.kernel
            if by == "auto":
                by = chunk_rule.kernel(problem.objective, duty, plan, rounds)
            return json.dumps([by, *chunk_rule.auto(problem.objective, duty, plan, self.chunk, self.workers, by)])

        open_choice = "auto" in (self.chunk, self.workers, self.kernel)
        by, width, number = json.loads(self.team.tell(choice) if open_choice else choice())
        if by == "compiled":
            compiled.check(problem.objective, duty)
            compiled.load(problem.objective.dtype)
        if width > 1 and problem.objective.accumulate is None:
            x = problem.init(0)
            problem.objective.gradients(
                torch.stack([x, x]), torch.zeros(2, 1, dtype=torch.int64, device=x.device), None
            )
        return replace(self, chunk=width, workers=number, kernel=by)

    def open(self, problem: Problem, duty: Duty, storage: Storage, template: Tree, first: First | None) -> Store:
        """Rows as the storage keeps them."""
        return storage.open(template, first, problem.roster.n)

    def kept(self, template: Tree) -> Tree:
        """The row itself."""
        return template

    def report(self, store: Store) -> dict[str, int]:
        """Nothing: all clients are at hand."""
        return {}

    def prologue(self, problem: Problem, duty: Duty, server: Tree, store: Store, population: Population) -> Outcome:
        """All clients once before round 0."""
        return base.prologue(problem, duty, server, population, self.team)

    def losses(self, problem: Problem, x: Tensor, store: Store, ids: np.ndarray) -> np.ndarray:
        """The loss [S] of each of these clients over all its samples at x [d]."""
        return base.losses(problem, x, ids)

    def round(self, problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan) -> Outcome:
        """One round, as `core.contract` states it."""
        if len(plan.ids) == 0:
            return base.nobody(problem, duty, server, store, plan, self.team)
        algorithm, space = duty.algorithm, space_of(problem)
        talks = algorithm.communicates is None or algorithm.communicates(cohort_of(space, plan))
        now = self.resolve(problem, duty, plan)
        reached = int((~plan.answers).sum()) + len(plan.aside.lost)
        down = broadcast = algorithm.broadcast(server)
        bytes_down = reached * tree_bytes(down) if talks else 0
        sound, mine = plan, now._mine(store, plan)
        joining = base.joining(algorithm, store, plan, self.team, talks)
        asked = Asked()
        if algorithm.prelude is not None:
            sound, asked = now._prelude(problem, duty, server, store, plan)
            mine = now._mine(store, sound)
            bytes_down += (reached - len(plan.ids) + len(sound.ids)) * tree_bytes(asked.total)
            down = algorithm.prelude.absorb(down, asked.total)
        spent: tuple[int, ...] = ()
        while True:
            done = now._train(problem, duty, down, mine, talks, asked.gradients)
            costs = asked.bytes_up + done.bytes_up, asked.gradient_steps + done.gradient_steps, joining
            total, of_all, spoilt = now._sum(mine, done.total, costs, done.sound)
            spent = spent or of_all  # what clients did, however often it is computed
            kept = weights.without(sound, spoilt, algorithm.weights, algorithm.needs_everyone)
            if kept is sound:
                break
            # every contribution depends on who is in, and they are summed: the others do the same once more
            sound, mine, asked = kept, now._mine(store, kept), Asked()
        for select, rows in zip(mine.chunks, done.rows, strict=not mine.idle):
            mine.store.scatter(mine.plan.ids[select], rows)
        bytes_up, evaluations, joining = spent
        bytes_down += joining * tree_bytes(server.x)
        if talks:
            cohort, heard = cohort_of(space, sound), np.flatnonzero(sound.heard)
            if algorithm.combine is not None:
                rows = tree_map(lambda leaf: leaf[np.argsort(mine.positions)[heard]], total)
                total = algorithm.combine(server, rows, senders_of(space, sound, heard), cohort)
            server = algorithm.update(server, total, cohort)
            if algorithm.settle is not None:
                sent = algorithm.settle.send(broadcast, server)
                bytes_down += cohort.size * tree_bytes(sent)
                for select in mine.chunks:
                    ids = mine.plan.ids[select]
                    mine.store.scatter(ids, settled(algorithm.settle, sent, mine.store.gather(ids)))
        return Outcome(server, bytes_down, bytes_up, evaluations, base.refused(plan, sound))

    def _mine(self, store: Store, plan: Plan) -> Mine:
        """What this process trains of a plan; the engine's choices are made."""
        assert isinstance(self.chunk, int)
        everyone = np.argsort(-plan.steps, kind="stable")
        order = everyone[self.team.owns(plan.ids[everyone])]
        idle = len(order) == 0
        if idle:  # the form of the sums is one client's without local steps, in a store that nobody keeps
            order, plan = everyone[-1:], plan._replace(steps=np.zeros_like(plan.steps))
            store = MemoryStore(store.template)
        number = -(-len(order) // self.chunk)
        return Mine(plan, [order[k::number] for k in range(number)], store, idle)  # dealt out: about the same work

    def _prelude(self, problem: Problem, duty: Duty, server: Tree, store: Store, plan: Plan) -> tuple[Plan, Asked]:
        """The message before the local steps, and the plan of those whose message is finite."""
        algorithm, objective, space = duty.algorithm, problem.objective, space_of(problem)
        prelude, mine, cohort = algorithm.prelude, self._mine(store, plan), cohort_of(space, plan)
        assert prelude is not None
        total, bytes_up, evaluations = None, 0, 0
        gradients: list[Tensor | None] = []  # of the chunks, for methods that use them later too
        sound = []
        for select in mine.chunks:
            ids = mine.plan.ids[select]
            own, _, _ = open_rows(objective, server.x, mine.store.gather(ids), ids)
            gradient = full_gradient(own, server.x.expand(len(ids), -1), ids)
            total = _add(total, _reduce(prelude.contribute(gradient, senders_of(space, mine.plan, select), cohort)))
            bytes_up += tree_bytes(gradient)
            evaluations += passes_of(objective, duty, mine.plan, select)
            gradients.append(gradient if algorithm.needs_full_gradient else None)
            sound.append(finite(gradient, len(ids)))
        if mine.idle:
            total, sound = tree_map(torch.zeros_like, total), []
        total, _, spoilt = self._sum(mine, total, (), sound)
        kept = weights.without(plan, spoilt, algorithm.weights, algorithm.needs_everyone)
        if kept is not plan:
            plan, again = self._prelude(problem, duty, server, store, kept)
            total, gradients = again.total, again.gradients
        return plan, Asked(total, gradients, *((0, 0) if mine.idle else (bytes_up, evaluations)))

    def _train(
        self, problem: Problem, duty: Duty, down: Tree, mine: Mine, talks: bool, gradients: list[Tensor | None]
    ) -> Attempt:
        """The local steps of this process's clients; nothing is stored."""
        objective, space, plan = problem.objective, space_of(problem), mine.plan
        cohort = cohort_of(space, plan) if talks else None
        held = threading.Lock()  # of the store
        assert isinstance(self.workers, int)

        def work(k: int) -> Trained:
            select, gradient = mine.chunks[k], gradients[k] if gradients else None
            ids = plan.ids[select]
            with held:
                rows = mine.store.gather(ids)
            return train(
                objective, space, duty, ids, down, rows, plan, select, cohort, gradient, self.kernel, self.graphs
            )

        join = _add if duty.algorithm.combine is None else _beside
        found = Attempt()
        threads = self.workers if _threads_may(objective, duty) else 1
        for done in workers.ordered(work, range(len(mine.chunks)), threads):
            found.rows.append(done.rows)
            found.gradient_steps += done.gradient_steps
            if talks:
                found.total = done.share if len(found.rows) == 1 else join(found.total, done.share)
                found.bytes_up += done.bytes_up
                found.sound.append(done.sound)
        return Attempt(tree_map(torch.zeros_like, found.total)) if mine.idle else found

    def _sum(
        self, mine: Mine, total: Tree, counts: tuple[int, ...], sound: list[Tensor]
    ) -> tuple[Tree, tuple[int, ...], np.ndarray]:
        """The sums over all processes, and who sent what is not finite, [S] bool."""
        spoilt = np.zeros(len(mine.plan.ids), bool)
        if sound:
            spoilt[mine.positions] = ~torch.cat(sound).cpu().numpy()  # the one value of a round that the host reads
            spoilt &= mine.plan.heard
        total, (*counts_of_all, found) = self.team.total(total, (*counts, int(spoilt.sum())))
        if found and self.team.size > 1:
            spoilt = np.array(self.team.any(*spoilt.tolist()))
        return total, tuple(counts_of_all), spoilt


class Mine(NamedTuple):
    """What a process trains of a round."""

    plan: Plan  # without steps where it is idle
    chunks: list[np.ndarray]  # positions in the plan, most steps first
    store: Store
    idle: bool  # the cohort has none of its clients

    @property
    def positions(self) -> np.ndarray:
        """Of all chunks, one after the other."""
        return np.concatenate(self.chunks)


class Asked(NamedTuple):
    """What came of a prelude."""

    total: Tree = ()
    gradients: list[Tensor | None] = []  # noqa: RUF012  of the chunks; none where they are to be evaluated
    bytes_up: int = 0
    gradient_steps: int = 0


@dataclass
class Attempt:
    """The local steps of a round, before anybody is refused."""

    total: Tree = ()  # of the contributions; all of them, [S, ...], where the method combines them
    rows: list[Tree] = field(default_factory=list)  # by chunk, as they are stored
    sound: list[Tensor] = field(default_factory=list)  # by chunk, [S] bool: whether its message is finite
    bytes_up: int = 0
    gradient_steps: int = 0


class Trained(NamedTuple):
    """What some clients of a round made."""

    share: Tree  # their contributions, summed unless the method combines them; None in a round without messages
    rows: Tree  # [S, ...] as they are stored
    sound: Tensor  # [S] bool: whether the message is finite
    bytes_up: int
    gradient_steps: int


def train(
    objective: Objective,
    space: Space,
    duty: Duty,
    places: np.ndarray,
    down: Tree,
    rows: Tree,
    plan: Plan,
    select: np.ndarray,
    cohort: Cohort | None,
    gradient: Tensor | None,
    kernel: str = "torch",
    graphs: Graphs | None = None,
) -> Trained:
    """`local.step.client_step` of several clients at once, and the server's share of what they send.

    Args:
        places: [S] of the clients in the objective.
        down: the broadcast, a prelude's total in it.
        rows: their stored rows [S, ...].
        select: [S] their positions in the plan, most steps first.
        cohort: None in a round without messages.
        gradient: full gradients [S, d] at the server's model, where a prelude had them evaluated.
        kernel: what computes the local steps, as `Stacked` has it.
    """
    algorithm, oracle, x = duty.algorithm, duty.oracle, model_of(down)
    own, rows, private = open_rows(objective, x, rows, places)
    client = clients_of(objective, plan, select, algorithm.needs_p)
    orders = [orders_of(plan, int(k), algorithm) for k in select]
    evaluations = 0
    if duty.uses_full_gradient:
        if gradient is None:
            gradient = full_gradient(own, x.expand(len(places), -1), places)
            evaluations += passes_of(objective, duty, plan, select)
        client = client._replace(gradient=gradient)
    if algorithm.hessian_at is not None:
        points = algorithm.hessian_at(down, rows).expand(len(places), -1)
        triples = zip(points, places, orders, strict=True)
        squares = [curvature(own, at, int(place), order.id) for at, place, order in triples]
        client = client._replace(hessian=torch.stack(squares))
    local = with_oracle(algorithm.start(down, rows, client), oracle, x, client.gradient)
    done, cost = solve(own, duty, local, places, orders, kernel == "compiled", graphs)
    up, rows = algorithm.finish(down, rows, done, client)
    share, heard = None, int(plan.heard[select].sum())
    if cohort is not None:
        share = algorithm.contribute(up, senders_of(space, plan, select), cohort)
        share = _reduce(share) if algorithm.combine is None else share
    sound = finite(up, len(select))
    return Trained(share, close_rows(rows, private), sound, tree_bytes(up) // len(select) * heard, evaluations + cost)


def passes_of(objective: Objective, duty: Duty, plan: Plan, select: np.ndarray) -> int:
    """Mini-batches in the full gradients of these clients; one that only answers evaluates none."""
    passes = duty.draws.full_cost(duty.algorithm, objective.counts(plan.ids[select]))
    return int(passes[~plan.answers[select]].sum())


def _threads_may(objective: Objective, duty: Duty) -> bool:
    """Whether several threads may compute at once: kernels may, torch.nn modules and line searches may not."""
    return chunk_rule.has_kernel(objective) and duty.algorithm.hessian_at is None and duty.solver.kind != "lbfgs"


def _reduce(shares: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.sum(0), shares)


def _add(total: Tree, more: Tree) -> Tree:
    return more if total is None else tree_map(torch.add, total, more)


def _beside(some: Tree, more: Tree) -> Tree:
    return tree_map(lambda a, b: torch.cat([a, b]), some, more)
