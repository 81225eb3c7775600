"""Every reason why a job cannot run, from what its parts declare. The command, Python and the engines all ask here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from fedconcord.execution.job.job import Job, has_own_models
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Coins, Disjoint, shares_of
from fedconcord.method.contract import Orders, Parts, Population, weights
from fedconcord.method.contract.facts import StepNoise
from fedconcord.method.contract.pieces import gradients_of
from fedconcord.method.step import solver
from fedconcord.method.step.assignment import with_term_of
from fedconcord.method.step.order import user_pieces
from fedconcord.method.step.samples import SLICE
from fedconcord.method.wrappers.forms import forms
from fedconcord.support.errors import UserError

MANY = 2**40  # samples
FROZEN = ", or norm=frozen, or torch.nn.GroupNorm in its place"


def check(job: Job) -> None:
    """Refuse a job that cannot run, before round 0.

    Raises:
        UserError: the first of the reasons.
    """
    for reason in reasons(job):
        raise UserError(reason)


def reasons(job: Job) -> Iterator[str]:
    """Why the job cannot run, a sentence each; none if it can."""
    algorithm, objective, roster = job.algorithm, job.problem.objective, job.problem.roster
    n, cohort = roster.n, job.schedule.cohort
    sampling.check(cohort, n)
    p = weights.objective(algorithm.weights, roster.sizes)
    reasons = (
        job.schedule.refuse(algorithm, n),
        algorithm.refuse(Population(n, torch.as_tensor(p, device=objective.device)), cohort),
        solver.refuse(job.solver, algorithm, objective.regulariser is not None),
    )
    yield from (reason for reason in reasons if reason is not None)
    yield from _of_ranks(job)
    yield from _of_layers(job)
    if isinstance(objective.private, Parts):
        if objective.dim == 0 and algorithm.step.prototypes is None:
            yield (
                "local.private matches every trainable parameter of the model, so that nothing is left to share; leave "
                "one out, add local.term proto, or compare with the baseline local"
            )
        is_windowed = objective.private.frozen or objective.private.before
        if job.solver.kind == "lbfgs" and is_windowed:
            yield "L-BFGS moves all of a model at once; leave local.private_steps out, or use local SGD"
        if algorithm.step.code is not None and is_windowed:
            yield "local.code moves all of a model at once; leave local.private_steps out, or local.code"
        if job.solver.clip_direction is not None and job.solver.clip_form == "released":
            yield "local.clip_form released is of models without private parts; use whole"
    yield from _of_term(job)
    if algorithm.step.noise is not None:
        yield from _of_samples(job, algorithm.step.noise)
    if isinstance(job.schedule, Schedule) and job.schedule.clock is not None:
        if objective.private is not None:
            yield "asynchronous rounds (clock) are of models that are shared whole; leave private parts out, or clock"
        if job.schedule.devices is None and job.engine.can.is_timed:
            yield "asynchronous rounds (clock) need the times of clients; set devices, for example lognormal(0.5)"
    if objective.private is not None and algorithm.phases.late:
        yield "late replies cannot be kept where clients have private blocks; use late discard"
    if objective.precision != "full" and job.solver.kind == "lbfgs":
        yield (
            f"L-BFGS minimises the loss in full precision, and engine.precision is {objective.precision}; set it to "
            "full, or use local SGD"
        )
    if has_own_models(job):
        if supervised(job.problem) is None:
            yield "clients' own models are judged on labelled samples in memory, and these data have none"
        if not job.engine.can.clients_here:
            yield "clients' own models are judged in one process; use engine stacked or serial"
    if algorithm.phases.combine is not None and job.engine.team.size > 1:
        yield (
            "contributions that are not summed have to lie in one process, and the distributed engine has several; use "
            "engine stacked, or aggregate mean and no attack that looks at other clients"
        )
    if algorithm.step.addition is not None and isinstance(job.schedule, Schedule) and job.schedule.sampler.by_loss:
        yield (
            "the method adds to the weights below its factors, and clients' losses are asked at the server's factors "
            "alone; use a sampling that goes by no losses, or aggregate rolora"
        )
    if job.engine.team.size > n:
        yield f"{job.engine.team.size} processes cannot share {n} clients; start at most {n}"
    if algorithm.step.hessian_at is not None and objective.hessian is None:
        yield "the method takes Newton steps, and this problem has no Hessians; use a method without"
    for attempt in _attempts(job):
        try:
            attempt()
        except UserError as refused:
            yield str(refused)


def _attempts(job: Job) -> Iterator[Callable[[], object]]:
    """What refuses itself: the user's pieces beside the method's, a term, blocks of a client's samples, Hessians."""
    algorithm, objective, samples = job.algorithm, job.problem.objective, job.problem.roster.samples
    init, smallest = partial(job.problem.init, job.schedule.seed), int(samples.argmin())

    def one_step() -> None:
        with suppress(RuntimeError, TypeError):  # of a method that reads numbers, which forms have none of
            job.assignment.pieces(forms(algorithm, init()).local)

    if user_pieces(job.solver, job.solver.oracle, torch.empty(1)) or algorithm.step.optimiser is not None:
        yield one_step
    if algorithm.step.term is not None:
        yield lambda: with_term_of(objective, algorithm, init(), None, np.zeros(1, np.int64))
    if algorithm.step.blocks is not None:
        yield lambda: job.schedule.draws.members(algorithm, smallest, int(samples[smallest]))
    if algorithm.step.hessian_at is not None and (hessian := objective.hessian) is not None:
        yield lambda: hessian(init(), torch.tensor([0], device=objective.device))


def _of_ranks(job: Job) -> Iterator[str]:
    """Why clients cannot have low-rank factors of different ranks in this job."""
    algorithm, schedule, whole = job.algorithm, job.schedule, supervised(job.problem)
    pairs = job.problem.objective.pairs if whole is None else whole.pairs  # private ones too
    if not (pairs and pairs[0].ranks):
        return
    if algorithm.phases.portion is None:
        rule = algorithm.facts.factors
        name = "FedIT (the means of A and of B)" if rule is None else f"aggregate {rule}"
        yield f"ranks differ between clients, which {name} cannot average; use aggregate flora or hlora, or one rank"
    elif isinstance(schedule, Schedule) and schedule.devices is not None:
        yield (
            "simulated seconds (devices) count whole messages, and clients whose ranks differ are sent parts of them; "
            "leave devices out, or give one rank"
        )


def _of_layers(job: Job) -> Iterator[str]:
    """Why a model whose layers do otherwise in training does not go with what is asked of its f_i."""
    objective, draws = job.problem.objective, job.assignment.draws
    reasons = []
    if objective.draws is not None:
        reasons.append((f"{objective.draws}, so that f_i is another function each time it is asked", ""))
    if objective.normalises is not None:
        reasons.append((f"{objective.normalises}, so that f_i is no mean over samples", FROZEN))
        yield from _of_statistics(job, objective.normalises)
    for why, otherwise in reasons:
        for what, advice in _askers(job):
            yield f"{why}, and {what}; {advice}{otherwise}"
        if draws.width(job.algorithm, objective.largest) >= objective.largest > SLICE:
            yield (
                f"{why}, and a step on all samples of a client takes {SLICE} at a time, where they are up to "
                f"{objective.largest}; give local.batch_size a smaller number"
            )


def _of_statistics(job: Job, normalises: str) -> Iterator[str]:
    """Why clients' samples do not go with layers that normalise by the batch and by statistics of all of them."""
    algorithm, counts = job.algorithm, job.problem.roster.samples
    if algorithm.facts.protection is not None:
        yield (
            f"{normalises}, and its statistics are sums of clients' activations, which privacy has no bound for; use "
            "norm=frozen, or torch.nn.GroupNorm in its place"
        )
    inner = supervised(job.problem)
    if has_own_models(job) and inner is not None and inner.norm == "pooled":
        yield (
            f"{normalises}, and clients' own models have no statistics of their own under norm pooled; use "
            f"norm=silo, or one model for all{FROZEN}"
        )
    if algorithm.step.term is not None:
        yield (
            f"{normalises}, and term {algorithm.step.term.name} asks other models about the same batch; leave "
            f"local.term out{FROZEN}"
        )
    if isinstance(job.schedule, Schedule) and isinstance(job.schedule.batch_size, Coins):
        if algorithm.step.noise is None:  # which has a sentence of its own
            yield f"{normalises}, and batches by coins may have one sample; use a number for local.batch_size{FROZEN}"
        return
    for n in np.unique(counts):
        if 1 in _widths(job, int(n)):
            yield _of_one(job, int(np.flatnonzero(counts == n)[0]))
            return


def _of_one(job: Job, client: int) -> str:
    """Why a client cannot have batches of one sample, and the size of batches nearest to the job's that gives none."""
    counts = job.problem.roster.samples
    if (counts == 1).any():
        return f"client {client} has one sample, which batch normalisation cannot use; use norm=frozen"
    width = job.assignment.draws.width(job.algorithm, int(counts.max()))
    sizes = [size for size in range(2, int(counts.max()) + 1) if (counts % size != 1).all()]
    nearest = min(sizes, key=lambda size: abs(size - width))
    return (
        f"client {client} has {counts[client]} samples and batches of one sample among them, which batch normalisation "
        f"cannot use; use norm=frozen or another local.batch_size, such as {nearest}"
    )


def _widths(job: Job, n: int) -> set[int]:
    """How many samples steps of a client have that holds n."""
    batches = job.assignment.draws.draw(job.algorithm, Orders(0, 0, n, 0.1, 0), n).batches
    return {n} if batches is None else set((batches >= 0).sum(-1).tolist())


def _askers(job: Job) -> Iterator[tuple[str, str]]:
    """What of a job needs f_i to be one function: a mean over samples that may be asked again; and what to do."""
    algorithm, solver = job.algorithm, job.solver
    oracle, another = job.assignment.oracle.kind, "use another method"
    if oracle in ("svrg", "saga", "full"):
        advice = another if algorithm.step.oracle is not None else "set local.oracle to minibatch"
        yield f"{oracle} takes gradients of one and the same f_i", advice
    if algorithm.step.blocks is not None:
        yield "the method keeps a table of gradients of one and the same f_i", another
    if algorithm.needs.full_gradient or algorithm.phases.prelude is not None or algorithm.phases.prologue is not None:
        yield "the method takes full gradients of one and the same f_i", another
    if algorithm.step.hessian_at is not None:
        yield "the method takes Hessians of one and the same f_i", another
    if solver.kind == "lbfgs":
        yield "L-BFGS minimises one and the same f_i", "use local SGD"
    if solver.tolerance is not None:
        yield "local.tolerance looks at the gradient of one and the same f_i", "leave it out"


def _of_samples(job: Job, rule: StepNoise) -> Iterator[str]:
    """Why privacy of samples would not cover all that clients make of their samples."""
    algorithm, objective, why = job.algorithm, job.problem.objective, "privacy of samples"
    size = job.schedule.batch_size if isinstance(job.schedule, Schedule) else None
    if shares_of(size) != (rule.probability, rule.leaves):
        rival = Coins(rule.probability) if rule.leaves == 1 else Disjoint(rule.leaves)
        yield f"{why} counts on batches by {rival}, given batch_size {size}; give the schedule work.{rival}"
    for what, advice in _askers(job):
        yield f"{why} covers the gradients of local steps, and {what}; {advice}"
    if gradients_of(job.assignment.pieces(forms(algorithm, job.problem.init(job.schedule.seed)).local)) > 1:
        yield (
            f"{why} covers one gradient a local step, and these steps take several of the same samples; use another "
            "method, or local.oracle minibatch"
        )
    by_loss = isinstance(job.schedule, Schedule) and job.schedule.sampler.by_loss
    if algorithm.needs.loss or by_loss:
        asks = "the sampling goes by" if by_loss else "the method asks for"
        yield f"{why} covers no losses, and {asks} clients' losses; use another {'sampling' if by_loss else 'method'}"
    if algorithm.step.code is not None:
        yield f"{why} clips the gradients of local steps, and local.code takes its own; leave it out"
    if objective.private is not None:
        yield f"{why} is of models that are shared whole; leave private parts out, or use privacy.unit client"
    if objective.normalises is not None:
        yield (
            f"{objective.normalises}, and {why} clips the gradient of each sample alone; use norm=frozen, or "
            "torch.nn.GroupNorm in its place"
        )
    term = algorithm.step.term
    if term is not None and (term.per == "batch" or {"class_counts", "prototypes"} & {*term.needs}):
        yield f"{why} clips the gradient of each sample alone, and term {term.name} looks at others; leave it out"


def _of_term(job: Job) -> Iterator[str]:
    """Why the job's clients cannot have its term in their loss."""
    term, draws = job.algorithm.step.term, job.assignment.draws
    if term is None:
        return
    has_parts = isinstance(job.problem.objective.private, Parts)
    if has_parts and (term.looks_at("server") or term.looks_at("previous")):
        yield f"term {term.name} is of a model that all share, and parts of this one are private; leave one of them out"
        return
    if job.algorithm.step.code is not None:
        yield f"client code has a loss of its own, and term {term.name} is of ours; leave local.term or local.code out"
    if term.looks_at("previous") and job.algorithm.step.addition is not None:
        yield (
            f"term {term.name} looks at a client's last model, whose frozen weights the server has changed since by "
            f"aggregate {job.algorithm.facts.factors}; use a term that does not, or another aggregate"
        )
    if term.per == "batch":
        why = f"term {term.name} is of a batch, so f_i is no mean over samples"
        for what, advice in _askers(job):
            yield f"{why}, and {what}; {advice}"
        if draws.width(job.algorithm, MANY) == MANY:
            yield f"{why}, and local.batch_size full takes them in parts where they are many; give it a number"
