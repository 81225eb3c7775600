"""The default engine: the clients of a cohort trained at once, as rows of one matrix [S, d]."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import chunk as chunk_rule
from fedconcord.execution.engines.base import Abilities, Clients, Engine, Simulated
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.rows import First, MemoryStore, Storage, Store, look
from fedconcord.method.contract import (
    PRELUDE,
    Cohort,
    Costs,
    Gathered,
    Objective,
    Phase,
    Plan,
    Portion,
    Problem,
    Tree,
    bytes_of_all,
    cohort_of,
    model_of,
    orders_of,
    senders_of,
    space_of,
    tree_bytes,
    tree_map,
    workers,
)
from fedconcord.method.step import compiled
from fedconcord.method.step.assignment import (
    Assignment,
    clients_of,
    close_rows,
    curvature,
    open_rows,
    with_conditions,
    with_oracle,
    with_term_of,
)
from fedconcord.method.step.compiled.formulas import compute, note, pays, there
from fedconcord.method.step.graphs import Graphs
from fedconcord.method.step.private import joint_of
from fedconcord.method.step.samples import full_gradient, losses, with_features
from fedconcord.method.step.step import solve_together, tables_of


@dataclass(frozen=True)
class Stacked:
    """Trains `chunk` clients at a time, on `workers` threads; "auto" goes by the rules of `engines.chunk`.

    None takes the whole cohort as one chunk. A chunk's clients are sorted by their number of steps, most first, and
    step k runs on the prefix that still has one: unequal clients cost their own steps. Every worker has its share of
    torch's threads. What is summed is summed in the order of the chunks, so that no bit depends on who was first.
    A team of several processes trains each its own clients and sums what they send. With `kernel` "compiled" the local
    steps of a client are one compiled call (`step.compiled`). With `graphs`, on a GPU, local steps that every round
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

    def prepare(self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int = 1) -> Stacked:
        """This engine with its choices made, for so many rounds like this one; rank 0's choices for a team.

        Compiled steps are loaded, or compiled.

        Raises:
            UserError: gradients of several clients at once cannot be computed, so that no round could be; or compiled
                steps are asked for and numba is not installed, or they are not for this job.
        """
        x = problem.init(0)
        engine, objective = self._chosen(problem, assignment, plan, rounds, x)
        if engine.chunk != 1 and objective.accumulate is None:
            objective.gradients(torch.stack([x, x]), torch.zeros(2, 1, dtype=torch.int64, device=x.device), None)
        return engine

    def _chosen(
        self, problem: Problem, assignment: Assignment, plan: Plan, rounds: int, x: Tensor
    ) -> tuple[Stacked, Objective]:
        """With what was left open chosen, and the objective of the local steps, at any model x [d]."""
        objective = problem.objective
        if assignment.algorithm.step.term is not None:  # for which no kernel is written
            objective = with_term_of(objective, assignment.algorithm, x, None, np.zeros(2, np.int64))

        def choice() -> str:
            by = self.kernel
            if by == "auto":
                by = chunk_rule.kernel(objective, assignment, plan, rounds)
            return json.dumps([by, *chunk_rule.auto(objective, assignment, plan, self.chunk, self.workers, by)])

        open_choice = "auto" in (self.chunk, self.workers, self.kernel)
        by, width, number = json.loads(self.team.tell(choice) if open_choice else choice())
        if by == "compiled":
            compiled.check(objective, assignment)
            compiled.load(objective.dtype)
        return replace(self, chunk=width, workers=number, kernel=by), objective

    def open(
        self, problem: Problem, assignment: Assignment, storage: Storage, template: Tree, first: First | None
    ) -> Store:
        """Rows as the storage keeps them."""
        return storage.open(template, first, problem.roster.n)

    def clients(self, problem: Problem, assignment: Assignment, store: Store) -> Clients:
        """All of them, in this process or those of the team."""

        def cohort(clients: Simulated, server: Tree, plan: Plan) -> StackedCohort:
            engine = self
            if len(plan.ids):
                engine, _ = self._chosen(problem, assignment, plan, 1, model_of(server))
            return StackedCohort(engine, clients, server)

        return Simulated(problem, assignment, store, cohort, self.team)


def with_choices(engine: Engine, chunk: int, workers: int, kernel: chunk_rule.Kernel) -> Engine:
    """This engine with choices that were made before, where it makes any."""
    return replace(engine, chunk=chunk, workers=workers, kernel=kernel) if isinstance(engine, Stacked) else engine


class Share(NamedTuple):
    """What a process computes of a cohort."""

    plan: Plan  # without steps where the process is idle
    cohort: Cohort
    chunks: list[np.ndarray]  # positions in the plan, most steps first
    store: Store
    is_idle: bool  # the cohort has none of its clients

    @property
    def positions(self) -> np.ndarray:
        """Of all chunks, one after the other."""
        return np.concatenate(self.chunks)


class Computed(NamedTuple):
    """What came of some chunks in a phase, before any reply is refused."""

    total: Tree = ()  # of the contributions; all of them, [S, ...], where the method combines them; () without messages
    results: Sequence[Tree] = ()  # by chunk: rows as they are stored, or full gradients before the local steps
    finite: Sequence[Tensor] = ()  # by chunk, [S] bool: whether the reply is; none without messages
    bytes_up: int = 0
    gradient_steps: int = 0


class StackedCohort:
    """The clients of one round, a chunk of them at once, on an engine whose choices are made; see `CohortLink`."""

    def __init__(self, engine: Stacked, clients: Simulated, server: Tree) -> None:
        self.engine, self.clients, self.server = engine, clients, server
        self.objective, self.assignment, self.algorithm = (
            clients.problem.objective,
            clients.assignment,
            clients.assignment.algorithm,
        )
        self.space, self.costs = space_of(clients.problem), Costs()
        self.gradients: Sequence[Tensor] = ()  # by chunk, where a prelude evaluated them and the local steps use them
        self.trained: tuple[Share, Sequence[Tree]] | None = None  # whose new rows are not stored yet, by chunk

    def gather(self, phase: Phase, plan: Plan) -> Gathered:
        # every contribution depends on who is in, and they are summed: where a reply is refused, the others' are
        # computed once more
        first_plan, bytes_down = plan, self.clients.bytes_down(self.server, phase, plan)
        if len(plan.ids) == 0:
            self._sum(None, Computed(), bytes_down)
            return Gathered(plan, None)
        while True:
            share = self._share(plan)
            computed = self._compute(phase, share)
            total, is_finite = self._sum(share, computed, bytes_down, is_counted=plan is first_plan)
            rest = self.clients.sound(plan, is_finite)
            if rest is plan:
                break
            plan, self.gradients = rest, ()
        if phase.number == PRELUDE:
            self.gradients = computed.results if self.algorithm.needs.full_gradient else ()
        else:
            self.trained = share, computed.results
        positions = np.flatnonzero(plan.heard)
        if phase.combine is not None and len(positions):
            rows = tree_map(lambda leaf: leaf[np.argsort(share.positions)[positions]], total)
            total = phase.combine(rows, senders_of(self.space, plan, positions), share.cohort)
        refused = () if plan is first_plan else tuple(np.setdiff1d(first_plan.ids, plan.ids).tolist())
        return Gathered(plan, total if len(positions) else None, refused)

    def train_silently(self, plan: Plan) -> None:
        share, computed = None, Computed()
        if len(plan.ids):
            share = self._share(plan)
            computed = self._compute(None, share)
            self.trained = share, computed.results
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
        chunk, store, cohort = self.engine.chunk, self.clients.store, cohort_of(self.space, plan)
        assert isinstance(chunk, int)
        everyone = np.argsort(-plan.steps, kind="stable")
        order = everyone[self.engine.team.owns(plan.ids[everyone])]
        is_idle = len(order) == 0
        if is_idle:  # the form of the sums is one client's without local steps, in a store that nobody keeps
            order, plan = everyone[-1:], plan._replace(steps=np.zeros_like(plan.steps))
            store = MemoryStore(store.template)
        chunks = []
        for some in _alike(plan, order, self.algorithm.phases.portion):
            number = -(-len(some) // chunk)
            chunks += [some[k::number] for k in range(number)]  # dealt out: about the same work
        return Share(plan, cohort, chunks, store, is_idle)

    def _compute(self, phase: Phase | None, share: Share) -> Computed:
        """This process's part of a phase, or of a round without messages; nothing is stored."""
        before_steps = phase is not None and phase.number == PRELUDE
        threads = self.engine.workers if _threads_may(self.objective, self.assignment) and not before_steps else 1
        assert isinstance(threads, int)
        facts = self.objective, self.assignment, share.plan, len(share.chunks[0])
        alone = 1 if chunk_rule.has_small_products(*facts, before_steps) else None
        join = _beside if phase is not None and phase.combine is not None else _add

        def work(k: int) -> Computed:
            select = share.chunks[k]
            if phase is not None and before_steps:
                return self._evaluate(phase, share, select)
            return self._train(phase, share, select, self.gradients[k] if self.gradients else None)

        each = workers.ordered(work, range(len(share.chunks)), threads, alone)
        computed = reduce(lambda some, more: _joined(some, more, join), each)
        return Computed(tree_map(torch.zeros_like, computed.total)) if share.is_idle else computed

    def _evaluate(self, phase: Phase, share: Share, select: np.ndarray) -> Computed:
        """The full gradients of some clients, before the local steps."""
        plan, x = share.plan, self.server.x
        ids = plan.ids[select]
        objective, rows, private = open_rows(self.objective, x, share.store.gather(ids), ids)
        objective = with_conditions(objective, self.algorithm, phase.down, rows, ids)
        joint = joint_of(self.objective, private)
        gradient = joint.shared(full_gradient(objective, joint.point(x).expand(len(ids), -1), ids))
        each = phase.contribute(gradient, senders_of(self.space, plan, select), share.cohort)
        total, is_finite = compute(each, gradient, len(ids))
        passes = passes_of(objective, self.assignment, plan, select)
        return Computed(total, [gradient], [is_finite], tree_bytes(gradient), passes)

    def _train(self, phase: Phase | None, share: Share, select: np.ndarray, gradient: Tensor | None) -> Computed:
        """`step.step.client_step` of some clients at once, and the server's share of what they send.

        Args:
            select: [S] their positions in the plan, most steps first.
            gradient: full gradients [S, d] at the server's model, where a prelude had them evaluated.
        """
        algorithm, assignment, plan = self.algorithm, self.assignment, share.plan
        down = algorithm.broadcast(self.server) if phase is None else phase.down_of(plan, int(select[0]))
        ids, x = plan.ids[select], model_of(down)
        is_compiled, graphs = self.engine.kernel == "compiled", self.engine.graphs
        is_noted = is_compiled and self.objective.private is None and pays(len(ids), x, share.store.template)
        rows = look(share.store, ids) if is_noted else share.store.gather(ids)
        objective, rows, private = open_rows(self.objective, x, rows, ids)
        orders = [orders_of(plan, int(k), algorithm) for k in select]
        objective = with_conditions(objective, algorithm, down, rows, ids, orders)
        joint = joint_of(self.objective, private)
        at = joint.point(x)
        client = clients_of(objective, orders, algorithm.phases.late)
        evaluations = 0
        if assignment.uses_full_gradient:
            if gradient is None:
                gradient = full_gradient(objective, at.expand(len(ids), -1), ids)
                evaluations += passes_of(objective, assignment, plan, select)
            client = client._replace(gradient=joint.shared(gradient))
        if algorithm.needs.loss:
            client = client._replace(loss=losses(objective, at, ids)[:, None])
        if algorithm.step.hessian_at is not None:
            points = joint.point(algorithm.step.hessian_at(down, rows)).expand(len(ids), -1)
            squares = [
                curvature(objective.taking(torch.tensor([k]), 0), point, int(place), order.id, joint.width)
                for k, (point, place, order) in enumerate(zip(points, ids, orders, strict=True))
            ]
            client = client._replace(hessian=torch.stack(squares))
        if is_noted:
            down, rows = note((down, rows), objective.dim, objective.dtype)
        local = with_oracle(algorithm.start(down, rows, client), assignment.oracle, at, gradient)
        # tables were gathered for this round alone and move in place: none of them is there for `finish`, which looks
        # back at them only where a reply may be late
        tables = () if algorithm.phases.late else tables_of(local, rows)
        rows = tree_map(lambda leaf: leaf.new_empty(0) if any(leaf is table for table in tables) else leaf, rows)
        local_result, cost = solve_together(
            objective, assignment, local, ids, orders, is_compiled, graphs, joint, tables
        )
        local_result, private = joint.cut(with_features(objective, algorithm, local_result, ids), private)
        if is_noted:
            local_result = note(local_result, objective.dim, objective.dtype)
        up, rows = algorithm.finish(down, rows, local_result, client)
        if phase is None:
            return Computed((), [close_rows(rows, private)], (), 0, evaluations + cost)
        each = phase.contribute(up, senders_of(self.space, plan, select), share.cohort)
        total, is_finite = compute(() if phase.combine else each, up, len(select))
        total = there(each) if phase.combine else total
        bytes_up = bytes_of_all(phase.portion, up, ids[plan.heard[select]]) // len(select)
        return Computed(total, [close_rows(rows, private)], [is_finite], bytes_up, evaluations + cost)

    def _sum(
        self, share: Share | None, computed: Computed, bytes_down: int, is_counted: bool = True
    ) -> tuple[Tree, np.ndarray]:
        """The total over all processes, and whose reply is finite, [S] bool; what clients did is counted once,
        however often it is computed."""
        is_spoilt = np.zeros(0 if share is None else len(share.plan.ids), bool)
        if share is not None and computed.finite:
            # the one value of a round that the host reads
            is_spoilt[share.positions] = ~torch.cat(list(computed.finite)).cpu().numpy()
            is_spoilt &= share.plan.heard
        counts = bytes_down, computed.bytes_up, computed.gradient_steps, int(is_spoilt.sum())
        total, (*costs, number) = self.engine.team.total(computed.total, counts)
        if is_counted:
            self.costs = self.costs.plus(*costs)
        if number and self.engine.team.size > 1:
            is_spoilt = np.array(self.engine.team.any(*is_spoilt.tolist()))
        return total, ~is_spoilt


def passes_of(objective: Objective, assignment: Assignment, plan: Plan, select: np.ndarray) -> int:
    """Mini-batches in the full gradients of these clients; one that only answers evaluates none."""
    passes = assignment.draws.full_cost(assignment.algorithm, objective.counts(plan.ids[select]))
    return int(passes[~plan.answers[select]].sum())


def _threads_may(objective: Objective, assignment: Assignment) -> bool:
    """Whether several threads may compute at once: kernels may, torch.nn modules and line searches may not."""
    return (
        chunk_rule.has_kernel(objective)
        and assignment.algorithm.step.hessian_at is None
        and assignment.algorithm.step.term is None
        and assignment.solver.kind != "lbfgs"
        and assignment.algorithm.step.code is None
        and (objective.each is not None or not assignment.algorithm.needs.loss)
    )


def _alike(plan: Plan, order: np.ndarray, portion: Portion | None) -> list[np.ndarray]:
    """Positions in a plan, cut by the model that clients began from, newest first, or by the part of it that they hold:
    a chunk has one start."""
    starts = plan.version if portion is None else -portion.first(plan.ids)
    if starts is None:
        return [order]
    return [order[starts[order] == start] for start in np.unique(starts[order])[::-1]]


def _joined(some: Computed, more: Computed, join: Callable[[Tree, Tree], Tree]) -> Computed:
    results, are_finite = [*some.results, *more.results], [*some.finite, *more.finite]
    bytes_up, steps = some.bytes_up + more.bytes_up, some.gradient_steps + more.gradient_steps
    return Computed(join(some.total, more.total), results, are_finite, bytes_up, steps)


def _add(total: Tree, more: Tree) -> Tree:
    return tree_map(torch.add, total, more)


def _beside(some: Tree, more: Tree) -> Tree:
    return tree_map(lambda a, b: torch.cat([a, b]), some, more)
