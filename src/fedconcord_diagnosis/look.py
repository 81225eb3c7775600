"""One look: at a state, clients are asked for gradients and local steps that nobody keeps, and what they come to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import run_round
from fedconcord.execution.job import Job, State
from fedconcord.execution.rows.memory import MemoryStore
from fedconcord.federation.participation.participation import View
from fedconcord.federation.participation.sampling import Drawn, Losses, Sampler
from fedconcord.insight.methods.surrogate import schedule_of
from fedconcord.method import contract as core
from fedconcord.method.contract import Client, Local, Plan, Tree, rng
from fedconcord.method.step.assignment import open_rows, with_conditions, with_oracle
from fedconcord_diagnosis import vectors
from fedconcord_diagnosis.vectors import Agreement, Drift, Remedies, Residual, Staleness, control, drift, remedies

MOST_CLIENTS, LEAST_CLIENTS = 100, 10  # that a look asks
FREE_WORK = 5_000  # mini-batch gradients of all looks that nobody waits for
ROUNDS_OF_A_LOOK = 2  # local steps as they are, and with control variates
MOST_NUMBERS = 2**24  # of the vectors [n, d] that a look holds
MOST_SAMPLES = 1000  # of a client, for its gradient at one model
MOST_BATCHES = 8  # of a client, for its noise
MOST_CURVED = 3  # clients whose Hessian is asked
SAMPLES_CURVED = 256  # of a client there
SLICE = 256  # samples in one gradient


class Look(NamedTuple):
    """What was seen of n clients after `round` rounds."""

    round: int
    ids: np.ndarray  # [n] int64
    p: np.ndarray  # [n] weights in the objective, sum 1 over these clients
    steps: np.ndarray  # [n] local steps they would take in the round that begins
    lr: float  # local step size of that round; the mean of those that a rule found
    samples: np.ndarray  # [n] of each client that its gradients are of
    gradient: Agreement  # of g_i = grad f_i(x^t)
    noise: np.ndarray | None  # [n] sigma_i^2 of a mini-batch's gradient; None: steps use full gradients
    secant: np.ndarray  # [n] ||grad f_i(x_i^K) - g_i|| / ||x_i^K - x^t||, at most L_i
    curvature: float | None  # largest |eigenvalue| of the Hessian over a few clients; None: cannot be differentiated
    drift: Drift
    remedies: Remedies | None  # None: the method corrects its clients' directions already, or takes no gradient steps
    direction: float  # variance over clients of the first direction, over that of their gradients
    cohort: float  # deviation of a cohort's mean direction from everybody's, over its length
    memory: Staleness | None  # None: clients keep nothing that stands for a gradient
    remembered: core.Memory | None  # what that is
    residual: Residual | None
    theory: core.StepTheory | None

    @property
    def noise_ratio(self) -> float | None:
        """sqrt(sum_i p_i sigma_i^2 / sum_i p_i ||g_i||^2): mini-batch noise over a client's gradient."""
        if self.noise is None:
            return None
        return float((self.p @ self.noise / max(float(self.p @ self.gradient.norms**2), vectors.TINY)) ** 0.5)

    @property
    def smoothness(self) -> float:
        """The largest bound of L from below."""
        return max(self.curvature or 0.0, float(self.secant.max()))


def chosen(job: Job, at: Sequence[int]) -> np.ndarray:
    """The clients [n] that looks after rounds `at` ask, sorted: all, or a keyed sample.

    A sample where clients are many, the model is large, or their local steps would cost more than the training does.
    """
    n = job.problem.roster.n
    each = steps_of(job, np.arange(min(n, MOST_CLIENTS)))
    work = max(FREE_WORK, at[-1] * min(job.schedule.cohort, n) * each)
    worth = max(LEAST_CLIENTS, int(work / (ROUNDS_OF_A_LOOK * len(at) * each)))
    most = min(n, MOST_CLIENTS, worth, max(2, MOST_NUMBERS // job.problem.objective.dim))
    draw = rng.generator(job.schedule.seed, rng.Purpose.LOOK)
    return np.arange(n) if most == n else np.sort(draw.choice(n, most, replace=False))


def plan_for(job: Job, round: int, ids: np.ndarray) -> Plan:
    """The plan of a round in which just these clients take part, all there and in time."""

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses) -> Drawn:
        once = np.ones(len(ids))
        return Drawn(ids, once, once, once)

    everyone = replace(
        schedule_of(job),
        cohort=len(ids),
        sampler=Sampler(draw, takes_all="always"),
        availability=None,
        dropout=None,
        tree=None,
        deadline=None,
        late="discard",
    )
    view = View(lambda: job.cost, np.zeros_like, job.problem.objective.dim)
    return everyone.plan(round, job.algorithm, job.problem.roster, view)


def steps_of(job: Job, ids: np.ndarray) -> float:
    """Mini-batch gradients of the local steps of one of these clients in round 0, in the mean."""
    full = job.schedule.draws.full_cost(job.algorithm, job.problem.roster.samples[ids])
    return float(job.cost.gradients(plan_for(job, 0, ids).steps, full).mean())


def look(job: Job, state: State, ids: np.ndarray) -> Look:
    """What clients ids [n] would do in the round that a state begins; the state stays as it is."""
    plan, x = plan_for(job, state.round, ids), state.server.x
    p, d = plan.p / plan.p.sum(), job.problem.objective.dim
    objective, rows, _ = open_rows(job.problem.objective, x, state.store.gather(ids), ids)
    objective = with_conditions(objective, job.algorithm, job.algorithm.broadcast(state.server), rows, ids)
    samples_of = [_held(job, int(i)) for i in ids]
    at = _gradients(objective, x.expand(len(ids), -1), samples_of)
    local, ends, work = _round(job, state, plan)
    moves = ends - x
    first = local.x.expand(len(ids), d)
    there = at if torch.equal(first, x.expand_as(first)) else _gradients(objective, first, samples_of)
    end = _gradients(objective, ends, samples_of)
    direction, corrected = _direction(local, there)
    remedy = None
    if not corrected and job.solver.kind == "sgd" and job.algorithm.step.hessian_at is None:
        kappa = _kappa(local).double().reshape(-1).cpu().numpy()  # [n] of gradients beside constants
        steered = _round(job, state, plan, control(p, moves, work / kappa, plan.lr))[1] - x
        remedy = remedies(p, moves, work, steered)
    client_drift, agreement = drift(p, moves), vectors.agreement(p, at)
    secant = vectors.secant(end - there, ends - first)
    remembered = vectors.kept(job.algorithm, state.server, rows, plan.p, vectors.mean_of(p, at))
    over = vectors.agreement(p, at if job.algorithm.phases.prelude is not None else direction)
    theory = None
    if job.algorithm.facts.theory is not None:
        inclusion = np.full(len(ids), min(1.0, job.schedule.cohort / job.problem.roster.n))
        theory = job.algorithm.facts.theory(ids, inclusion, plan.steps, plan.lr, secant)
    residual = None
    if remembered is not None and remembered.what.is_dual:
        pull = local.piece(core.Pull)
        rho = 0.0 if pull is None else pull.rho
        residual = vectors.residual(p, -remembered.gradients, first, x, there, rho / _kappa(local))
    return Look(
        round=state.round,
        ids=ids,
        p=p,
        steps=plan.steps,
        lr=plan.lr if job.assignment.rule is None else plan.lr * float(p @ (work / plan.steps)),
        samples=np.array([len(samples) for samples in samples_of]),
        gradient=agreement,
        noise=_noise(job, objective, x, at, ids, samples_of),
        secant=secant,
        curvature=_curvature(objective, x, at, samples_of, np.argsort(-secant, kind="stable")[:MOST_CURVED]),
        drift=client_drift,
        remedies=remedy,
        direction=vectors.spread(p, direction) / max(agreement.spread, vectors.TINY),
        cohort=vectors.cohort_noise(over.spread, over.full, job.problem.roster.n, job.schedule.cohort),
        memory=None if remembered is None else vectors.staleness(p, remembered, at),
        remembered=None if remembered is None else remembered.what,
        residual=residual,
        theory=theory,
    )


# -- asking clients ------------------------------------------------------------------------------------------------


def _held(job: Job, client: int) -> Tensor:
    """The samples of a client that its gradients are of: all, or a keyed sample."""
    samples = job.problem.objective.samples(client)
    if len(samples) <= MOST_SAMPLES:
        return samples
    keep = rng.generator(job.schedule.seed, rng.Purpose.LOOK, 0, client + 1).permutation(len(samples))[:MOST_SAMPLES]
    return samples[torch.as_tensor(np.sort(keep), device=samples.device)]


def _gradient(objective: core.Objective, x: Tensor, samples: Tensor) -> Tensor:
    """The mean gradient [d] of samples at x [d], in slices of bounded memory."""
    total = torch.zeros_like(x)
    for begin in range(0, len(samples), SLICE):
        part = samples[begin : begin + SLICE]
        total += objective.gradient(x, part).detach() * (len(part) / len(samples))
    return total


def _gradients(objective: core.Objective, points: Tensor, samples_of: list[Tensor]) -> Tensor:
    """Every client's gradient [n, d] at its own point [n, d]."""
    each = enumerate(zip(points, samples_of, strict=True))
    return torch.stack([_gradient(_of(objective, k), x, samples) for k, (x, samples) in each])


def _of(objective: core.Objective, k: int) -> core.Objective:
    """That of one of the clients, under its own conditions."""
    return objective.taking(torch.tensor([k]), 0)


def _noise(
    job: Job, objective: core.Objective, x: Tensor, at: Tensor, ids: np.ndarray, samples_of: list[Tensor]
) -> np.ndarray | None:
    """sigma_i^2 [n] of the gradient of one local step's mini-batch: the batches of one keyed pass, or some of them."""
    if job.assignment.oracle.kind == "full":
        return None
    variances = np.zeros(len(samples_of))
    for k, (i, samples) in enumerate(zip(ids, samples_of, strict=True)):
        size = job.schedule.draws.width(job.algorithm, len(samples))
        if size >= len(samples):
            continue
        order = rng.generator(job.schedule.seed, rng.Purpose.LOOK, 1, int(i) + 1).permutation(len(samples))
        whole = order[: len(samples) // size * size].reshape(-1, size)[:MOST_BATCHES]
        mine = _of(objective, k)
        batches = [_gradient(mine, x, samples[torch.as_tensor(b, device=samples.device)]) for b in whole]
        variances[k] = vectors.noise(at[k], torch.stack(batches))
    return variances if variances.any() else None


def _loss_on(objective: core.Objective, samples: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: objective.loss(x, samples)


def _curvature(
    objective: core.Objective, x: Tensor, at: Tensor, samples_of: list[Tensor], which: np.ndarray
) -> float | None:
    """The largest curvature over these clients; power iteration starts from the client's own gradient."""
    curvatures = []
    for k in which:
        samples, mine = samples_of[k][:SAMPLES_CURVED], _of(objective, int(k))
        start = at[k] if bool(at[k].any()) else torch.ones_like(x)
        try:
            curvatures.append(vectors.largest_curvature(_loss_on(mine, samples), x, start))
        except (RuntimeError, NotImplementedError):  # somebody's layer or loss has no second derivative
            return None
    return max(curvatures)


def _round(job: Job, state: State, plan: Plan, more: Tensor | None = None) -> tuple[Local, Tensor, np.ndarray]:
    """In the plan's order: local problems (`table` its mean [d]), where local steps end [n, d], work ||a_i||_1 [n].

    Args:
        more: [n, d] to be added to each client's direction.
    """
    reports: dict[int, tuple[Local, core.Done]] = {}
    lock, algorithm = threading.Lock(), job.algorithm
    if more is not None:
        algorithm = replace(algorithm, start=_steered(algorithm, plan.ids, more))

    def finish(down: Tree, row: Tree, done: core.Done, client: Client) -> tuple[Tree, Tree]:
        local = with_oracle(
            algorithm.start(down, row, client), job.assignment.oracle, core.model_of(down), client.gradient
        )
        pieces = [_short(piece) for piece in local.pieces if isinstance(piece, LINEAR)]
        local, done = Local(local.x, *pieces), core.Done(*done[:3])
        with lock:
            for k, i in enumerate(client.id.reshape(-1).tolist()):
                row_of = partial(_row, k=k) if client.id.ndim > 0 else lambda leaf: leaf
                reports[i] = local.map(row_of), core.tree_map(row_of, done)
        return (), row

    linear = job.solver.kind != "lbfgs" and algorithm.step.hessian_at is None
    watched: core.Algorithm = replace(
        algorithm,
        start=lambda *of: algorithm.start(*of).map(_apart),
        finish=finish,
        contribute=lambda up, sender, cohort: (),
        update=lambda server, total, cohort: server,
        phases=algorithm.phases._replace(settle=None, communicates=None, combine=None),
        needs=algorithm.needs._replace(
            normaliser=linear and (job.solver.clip_direction is None or job.assignment.rule is not None)
        ),
    )
    assignment, rows = job.assignment._replace(algorithm=watched), MemoryStore(state.store.template)
    rows.scatter(plan.ids, state.store.gather(plan.ids))  # in a store that nobody keeps
    run_round(job.engine, job.problem, assignment, state.server, rows, plan)
    locals_ = [reports[int(i)][0] for i in plan.ids]
    ends = [reports[int(i)][1] for i in plan.ids]
    counted = [float(end.normaliser if watched.needs.normaliser else end.steps) for end in ends]
    return _together(locals_), torch.stack([end.x for end in ends]), np.array(counted)


def _steered(algorithm: core.Algorithm, ids: np.ndarray, more: Tensor) -> Callable[[Tree, Tree, Client], Local]:
    """`start` with more [n, d] in the directions of clients ids [n]."""
    place = {int(i): k for k, i in enumerate(ids)}

    def start(down: Tree, row: Tree, client: Client) -> Local:
        local = algorithm.start(down, row, client)
        mine = more[[place[int(i)] for i in client.id.reshape(-1)]]
        mine = mine if client.id.ndim else mine[0]
        return local.having(core.Constant(mine))

    return start


LINEAR = (core.Snapshot, core.Table, core.Scale, core.Constant, core.Dual, core.Pull)
"""Pieces whose directions are linear in the gradients, which is what a look is at."""


def _short(piece: Any) -> Any:
    """The piece with the mean of a table in place of its rows, which are large and of which no look asks more."""
    return piece._replace(table=piece.table.mean(-2, keepdim=True)) if isinstance(piece, core.Table) else piece


def _apart(leaf: Any) -> Any:
    """A cohort's tables as copies: the steps would move those of the rows, of which a look asks again."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.ndim > 2 else leaf


def _row(leaf: Any, k: int) -> Any:
    """One client's part of a stacked cohort's tensor: vectors [S, d] and columns [S, 1] at k."""
    return leaf[k].clone() if isinstance(leaf, Tensor) and leaf.ndim >= 2 else leaf


def _together(locals_: list[Local]) -> Local:
    """Local problems of n clients as one, tensors stacked [n, ...], numbers that differ as [n, 1]."""

    def stacked(*leaves: Any) -> Any:
        if not isinstance(leaves[0], Tensor):
            return leaves[0]
        rows = torch.stack(leaves)
        return rows if rows.ndim > 1 else rows[:, None]

    pieces = [core.tree_map(stacked, *same) for same in zip(*(local.pieces for local in locals_), strict=True)]
    return Local(torch.stack([local.x for local in locals_]), *pieces)


def _kappa(local: Local) -> Tensor:
    """The weight of each client's gradient in its direction [n, 1]."""
    scale = local.piece(core.Scale)
    return local.x.new_ones(len(local.x), 1) * (1.0 if scale is None else scale.kappa)


def _direction(local: Local, at: Tensor) -> tuple[Tensor, bool]:
    """The mean direction of each client's first step [n, d], and whether it is corrected for the client.

    Args:
        local: of n clients (`_together`).
        at: gradients [n, d] where they start; a snapshot is taken to be there.
    """
    blocks = torch.zeros(len(at), dtype=torch.int64, device=at.device)
    v, step = at.clone(), core.At(local.x, lambda point: at, blocks, 0)
    for piece in sorted(local.pieces, key=lambda piece: piece.traits.place):
        v = piece.apply(v, step)
    left = v - _kappa(local) * at
    deviation = left - left.mean(0)
    return v, bool(deviation.square().sum() > 1e-10 * (_kappa(local) * at).square().sum())
