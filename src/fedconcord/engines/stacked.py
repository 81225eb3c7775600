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
    PRELUDE,
    Cohort,
    Costs,
    Gathered,
    Objective,
    Phase,
    Plan,
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
from fedconcord.engines import chunk as chunk_rule
from fedconcord.engines.base import Abilities, Clients, Engine, Simulated
from fedconcord.engines.team import ALONE, Team
from fedconcord.local import compiled
from fedconcord.local.duty import Duty, clients_of, close_rows, curvature, open_rows, with_oracle
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

    @property
    def can(self) -> Abilities:
        """A process of several has some of the clients; the choices stand in run.json."""
        choices = {"kernel": self.kernel, "chunk": self.chunk, "workers": self.workers}
        return Abilities(self.team.size == 1, choices)

    def prepare(self, problem: Problem, duty: Duty, plan: Plan, rounds: int = 1) -> Stacked:
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

    def clients(self, problem: Problem, duty: Duty, store: Store) -> Clients:
        """All of them, in this process or those of the team."""

        def cohort(clients: Simulated, server: Tree, plan: Plan) -> StackedCohort:
            return StackedCohort(self.prepare(problem, duty, plan) if len(plan.ids) else self, clients, server)

        return Simulated(problem, duty, store, cohort, self.team)


def with_choices(engine: Engine, chunk: int, workers: int, kernel: chunk_rule.Kernel) -> Engine:
    """This engine with choices that were made before, where it makes any."""
    return replace(engine, chunk=chunk, workers=workers, kernel=kernel) if isinstance(engine, Stacked) else engine


class Share(NamedTuple):
    """What a process computes of a cohort."""

    plan: Plan  # without steps where the process is idle
    chunks: list[np.ndarray]  # positions in the plan, most steps first
    store: Store
    is_idle: bool  # the cohort has none of its clients

    @property
    def positions(self) -> np.ndarray:
        """Of all chunks, one after the other."""
        return np.concatenate(self.chunks)


@dataclass
class Computed:
    """What a process computed of a phase, before any reply is refused."""

    total: Tree = ()  # of the contributions; all of them, [S, ...], where the method combines them
    rows: list[Tree] = field(default_factory=list)  # by chunk, as they are stored
    finite: list[Tensor] = field(default_factory=list)  # by chunk, [S] bool: whether the reply is
    bytes_up: int = 0
    gradient_steps: int = 0


class StackedCohort:
    """The clients of one round, a chunk of them at once, on an engine whose choices are made; see `CohortLink`."""

    def __init__(self, engine: Stacked, clients: Simulated, server: Tree) -> None:
        self.engine, self.clients, self.server = engine, clients, server
        self.problem, self.duty, self.store = clients.problem, clients.duty, clients.store
        self.space, self.costs = space_of(self.problem), Costs()
        self.gradients: list[Tensor] = []  # by chunk, where a prelude evaluated them and the local steps use them
        self.trained: tuple[Share, list[Tree]] | None = None  # whose new rows are not stored yet, by chunk

    def gather(self, phase: Phase, plan: Plan) -> Gathered:
        # every contribution depends on who is in, and they are summed: where a reply is refused, the others' are
        # computed once more
        chosen, bytes_down = plan, self.clients.bytes_down(self.server, phase, plan)
        if len(plan.ids) == 0:
            self._sum(None, Computed(), bytes_down)
            return Gathered(plan, None)
        while True:
            share = self._share(plan)
            computed = self._evaluate(phase, share) if phase.number == PRELUDE else self._train(phase, share)
            total, is_finite = self._sum(share, computed, bytes_down, is_counted=plan is chosen)
            kept = self.clients.sound(plan, is_finite)
            if kept is plan:
                break
            plan, self.gradients = kept, []
        heard = np.flatnonzero(plan.heard)
        if phase.combine is not None and len(heard):
            rows = tree_map(lambda leaf: leaf[np.argsort(share.positions)[heard]], total)
            total = phase.combine(rows, senders_of(self.space, plan, heard), cohort_of(self.space, plan))
        refused = tuple(np.setdiff1d(chosen.ids, plan.ids).tolist())
        return Gathered(plan, total if len(heard) else None, refused)

    def train_silently(self, plan: Plan) -> None:
        share = self._share(plan) if len(plan.ids) else None
        computed = Computed() if share is None else self._train(None, share)
        self._sum(share, computed, self.clients.bytes_down(self.server, None, plan))
        self.keep(plan)

    def keep(self, plan: Plan) -> None:
        if self.trained is None:
            return
        share, rows = self.trained
        for select, some in zip(share.chunks, rows, strict=not share.is_idle):
            share.store.scatter(share.plan.ids[select], some)

    def _share(self, plan: Plan) -> Share:
        """What this process computes of a plan with clients."""
        chunk, store = self.engine.chunk, self.store
        assert isinstance(chunk, int)
        everyone = np.argsort(-plan.steps, kind="stable")
        order = everyone[self.engine.team.owns(plan.ids[everyone])]
        is_idle = len(order) == 0
        if is_idle:  # the form of the sums is one client's without local steps, in a store that nobody keeps
            order, plan = everyone[-1:], plan._replace(steps=np.zeros_like(plan.steps))
            store = MemoryStore(store.template)
        number = -(-len(order) // chunk)
        return Share(plan, [order[k::number] for k in range(number)], store, is_idle)  # dealt out: about the same work

    def _evaluate(self, phase: Phase, share: Share) -> Computed:
        """The full gradients of this process's clients, before the local steps."""
        objective, plan, x = self.problem.objective, share.plan, self.server.x
        cohort = cohort_of(self.space, plan)
        total, computed = None, Computed()
        for select in share.chunks:
            ids = plan.ids[select]
            opened, _, _ = open_rows(objective, x, share.store.gather(ids), ids)
            gradient = full_gradient(opened, x.expand(len(ids), -1), ids)
            total = _add(total, _reduce(phase.contribute(gradient, senders_of(self.space, plan, select), cohort)))
            computed.bytes_up += tree_bytes(gradient)
            computed.gradient_steps += passes_of(objective, self.duty, plan, select)
            computed.finite.append(finite(gradient, len(ids)))
            if self.duty.algorithm.needs.full_gradient:
                self.gradients.append(gradient)
        if share.is_idle:
            return Computed(tree_map(torch.zeros_like, total))
        computed.total = total
        return computed

    def _train(self, phase: Phase | None, share: Share) -> Computed:
        """The local steps of this process's clients; their rows are not stored."""
        problem, duty, plan, gradients = self.problem, self.duty, share.plan, self.gradients
        down = duty.algorithm.broadcast(self.server) if phase is None else phase.down
        cohort = None if phase is None else cohort_of(self.space, plan)
        store_lock = threading.Lock()
        assert isinstance(self.engine.workers, int)

        def work(k: int) -> Trained:
            select, gradient = share.chunks[k], gradients[k] if gradients else None
            ids = plan.ids[select]
            with store_lock:
                rows = share.store.gather(ids)
            kernel, graphs = self.engine.kernel, self.engine.graphs
            return train(
                problem.objective, self.space, duty, ids, down, rows, plan, select, cohort, gradient, kernel, graphs
            )

        join = _add if duty.algorithm.phases.combine is None else _beside
        computed = Computed()
        threads = self.engine.workers if _threads_may(problem.objective, duty) else 1
        for done in workers.ordered(work, range(len(share.chunks)), threads):
            computed.rows.append(done.rows)
            computed.gradient_steps += done.gradient_steps
            if phase is not None:
                is_first = len(computed.rows) == 1
                computed.total = done.share if is_first else join(computed.total, done.share)
                computed.bytes_up += done.bytes_up
                computed.finite.append(done.sound)
        if share.is_idle:
            computed = Computed(tree_map(torch.zeros_like, computed.total))
        self.trained = share, computed.rows
        return computed

    def _sum(
        self, share: Share | None, computed: Computed, bytes_down: int, is_counted: bool = True
    ) -> tuple[Tree, np.ndarray]:
        """The total over all processes, and whose reply is finite, [S] bool; what clients did is counted once,
        however often it is computed."""
        spoilt = np.zeros(0 if share is None else len(share.plan.ids), bool)
        if share is not None and computed.finite:
            # the one value of a round that the host reads
            spoilt[share.positions] = ~torch.cat(computed.finite).cpu().numpy()
            spoilt &= share.plan.heard
        counts = bytes_down, computed.bytes_up, computed.gradient_steps, int(spoilt.sum())
        total, (*costs, number) = self.engine.team.total(computed.total, counts)
        if is_counted:
            self.costs = self.costs.plus(*costs)
        if number and self.engine.team.size > 1:
            spoilt = np.array(self.engine.team.any(*spoilt.tolist()))
        return total, ~spoilt


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
    client = clients_of(objective, plan, select, algorithm.needs.weight)
    orders = [orders_of(plan, int(k), algorithm) for k in select]
    evaluations = 0
    if duty.uses_full_gradient:
        if gradient is None:
            gradient = full_gradient(own, x.expand(len(places), -1), places)
            evaluations += passes_of(objective, duty, plan, select)
        client = client._replace(gradient=gradient)
    if algorithm.step.hessian_at is not None:
        points = algorithm.step.hessian_at(down, rows).expand(len(places), -1)
        triples = zip(points, places, orders, strict=True)
        squares = [curvature(own, at, int(place), order.id) for at, place, order in triples]
        client = client._replace(hessian=torch.stack(squares))
    local = with_oracle(algorithm.start(down, rows, client), oracle, x, client.gradient)
    done, cost = solve(own, duty, local, places, orders, kernel == "compiled", graphs)
    up, rows = algorithm.finish(down, rows, done, client)
    share, heard = None, int(plan.heard[select].sum())
    if cohort is not None:
        share = algorithm.contribute(up, senders_of(space, plan, select), cohort)
        share = _reduce(share) if algorithm.phases.combine is None else share
    sound = finite(up, len(select))
    return Trained(share, close_rows(rows, private), sound, tree_bytes(up) // len(select) * heard, evaluations + cost)


def passes_of(objective: Objective, duty: Duty, plan: Plan, select: np.ndarray) -> int:
    """Mini-batches in the full gradients of these clients; one that only answers evaluates none."""
    passes = duty.draws.full_cost(duty.algorithm, objective.counts(plan.ids[select]))
    return int(passes[~plan.answers[select]].sum())


def _threads_may(objective: Objective, duty: Duty) -> bool:
    """Whether several threads may compute at once: kernels may, torch.nn modules and line searches may not."""
    return chunk_rule.has_kernel(objective) and duty.algorithm.step.hessian_at is None and duty.solver.kind != "lbfgs"


def _reduce(shares: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.sum(0), shares)


def _add(total: Tree, more: Tree) -> Tree:
    return more if total is None else tree_map(torch.add, total, more)


def _beside(some: Tree, more: Tree) -> Tree:
    return tree_map(lambda a, b: torch.cat([a, b]), some, more)
