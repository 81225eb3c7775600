"""One client's message as it is sent, and what the server reads from it (see the package)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.engines import Serial, run_round
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import (
    Ascent,
    Client,
    Cohort,
    Done,
    Drawn,
    Parts,
    Plan,
    Sender,
    Tree,
    cohort_of,
    orders_of,
    space_of,
    tree_bytes,
    tree_leaves,
    tree_map,
)
from fedconcord.method.step.assignment import local_regulariser, with_oracle
from fedconcord.method.step.step import solve
from fedconcord.support.errors import UserError

PROBE = 1e9  # size of the gradient that a play is probed with, so that compressors keep it


class Seen(NamedTuple):
    """One client's round as the audit saw it. `message` and `gradient` are sent; the server knows the other fields
    but `done.x` and what the pieces of `done` have moved."""

    x: Tensor  # [d] the server's model before the round
    down: Tree  # what the client received
    row: Tree  # its state before the round
    client: Client
    sender: Sender
    cohort: Cohort
    plan: Plan
    drawn: Drawn  # what the client drew by itself
    done: Done
    message: Tree  # after the local steps
    gradient: Tensor | None  # [d] in a prelude, before them
    server: Tree  # after the round
    cohort_bytes: int  # that the engine counted for all clients of the cohort

    @property
    def bytes(self) -> int:
        """Bytes of what the client sent."""
        return tree_bytes(self.message) + (0 if self.gradient is None else tree_bytes(self.gradient))


def capture(job: Job, round: int, client: int | None = None) -> Seen:
    """Run a job to the given round, from 1, and keep what the client sends in it; None: the first of the cohort.

    Raises:
        UserError: there is no such client or round, it sends nothing then, or the job keeps late replies.
    """
    problem, algorithm, n = job.problem, job.algorithm, job.problem.roster.n
    if round < 1:
        raise UserError(f"the audited round counts from 1, given {round}")
    if client is not None and not 0 <= client < n:
        raise UserError(f"the audited client must be 0 to {n - 1}, given {client}")
    if isinstance(problem.objective.private, Parts):
        raise UserError("the audit knows no private parts of a model; leave local.private out")
    if algorithm.phases.late:
        raise UserError(
            "an audit reads a reply in the round that it is computed in, and this job keeps late ones for others; "
            "audit it with late discard"
        )
    if isinstance(job.schedule, Schedule) and job.schedule.clock is not None:
        raise UserError("an audit reads a reply in the round that it began in; audit the job without clock")
    state = start(job)
    for _ in range(round - 1):
        state = advance(job, state)
    plan = plan_of(job, state)  # who is drawn may depend on the model
    if not len(plan.ids):
        raise UserError(f"nobody answers in round {round}; audit another round")
    if client is None:
        client = int(plan.ids[0])
    if client not in plan.ids:
        some = ", ".join(str(i) for i in plan.ids[:10]) + (", ..." if len(plan.ids) > 10 else "")
        raise UserError(f"client {client} does not take part in round {round}; audit one of {some}, or another round")
    cohort = cohort_of(space_of(problem), plan)
    if algorithm.phases.communicates is not None and not algorithm.phases.communicates(cohort):
        raise UserError(f"the method sends no message in round {round}; audit another round")
    calls: list[tuple[Tree, Tree, Done, Client, Tree]] = []

    def finish(down: Tree, row: Tree, done: Done, of: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(down, row, done, of)
        if int(of.id) == client:
            calls.append((down, row, done, of, up))
        return up, new

    senders: list[Sender] = []

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        if int(sender.id) == client:
            senders.append(sender)
        return algorithm.contribute(up, sender, cohort)

    gradients: list[Tensor] = []

    def ask(gradient: Tensor, sender: Sender, cohort: Cohort) -> Tree:
        assert prelude is not None
        if int(sender.id) == client:
            gradients.append(gradient)
        return prelude.contribute(gradient, sender, cohort)

    prelude = algorithm.phases.prelude
    heard = None if prelude is None else prelude._replace(contribute=ask)
    watched = replace(algorithm, finish=finish, contribute=contribute, phases=algorithm.phases._replace(prelude=heard))
    assignment = job.assignment._replace(algorithm=watched)
    after = run_round(Serial(), problem, assignment, state.server, state.store, plan)
    ((down, row, done, of, up),), (sender,) = calls, senders
    orders = orders_of(plan, int(np.flatnonzero(plan.ids == client)[0]), algorithm)
    return Seen(
        x=state.server.x,
        down=down,
        row=row,
        client=of,
        sender=sender,
        cohort=cohort,
        plan=plan,
        drawn=job.assignment.draws.draw(algorithm, orders, int(problem.roster.samples[client])),
        done=done,
        message=up,
        gradient=gradients[0] if gradients else None,
        server=after.server,
        cohort_bytes=after.bytes_up,
    )


def touched(job: Job, captured: Seen) -> Tensor:
    """The samples [n] that the message was computed from: the round's mini-batches, or all of the client."""
    objective, batches = job.problem.objective, captured.drawn.batches
    samples = objective.samples(int(captured.client.id))
    if captured.gradient is not None or captured.client.gradient is not None or job.algorithm.step.blocks is not None:
        return samples
    if batches is None or job.assignment.oracle.kind == "full":
        return samples
    used = np.unique(batches)
    return samples[torch.as_tensor(used[used >= 0], device=objective.device)]


# -- what the server reads from it ---------------------------------------------------------------------------------


def _double(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, tree)


def _vectors(job: Job, captured: Seen, gradient: Tensor | None, message: Tree) -> list[Tensor]:
    """The vectors [d] of a message as the server decodes them, the prelude's first."""
    decoded = tree_leaves(job.algorithm.contribute(message, captured.sender, captured.cohort)).values()
    vectors = [leaf.double() for leaf in decoded if isinstance(leaf, Tensor) and leaf.shape == captured.x.shape]
    return vectors if gradient is None else [gradient.double(), *vectors]


def _play(job: Job, captured: Seen, g: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the client would have sent, and its last model [d], were g [d] its gradient everywhere."""
    client = captured.client
    if client.gradient is not None:
        client = client._replace(gradient=g)
    local = with_oracle(job.algorithm.start(captured.down, captured.row, client), job.assignment.oracle, captured.x, g)
    assignment = job.assignment._replace(solver=job.solver._replace(clip=None, tolerance=None))
    none = torch.empty(0, dtype=torch.int64, device=g.device)
    steps = [none] * int(captured.done.steps)
    constant = replace(job.problem.objective, dtype=g.dtype, gradient=lambda x, samples: g)
    done, _ = solve(constant, assignment, local, steps, captured.drawn.blocks, none, captured.plan.lr)
    message, _ = job.algorithm.finish(captured.down, captured.row, done, client)
    return _vectors(job, captured, None if captured.gradient is None else g, message), done.x


def readings(job: Job, captured: Seen) -> dict[str, Tensor]:
    """The estimates of the client's mean gradient [d], float64; one alone where both are the same.

    The job says how a message is read. That of a protected job is read by the same job without privacy.

    Raises:
        UserError: the message is not affine in the gradients (Newton steps, L-BFGS, step sizes of a rule, a dual of
            SAM's ascent, clients' proximal steps, clipped messages).
    """
    if job.algorithm.facts.protection is not None:
        raise UserError(
            "the audit reads messages that are affine in the gradients, and differential privacy clips these; give "
            "the same job without privacy as well (plain), by which they are read as if they were plain"
        )
    if any(isinstance(piece, Ascent) for piece in captured.done.pieces):
        raise UserError(
            "the audit reads messages that are affine in the gradients, and this method's hold the dual of SAM's "
            "ascent; audit fedspeed in place of fedsmoo"
        )
    if job.algorithm.step.hessian_at is not None or job.solver.kind == "lbfgs":
        raise UserError(
            "the audit reads messages of gradient steps, and this job's clients take Newton or L-BFGS steps; audit it "
            "with plain local SGD"
        )
    if job.assignment.rule is not None:
        raise UserError(
            "the audit reads messages that are affine in the gradients, and these clients' step sizes follow their "
            "gradients; audit the job with a number for local.lr"
        )
    psi = local_regulariser(job.problem.objective, job.algorithm)
    if psi is not None:
        raise UserError(
            f"the audit reads messages of gradient steps, and this job's clients take proximal steps of {psi.name} as "
            "well; audit it without the regulariser, or a method whose server takes them, such as fedadmm_inexact"
        )
    vectors = _vectors(job, captured, captured.gradient, captured.message)
    known = captured._replace(
        x=captured.x.double(),
        down=_double(captured.down),
        row=_double(captured.row),
        client=_double(captured.client),
        sender=_double(captured.sender),
    )
    zero = torch.zeros_like(known.x)
    base, _ = _play(job, known, zero)
    probe = zero.clone()
    probe[0] = PROBE * (1 + max(float(a.abs().max()) for a in base))
    probed, _ = _play(job, known, probe)
    slopes = [(v[0] - a[0]) / probe[0] for v, a in zip(probed, base, strict=True)]
    size = sum(float(b) ** 2 for b in slopes)
    if not size > 0:
        raise UserError("the audited message does not depend on the client's gradients, so there is nothing to attack")
    terms = [b * (v - a) for b, v, a in zip(slopes, vectors, base, strict=True)]
    protocol = torch.stack(terms).sum(0) / size
    if captured.gradient is not None:
        move = vectors[0]
    elif slopes[0] == 0:
        return {"protocol": protocol}
    else:
        _, x = _play(job, known, (vectors[0] - base[0]) / slopes[0])  # the client's last model, of this message
        move = -(x - known.x) / (captured.plan.lr * float(captured.done.steps))
    if float((move - protocol).norm()) <= 1e-5 * float(move.norm()):
        return {"move": move}
    return {"move": move, "protocol": protocol}
