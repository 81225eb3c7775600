"""What a federation leaks: what one client sends in one round, read by the server, and the attack of LoSAC section 5.4.

A self-audit. A job is run to a round, one client's message is taken as it is sent, and an honest-but-curious server,
which follows the protocol and knows it, forms an estimate of the client's mean gradient from it. Two readings:

move        -(x_i+ - x) / (eta K), LoSAC section 5.4: the mean local direction, duals and control variates included;
            of a method with a prelude (Mime) the gradient that it sends.
protocol    the constant gradient that best explains the message. The server plays the client's round itself: with a
            constant gradient g every vector of the message is a + b g with a number b, so g = sum b (v - a) / sum b^2
            over its vectors v. That subtracts whatever is known (c and c_i, duals, tables, momentum, pulls) for any
            method without a rule for each.

The rows c_i, lambda_i, y_ij are known to a server that has followed a client since round 0: they start at zero and
change by what is sent. Where they do not (compressed messages, several blocks drawn in private) the reading is given
more than the server has, so it errs on the side of the attacker.

The attack (Deep Leakage from Gradients, Zhu et al., NeurIPS 2019; LoSAC Definition 1) then looks for dummy samples D^
with gradient g^: min ||grad f(x; D^) - g^||^2 by gradient descent or L-BFGS from D^ ~ N(0, 1).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional as F

from fedconcord import files, rng
from fedconcord.core import (
    Client,
    Cohort,
    Done,
    Plan,
    Problem,
    Tree,
    cohort_of,
    n_clients,
    tree_bytes,
    tree_leaves,
    tree_map,
)
from fedconcord.engines import Serial
from fedconcord.engines.base import everything, oracle_of, with_oracle
from fedconcord.engines.serial import solve
from fedconcord.errors import UserError
from fedconcord.problems import Supervised
from fedconcord.training import Job, advance, plan_of, start

MOST_SAMPLES = 1024  # that one attack rebuilds; the matching costs their cube
MATCHED_ALWAYS, MATCHED_EVERY = 128, 10  # with more samples the permutation is found anew every so many iterations
RANDOM_GUESSES = 5  # averaged in the baseline
HALVINGS = 10  # of a searched step in one iteration
PROBE = 1e9  # size of the gradient that a play is probed with, so that compressors keep it
LIMITS = """\
## What this audit cannot show

* A failed attack is no guarantee. This is one attack with one optimiser, one start and no knowledge of what real
  samples look like; attacks with priors on images, with many restarts, or with several rounds' messages rebuild more.
* A small distance means that samples were rebuilt; a large one does not mean that nothing was learnt. Labels,
  membership, and properties of a client's data leak from far less than a rebuilt sample.
* It is one client in one round of one seed. Smaller batches, earlier rounds and clients with few samples leak more.
* The server is honest but curious: it follows the protocol. One that sends a model made for the purpose reads more.
* Messages before round 0 (LoSAC with init=gradient) and evaluation results are not audited.
* What protects is outside the optimiser: secure aggregation (the server sees sums only) and differential privacy (a
  bound on what any message can tell). Neither is replaced by a method whose attack curve happens to rise.
"""


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


# -- the message ---------------------------------------------------------------------------------------------------


def capture(job: Job, round: int, client: int | None = None) -> Seen:
    """Run a job to the given round, from 1, and keep what the client sends in it; None: the first of the cohort.

    Raises:
        UserError: there is no such client or round, or it sends nothing then.
    """
    problem, algorithm, n = job.problem, job.algorithm, n_clients(job.problem)
    if round < 1:
        raise UserError(f"the audited round counts from 1, given {round}")
    if client is not None and not 0 <= client < n:
        raise UserError(f"the audited client must be 0 to {n - 1}, given {client}")
    plan = plan_of(job, round - 1, problem.init(job.schedule.seed))
    if client is None:
        client = int(plan.ids[0])
    if client not in plan.ids:
        some = ", ".join(str(i) for i in plan.ids[:10]) + (", ..." if len(plan.ids) > 10 else "")
        raise UserError(f"client {client} does not take part in round {round}; audit one of {some}, or another round")
    cohort = cohort_of(problem, plan)
    if algorithm.communicates is not None and not algorithm.communicates(cohort):
        raise UserError(f"the method sends no message in round {round}; audit another round")
    state = start(job)
    for _ in range(round - 1):
        state = advance(job, state)
    kept: list[tuple[Tree, Tree, Done, Client, Tree]] = []

    def finish(down: Tree, row: Tree, done: Done, of: Client) -> tuple[Tree, Tree]:
        up, new = algorithm.finish(down, row, done, of)
        if int(of.id) == client:
            kept.append((down, row, done, of, up))
        return up, new

    after = advance(replace(job, algorithm=replace(algorithm, finish=finish), engine=Serial()), state)
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
        cohort_bytes=after.bytes_up - state.bytes_up,
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
    solver = job.solver._replace(clip=None, clip_direction=None, tolerance=None)
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
        UserError: the message is not affine in the gradients (Newton steps, L-BFGS, a dual of SAM's ascent).
    """
    if seen.done.tilt is not None:
        raise UserError(
            "the audit reads messages that are affine in the gradients, and this method's hold the dual of SAM's "
            "ascent; audit fedspeed in place of fedsmoo"
        )
    if job.algorithm.hessian_at is not None or job.solver.kind == "lbfgs":
        raise UserError(
            "the audit reads messages of gradient steps, and this job's clients take Newton or L-BFGS steps; audit it "
            "with plain local SGD"
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


# -- the attack ----------------------------------------------------------------------------------------------------


def infer_labels(problem: Supervised, x: Tensor, gradient: Tensor, inputs: Tensor) -> Tensor:
    """Labels [n], sorted, whose counts the gradient of the last layer's bias gives away.

    That gradient is mean softmax - share of each class (iDLG, Zhao et al. 2020, for n = 1; Wainakh et al. 2022). The
    mean softmax is taken at the dummy inputs [n, *shape].

    Raises:
        UserError: the model's last parameter is not a bias of one entry a class.
    """
    last = list(problem.layout.views(gradient).values())[-1]
    if last.shape != (problem.classes,):
        raise UserError(
            f"labels are inferred from the last layer's bias, and this model's last parameter is not one of "
            f"{problem.classes} entries; audit it with known labels"
        )
    with torch.no_grad():
        share = problem.logits(x, inputs).double().softmax(1).mean(0) - last.double()
    wanted = share.clamp(min=0) / share.clamp(min=0).sum() * len(inputs)
    counts = wanted.floor().long()
    left = len(inputs) - int(counts.sum())
    counts[(wanted - counts).argsort(descending=True)[:left]] += 1
    return torch.arange(problem.classes, device=x.device).repeat_interleave(counts)


def reconstruct(
    problem: Supervised, x: Tensor, gradient: Tensor, labels: Tensor, dummy: Tensor, attack: Attack
) -> Iterator[tuple[float, Tensor]]:
    """Fit dummy samples to a mean gradient, in float64; yields (objective, samples [n, *shape]) at the start and after
    every iteration.

    Args:
        x: [d] the model that the gradient belongs to.
        gradient: [d].
        labels: [n].
        dummy: [n, *shape] where to start.
    """
    at, target = x.detach().double().requires_grad_(), gradient.double()
    inputs = dummy.double().clone().requires_grad_()

    def objective() -> Tensor:
        loss = F.cross_entropy(problem.logits(at, inputs), labels)
        return (torch.autograd.grad(loss, at, create_graph=True)[0] - target).square().sum()

    def slope() -> tuple[float, Tensor]:
        value = objective()
        return float(value.detach()), torch.autograd.grad(value, inputs)[0]

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


def dummies(job: Job, seen: Seen, shape: Sequence[int], draw: int = 0) -> Tensor:
    """N(0, 1) samples, keyed by seed, round and client; a stream of its own, as no client has the ids from N on."""
    id = n_clients(job.problem) * (1 + draw) + int(seen.client.id)
    made = rng.generator(seen.plan.seed, rng.Purpose.NOISE, seen.plan.round, id).standard_normal(tuple(shape))
    return torch.as_tensor(made, dtype=job.problem.dtype, device=job.problem.device)


def attacked(job: Job, seen: Seen, estimates: Mapping[str, Tensor], attack: Attack, name: str = "") -> Audit:
    """The attack on each of these estimates [d] of the mean gradient of one client's message."""
    problem = _supervised(job)
    samples = touched(job, seen)
    if len(samples) > MOST_SAMPLES:
        raise UserError(
            f"client {int(seen.client.id)}'s message mixes {len(samples)} samples, and an audit rebuilds at most "
            f"{MOST_SAMPLES}; audit a smaller client, or fewer local steps"
        )
    truth, labels = problem.x[samples], problem.y[samples]
    true_gradient = problem.gradient(seen.x, samples).double()
    begin = dummies(job, seen, truth.shape)
    curves = []
    for reading, estimate in estimates.items():
        error = float((estimate - true_gradient).norm() / true_gradient.norm())
        curve = Curve(reading, error, [], [], [])
        if attack.labels == "inferred":
            labels = infer_labels(problem, seen.x, estimate, begin)
        every = 1 if len(samples) <= MATCHED_ALWAYS else MATCHED_EVERY
        for k, (value, guess) in enumerate(reconstruct(problem, seen.x, estimate, labels, begin, attack)):
            if not (math.isfinite(value) and bool(guess.isfinite().all())):
                break
            if k % every == 0 or k == attack.iterations:
                order = permutation(guess, truth)
            curve.objective.append(value)
            curve.distance.append(float((guess - truth).norm()))
            curve.matched.append(float((guess[order] - truth).norm()))
        curves.append(curve)
    guesses = [dummies(job, seen, truth.shape, k) for k in range(1, 1 + RANDOM_GUESSES)]
    return Audit(
        name=name,
        client=int(seen.client.id),
        round=seen.plan.round + 1,
        samples=len(samples),
        steps=int(seen.done.steps),
        bytes=seen.bytes,
        random=sum(float((guess[permutation(guess, truth)] - truth).norm()) for guess in guesses) / len(guesses),
        blank=float((problem.test_x.mean(0) - truth).norm()),
        curves=curves,
    )


def _supervised(job: Job) -> Supervised:
    if not isinstance(job.problem, Supervised):
        raise UserError("an audit rebuilds samples of a supervised model, and this problem has none; audit another one")
    return job.problem


def audit(
    job: Job, *, client: int | None = None, round: int = 5, attack: Attack | None = None, name: str = ""
) -> Audit:
    """What a job gives away: one client's message in one round, and the attack on each of its readings.

    Args:
        client: which, from 0; None is the first of the round's cohort.
        round: which, from 1.

    Raises:
        UserError: no such client, round or setting, a message that cannot be read, or a problem without samples.
    """
    attack = Attack() if attack is None else attack
    _check(attack)
    _supervised(job)
    seen = capture(job, round, client)
    return attacked(job, seen, readings(job, seen), attack, name)


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


# -- results -------------------------------------------------------------------------------------------------------


def verdict(audit: Audit, curve: Curve) -> str:
    """One cautious clause about a curve."""
    start, end = curve.matched[0], curve.matched[-1]
    if end < 0.1 * audit.blank:
        return "the samples are rebuilt"
    if end < audit.blank:
        return "the samples are partly rebuilt: closer than a guess without any message"
    moved = f"{'falls' if end < start else 'rises'} by {100 * abs(end - start) / start:.2g} %"
    return f"the distance {moved} and stays above that of a blank guess: this attack rebuilds no sample"


def summary(audits: Sequence[Audit], attack: Attack) -> str:
    """The text of an audit: what was measured, and what it cannot show."""
    head = ["method", "reading", "gradient error", "distance, start", "end", "matched, start", "end", "random", "blank"]
    lines = ["# Audit of what a client's message gives away", ""]
    step = "a searched step" if attack.lr is None else f"step {attack.lr:g}"
    how = "L-BFGS" if attack.optimiser == "lbfgs" else f"gradient descent with {step}"
    lines += [f"The attack: gradient matching by {how}, {attack.iterations} iterations, labels {attack.labels}.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for audit in audits:
        for c in audit.curves:
            cells = [audit.name, c.reading, f"{100 * c.error:.2g} %"]
            ends = (c.distance[0], c.distance[-1], c.matched[0], c.matched[-1], audit.random, audit.blank)
            lines.append(f"| {' | '.join([*cells, *(f'{v:.5g}' for v in ends)])} |")
    lines.append("")
    for audit in audits:
        work = " on ".join(_count(n, what) for n, what in ((audit.steps, "local step"), (audit.samples, "sample")))
        said = "; ".join(f"{c.reading}: {verdict(audit, c)}" for c in audit.curves)
        lines.append(
            f"* {audit.name}, client {audit.client}, round {audit.round}: {audit.bytes:,} bytes after {work}. "
            f"{said[0].upper()}{said[1:]}."
        )
        short = [c.reading for c in audit.curves if len(c.objective) <= attack.iterations]
        if short:
            lines.append(f"  The attack diverged early ({', '.join(short)}); a smaller step may do better.")
    lines += [
        "",
        "Distance: ||D^ - D||_F between dummy and real samples, as they lie and matched. Gradient error: how far the",
        "server's estimate is from the client's true gradient, relative; 0 % means that the message gives it away,",
        "whatever the attack then makes of it. Random: fresh N(0, 1) samples, matched. Blank: the mean test sample,",
        "repeated; an attack that ends above it has rebuilt nothing that a guess would not. Readings: move is the mean",
        "local direction; protocol also subtracts what the server knows of the client's duals and control variates.",
        "",
    ]
    return "\n".join(lines) + "\n" + LIMITS


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def figure(audits: Sequence[Audit], *, column: Literal["distance", "matched"] = "matched") -> Figure:
    """Distance by iteration relative to its start, a line for each method and reading."""
    made = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = made.add_subplot()
    for k, audit in enumerate(audits):
        for c in audit.curves:
            values = np.array(getattr(c, column))
            label = audit.name if len(audit.curves) == 1 else f"{audit.name}, {c.reading}"
            dash = "--" if c.reading == "protocol" else "-"
            axes.plot(values / values[0], dash, color=f"C{k % 10}", label=label, linewidth=1.6)
    levels = {round(a.blank / getattr(a.curves[0], column)[0], 6) for a in audits if a.curves}
    for level in levels:
        axes.axhline(level, color="#5b6570", linewidth=0.9, linestyle=":")
    if levels:
        axes.plot([], [], ":", color="#5b6570", linewidth=0.9, label="blank guess (mean test sample)")
    axes.set_xlabel("iteration of the attack")
    axes.set_ylabel(f"||D^ - D||_F, {'matched, ' if column == 'matched' else ''}relative to the start")
    axes.grid(color="#d9dee3", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    made.legend(loc="outside right upper", frameon=False, fontsize=8)
    return made


def save_figure(made: Figure, stem: Path) -> None:
    """The figure as PNG and SVG."""
    FigureCanvasAgg(made)
    for suffix, options in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
        out = io.BytesIO()
        made.savefig(out, format=suffix[1:], **options)
        files.write_bytes(stem.with_suffix(suffix), out.getvalue())


def write(audits: Sequence[Audit], attack: Attack, out: Path) -> Path:
    """Write audit.csv, audit.png, audit.svg and audit.md to a folder; returns the path of the text."""
    out.mkdir(parents=True, exist_ok=True)
    header = ["method", "client", "round", "reading", "gradient_error", "iteration", "objective", "distance", "matched"]
    rows = [
        [a.name, a.client, a.round, c.reading, c.error, k, *point]
        for a in audits
        for c in a.curves
        for k, point in enumerate(zip(c.objective, c.distance, c.matched, strict=True))
    ]
    files.write_csv(out / "audit.csv", header, rows)
    save_figure(figure(audits), out / "audit")
    files.write_text(out / "audit.md", summary(audits, attack))
    return out / "audit.md"


def audit_jobs(
    jobs: Mapping[str, Job],
    out: Path,
    *,
    client: int | None = None,
    round: int = 5,
    attack: Attack | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Audit]:
    """Audit jobs by name, one client and round for all, and write table, figure and text to a folder.

    Raises:
        UserError: as `audit`.
    """
    attack = Attack() if attack is None else attack
    audits = []
    for name, job in jobs.items():
        found = audit(job, client=client, round=round, attack=attack, name=name)
        audits.append(found)
        for c in found.curves:
            say(f"{name}, {c.reading}: gradient error {100 * c.error:.2g} %, {verdict(found, c)}")
    write(audits, attack, out)
    return audits
