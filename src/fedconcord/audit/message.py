"""One client's message as it is sent, and what the server reads from it (see the package)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Client, Cohort, Done, Plan, Problem, Tree, n_clients, tree_bytes, tree_leaves, tree_map
from fedconcord.engines import Serial
from fedconcord.engines.base import cohort_of, everything, local_regulariser, oracle_of, with_oracle
from fedconcord.engines.serial import solve
from fedconcord.errors import UserError
from fedconcord.training import Job, advance, plan_of, start

PROBE = 1e9  # size of the gradient that a play is probed with, so that compressors keep it


class Seen(NamedTuple):
    """One client's round as the audit saw it. `message` and `gradient` are sent; the server knows the other fields
    but `done.x`, `done.linear`, `done.table` and `done.buffer`."""

    x: Tensor  # [d] the server's model before the round
    down: Tree  # what the client received
    row: Tree  # its state before the round
    client: Client
    cohort: Cohort
    plan: Plan
    position: int  # of the client in the plan
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
    problem, algorithm, n = job.problem, job.algorithm, n_clients(job.problem)
    if round < 1:
        raise UserError(f"the audited round counts from 1, given {round}")
    if client is not None and not 0 <= client < n:
        raise UserError(f"the audited client must be 0 to {n - 1}, given {client}")
    if algorithm.keeps_late:
        raise UserError(
            "an audit reads a reply in the round that it is computed in, and this job keeps late ones for others; "
            "audit it with late discard"
        )
    state = start(job)
    for _ in range(round - 1):
        state = advance(job, state)
    plan = plan_of(job, round - 1, state.server.x)  # who is drawn may depend on the model
    if not len(plan.ids):
        raise UserError(f"nobody answers in round {round}; audit another round")
    if client is None:
        client = int(plan.ids[0])
    if client not in plan.ids:
        some = ", ".join(str(i) for i in plan.ids[:10]) + (", ..." if len(plan.ids) > 10 else "")
        raise UserError(f"client {client} does not take part in round {round}; audit one of {some}, or another round")
    cohort = cohort_of(problem, plan)
    if algorithm.communicates is not None and not algorithm.communicates(cohort):
        raise UserError(f"the method sends no message in round {round}; audit another round")
    kept: list[tuple[Tree, Tree, Done, Client, Tree]] = []

    def finish(down: Tree, row: Tree, done: Done, of: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(down, row, done, of)
        if int(of.id) == client:
            kept.append((down, row, done, of, up))
        return up, new

    watched = replace(algorithm, finish=finish)
    after = Serial().round(problem, watched, job.solver, state.server, state.store, plan)
    ((down, row, done, of, up),) = kept
    return Seen(
        x=state.server.x,
        down=down,
        row=row,
        client=of,
        cohort=cohort,
        plan=plan,
        position=int(np.flatnonzero(plan.ids == client)[0]),
        done=done,
        message=up,
        gradient=None if algorithm.prelude is None else of.gradient,
        server=after.server,
        cohort_bytes=after.bytes_up,
    )


def touched(job: Job, seen: Seen) -> Tensor:
    """The samples [n] that the message was computed from: the round's mini-batches, or all of the client."""
    client, plan = int(seen.client.id), seen.plan
    partial = plan.batches is not None and job.algorithm.blocks is None and seen.client.gradient is None
    if not partial or oracle_of(job.algorithm, job.solver).kind == "full":
        return everything(job.problem, client)
    assert plan.batches is not None
    used = np.unique(plan.batches[seen.position])
    return torch.as_tensor(job.problem.offsets[client] + used[used >= 0], device=job.problem.device)


# -- what the server reads from it ---------------------------------------------------------------------------------


class _Constant:
    """A problem with one gradient everywhere, as far as the local loop asks."""

    def __init__(self, g: Tensor) -> None:
        self.g, self.dtype, self.device, self.regulariser = g, g.dtype, g.device, None

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.g


def _double(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, tree)


def _vectors(job: Job, seen: Seen, gradient: Tensor | None, message: Tree) -> list[Tensor]:
    """The vectors [d] of a message as the server decodes them, the prelude's first."""
    decoded = tree_leaves(job.algorithm.contribute(message, seen.client, seen.cohort)).values()
    vectors = [leaf.double() for leaf in decoded if isinstance(leaf, Tensor) and leaf.shape == seen.x.shape]
    return vectors if gradient is None else [gradient.double(), *vectors]


def _play(job: Job, seen: Seen, g: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the client would have sent, and its last model [d], were g [d] its gradient everywhere."""
    oracle = oracle_of(job.algorithm, job.solver)
    client = seen.client
    if client.gradient is not None:
        client = client._replace(gradient=g)
    local = with_oracle(job.algorithm.start(seen.down, seen.row, client), oracle, seen.x, g)
    solver = job.solver._replace(clip=None, tolerance=None)
    blocks = None if seen.plan.blocks is None else seen.plan.blocks[seen.position]
    none = torch.empty(0, dtype=torch.int64, device=g.device)
    steps = [none] * int(seen.done.steps)
    constant = cast(Problem, _Constant(g))
    done, _ = solve(constant, job.algorithm, solver, local, steps, blocks, none, seen.plan.lr)
    message, _ = job.algorithm.finish(seen.down, seen.row, done, client)
    return _vectors(job, seen, None if seen.gradient is None else g, message), done.x


def readings(job: Job, seen: Seen) -> dict[str, Tensor]:
    """The estimates of the client's mean gradient [d], float64; one alone where both are the same.

    Raises:
        UserError: the message is not affine in the gradients (Newton steps, L-BFGS, clients' proximal steps).
    """
    if job.algorithm.hessian_at is not None or job.solver.kind == "lbfgs":
        raise UserError(
            "the audit reads messages of gradient steps, and this job's clients take Newton or L-BFGS steps; audit it "
            "with plain local SGD"
        )
    psi = local_regulariser(job.problem, job.algorithm)
    if psi is not None:
        raise UserError(
            f"the audit reads messages of gradient steps, and this job's clients take proximal steps of {psi.name} as "
            "well; audit it without the regulariser, or a method whose server takes them, such as fedadmm_inexact"
        )
    sent = _vectors(job, seen, seen.gradient, seen.message)
    of = seen.client
    known = seen._replace(
        x=seen.x.double(),
        down=_double(seen.down),
        row=_double(seen.row),
        client=of._replace(w=of.w.double(), p=of.p.double(), steps=of.steps.double(), inclusion=of.inclusion.double()),
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
    terms = [b * (v - a) for b, v, a in zip(slopes, sent, base, strict=True)]
    protocol = torch.stack(terms).sum(0) / size
    if seen.gradient is not None:
        move = sent[0]
    elif slopes[0] == 0:
        return {"protocol": protocol}
    else:
        _, x = _play(job, known, (sent[0] - base[0]) / slopes[0])  # whose message is this one: the client's last model
        move = -(x - known.x) / (seen.plan.lr * float(seen.done.steps))
    if float((move - protocol).norm()) <= 1e-5 * float(move.norm()):
        return {"move": move}
    return {"move": move, "protocol": protocol}
