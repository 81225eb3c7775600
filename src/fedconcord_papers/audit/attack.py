"""The attack on an estimate of a client's gradient (see the package)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.federation.objectives import Supervised, kernels
from fedconcord.federation.objectives.judging import supervised
from fedconcord.method.contract import Protection, rng
from fedconcord.support.errors import UserError
from fedconcord_papers.audit.message import Seen, capture, readings, touched

MOST_SAMPLES = 1024  # that one attack rebuilds; the matching costs their cube
MATCHED_ALWAYS, MATCHED_EVERY = 128, 10  # with more samples the permutation is found anew every so many iterations
RANDOM_GUESSES = 5  # averaged in the baseline
HALVINGS = 10  # of a searched step in one iteration


class Attack(NamedTuple):
    """How dummy samples are fitted."""

    iterations: int = 100
    optimiser: Literal["gd", "lbfgs"] = "gd"
    lr: float | None = None  # step of gd on ||grad f(D^) - g^||^2, f a mean loss; None: searched at every iteration
    labels: Literal["known", "inferred"] = "known"  # inferred: their counts from the gradient of the last bias


class Curve(NamedTuple):
    """The attack on one reading of a message, by iteration from 0; it ends early where it diverged."""

    reading: str
    error: float  # ||g^ - grad f_i(x)|| / ||grad f_i(x)||: how far the estimate is from the gradient that it stands for
    objective: list[float]  # ||grad f(x; D^) - g^||^2
    distance: list[float]  # ||D^ - D||_F as the samples lie
    matched: list[float]  # the same under the best permutation of the samples


class Audit(NamedTuple):
    """What one client's message gave away."""

    name: str
    client: int
    round: int  # from 1
    samples: int  # that the message was computed from
    steps: int  # local steps
    bytes: int  # sent
    random: float  # matched distance of fresh N(0, 1) samples: what no attack at all reaches
    blank: float  # distance of the mean test sample, repeated: what no message at all reaches
    curves: list[Curve]
    protection: Protection | None = None  # what was done to the message, which is read as if it were plain


def infer_labels(problem: Supervised, x: Tensor, gradient: Tensor, inputs: Tensor) -> Tensor:
    """Labels [n], sorted, whose counts the gradient of the last layer's bias gives away.

    That gradient is mean softmax - share of each class (iDLG, Zhao et al. 2020, for n = 1; Wainakh et al. 2022). The
    mean softmax is taken at the dummy inputs [n, *shape].

    Raises:
        UserError: the loss is not cross-entropy, or the model's last parameter is not a bias of one entry a class.
    """
    if problem.loss_of.delta is not kernels.cross_entropy:
        raise UserError(
            f"labels are inferred from gradients of cross-entropy, and this job's loss is {problem.loss_of.name}; "
            "audit it with known labels"
        )
    last = problem.layout.views(gradient).get([*dict(problem.model.named_parameters())][-1])
    if last is None or last.shape != (problem.classes,):
        raise UserError(
            f"labels are inferred from the last layer's bias, and this model's last parameter is not one of "
            f"{problem.classes} entries that is trained; audit it with known labels"
        )
    with torch.no_grad():
        share = problem.logits(x, inputs).double().softmax(1).mean(0) - last.double()
    shares = share.clamp(min=0) / share.clamp(min=0).sum() * len(inputs)
    counts = shares.floor().long()
    remaining = len(inputs) - int(counts.sum())
    counts[(shares - counts).argsort(descending=True)[:remaining]] += 1
    return torch.arange(problem.classes, device=x.device).repeat_interleave(counts)


def reconstruct(
    problem: Supervised, x: Tensor, gradient: Tensor, labels: Tensor, dummy: Tensor, attack: Attack
) -> Iterator[tuple[float, Tensor]]:
    """Fit dummy samples to a mean gradient of the problem's loss, in float64; yields (objective, samples [n, *shape])
    at the start and after every iteration.

    Args:
        x: [d] the model that the gradient belongs to.
        gradient: [d].
        labels: [n] classes, or [n, outputs] numbers or labels.
        dummy: [n, *shape] where to start.
    """
    at, target = x.detach().double().requires_grad_(), gradient.double()
    targets = labels.double() if labels.is_floating_point() else labels
    inputs = dummy.double().clone().requires_grad_()

    def objective() -> Tensor:
        loss = problem.loss_of.per_sample(problem.logits(at, inputs), targets).mean()
        return (torch.autograd.grad(loss, at, create_graph=True)[0] - target).square().sum()

    def slope() -> tuple[float, Tensor]:
        try:
            value = objective()
            return float(value.detach()), torch.autograd.grad(value, inputs)[0]
        except RuntimeError as error:  # of somebody else's model or loss
            why = " ".join(str(error).split())[:160]
            raise UserError(f"the attack needs second derivatives, which this model or loss lacks ({why})") from error

    value, direction = slope()
    yield value, inputs.detach().clone()
    step, recent = attack.lr or 1.0, [value]
    # ReLU models make the objective jump, where monotone searches stop: L-BFGS has none, as in DLG's own code, and
    # gradient descent with a searched step must get below the largest of its last five values only
    lbfgs = torch.optim.LBFGS([inputs], max_iter=1, history_size=20)

    def closure() -> float:
        _, inputs.grad = found = slope()
        return found[0]

    for _ in range(attack.iterations):
        if attack.optimiser == "lbfgs":
            cast(Any, lbfgs).step(closure)
            value = float(objective().detach())
        elif attack.lr is not None:
            inputs.data -= step * direction
            value, direction = slope()
        else:
            origin, fall, step = inputs.detach().clone(), float(direction.square().sum()), 4 * step
            for _ in range(HALVINGS):
                step /= 2
                inputs.data = origin - step * direction
                if float(objective().detach()) <= max(recent) - 0.1 * step * fall:
                    break
            value, direction = slope()
            recent = [*recent[-4:], value]
        yield value, inputs.detach().clone()


def permutation(guess: Tensor, truth: Tensor) -> Tensor:
    """The order [n] of guessed samples [n, *shape] that comes closest to the true ones (Hungarian method)."""
    cost = torch.cdist(truth.flatten(1).double(), guess.flatten(1).double()).square()
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=guess.device)


def dummies(job: Job, captured: Seen, shape: Sequence[int], draw: int = 0) -> Tensor:
    """N(0, 1) samples, keyed by seed, round and client; a stream of its own, as no client has the ids from N on."""
    id = job.problem.roster.n * (1 + draw) + int(captured.client.id)
    noise = rng.generator(captured.plan.seed, rng.Purpose.NOISE, captured.plan.round, id).standard_normal(tuple(shape))
    return torch.as_tensor(noise, dtype=job.problem.objective.dtype, device=job.problem.objective.device)


def attacked(job: Job, captured: Seen, estimates: Mapping[str, Tensor], attack: Attack, name: str = "") -> Audit:
    """The attack on each of these estimates [d] of the mean gradient of one client's message."""
    problem = _supervised(job)
    samples = touched(job, captured)
    if len(samples) > MOST_SAMPLES:
        raise UserError(
            f"client {int(captured.client.id)}'s message mixes {len(samples)} samples, and an audit rebuilds at most "
            f"{MOST_SAMPLES}; audit a smaller client, or fewer local steps"
        )
    truth, labels = problem.x[samples], problem.y[samples]
    true_gradient = problem.gradient(captured.x, samples).double()
    begin = dummies(job, captured, truth.shape)
    curves = []
    for reading, estimate in estimates.items():
        error = float((estimate - true_gradient).norm() / true_gradient.norm())
        curve = Curve(reading, error, [], [], [])
        if attack.labels == "inferred":
            labels = infer_labels(problem, captured.x, estimate, begin)
        every = 1 if len(samples) <= MATCHED_ALWAYS else MATCHED_EVERY
        for k, (value, guess) in enumerate(reconstruct(problem, captured.x, estimate, labels, begin, attack)):
            if not (math.isfinite(value) and bool(guess.isfinite().all())):
                break
            if k % every == 0 or k == attack.iterations:
                order = permutation(guess, truth)
            curve.objective.append(value)
            curve.distance.append(float((guess - truth).norm()))
            curve.matched.append(float((guess[order] - truth).norm()))
        curves.append(curve)
    guesses = [dummies(job, captured, truth.shape, k) for k in range(1, 1 + RANDOM_GUESSES)]
    return Audit(
        name=name,
        client=int(captured.client.id),
        round=captured.plan.round + 1,
        samples=len(samples),
        steps=int(captured.done.steps),
        bytes=captured.bytes,
        random=sum(float((guess[permutation(guess, truth)] - truth).norm()) for guess in guesses) / len(guesses),
        blank=float((problem.test_x[:].mean(0) - truth).norm()),
        curves=curves,
        protection=job.algorithm.facts.protection,
    )


def _supervised(job: Job) -> Supervised:
    """The model and the samples behind a job, a regulariser left aside."""
    problem = supervised(job.problem)
    if problem is None:
        raise UserError(
            "an audit rebuilds the samples of a supervised model, and this job's problem is "
            f"{type(job.problem).__name__}; audit a job of classes, numbers or labels"
        )
    if problem.replaced.drops is not None or problem.replaced.normalises:
        raise UserError(
            f"an audit rebuilds samples from gradients of one function, and layer "
            f"{problem.replaced.drops or problem.replaced.normalises[0]!r} does otherwise in training; audit a job "
            "without dropout and with norm=frozen or GroupNorm"
        )
    if not problem.x.dtype.is_floating_point:
        raise UserError(
            "an audit moves the numbers of dummy samples, and this job's samples are symbols; audit a job whose "
            "samples are numbers"
        )
    return problem


def audit(
    job: Job,
    *,
    client: int | None = None,
    round: int = 5,
    attack: Attack | None = None,
    name: str = "",
    plain: Job | None = None,
) -> Audit:
    """What a job gives away: one client's message in one round, and the attack on each of its readings.

    Args:
        client: which, from 0; None is the first of the round's cohort.
        round: which, from 1.
        plain: of a job with differential privacy the same job without, by which its message is read.

    Raises:
        UserError: no such client, round or setting, a message that cannot be read, or a problem without samples.
    """
    attack = Attack() if attack is None else attack
    _check(attack)
    _supervised(job)
    protection = job.algorithm.facts.protection
    if protection is not None and protection.clip is None:
        raise UserError(
            "the audit reads messages as if they were plain, and those of adaptive clipping are in units of its C; "
            "give privacy.clip a number, such as a C of the run's metrics.csv"
        )
    if job.algorithm.step.noise is not None:
        raise UserError("the audit has no reading of steps that have noise of their own (privacy.unit sample, person)")
    numbers = capture(job, round, client)
    return attacked(job, numbers, readings(job if plain is None else plain, numbers), attack, name)


def _check(attack: Attack) -> None:
    for name, value, known in (
        ("optimiser", attack.optimiser, ("gd", "lbfgs")),
        ("labels", attack.labels, ("known", "inferred")),
    ):
        if value not in known:
            raise UserError(f"the attack's {name} must be {' or '.join(known)}, given {value!r}")
    if attack.iterations < 1:
        raise UserError(f"the attack's iterations must be an integer >= 1, given {attack.iterations}")
    if attack.lr is not None and not (math.isfinite(attack.lr) and attack.lr > 0):
        raise UserError(f"the attack's lr must be a number > 0, given {attack.lr:g}")
    if attack.lr is not None and attack.optimiser == "lbfgs":
        raise UserError("the attack's lr is for gd, and lbfgs searches its own step; leave one of them out")
