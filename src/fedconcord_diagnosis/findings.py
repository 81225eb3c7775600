"""What the numbers say, in sentences: each stands only where its numbers pass the threshold beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fedconcord.execution.job import Job
from fedconcord.federation.participation.work import epoch_steps
from fedconcord.insight.methods.surrogate import Surrogate, schedule_of
from fedconcord.study.statistics.format import compact, listing, percent, size, span
from fedconcord_diagnosis.course import Diagnosis
from fedconcord_diagnosis.look import Look
from fedconcord_diagnosis.measures import methods_for
from fedconcord_diagnosis.vectors import rank_correlation

MISSED = 0.05  # chi^2 from which the objective is said to be another
HALF, FEW = 0.5, 0.2  # half of the drift from at most a fifth of the clients
ALIKE = 0.7  # and those after them whose part is nearly that of the one before
REMOVES = 0.25  # share of the drift that a remedy must remove to be named
APART = 1.0  # drift apart over common move
UNLIKE = 4.0  # B^2
NOISY = 1.0  # mini-batch noise over gradient
STEEP = 2.0  # eta L
TIMID = 0.02  # eta L at a first look below which steps are said to be short
WRONG = 0.7  # error of what clients remember from which it is said to be stale
STALE = 0.7  # error of what was just updated over that of the rest, below which age is said to be the reason
HELPS = 0.5  # variance of the direction that corrections leave, from which they are said to help
SCATTERED = 1.0  # deviation of a cohort's direction over its length
WAITS = 0.3  # share of the clients' time spent waiting
LABELS = 1.0  # mean distance of label shares, 0 to 2
FEATURES = 0.05  # share of the features' variance that lies between clients
AWAY = 0.1  # share of the clients that never took part


class Finding(NamedTuple):
    """One sentence or two, and how much it matters: what passes its threshold by a factor of e has 1 more."""

    topic: str  # the section of the page
    text: str
    weight: float


def findings(job: Job, diagnosis: Diagnosis) -> list[Finding]:
    """What there is to say, what matters most first."""
    if not diagnosis.looks:
        return [Finding("course", "The model was not finite before the first look; a smaller --lr may help.", 9.0)]
    every = [Finding(topic, *said) for topic, find in FINDERS for said in find(job, diagnosis, diagnosis.looks[-1])]
    return sorted(every, key=lambda one: -one.weight)


def verdict(every: list[Finding], most: int = 5) -> list[str]:
    """The three to five sentences that come first, of as many topics as there are; never none."""
    first: dict[str, Finding] = {}
    for one in every:
        first.setdefault(one.topic, one)
    foremost = sorted((one for one in first.values() if one.weight > 0), key=lambda one: -one.weight)[:most]
    foremost += [one for one in every if one not in foremost and one.weight > 0][: max(0, 3 - len(foremost))]
    return [one.text for one in foremost] or [
        "Nothing stands out: the clients' work, gradients and states are alike enough that no threshold of this page "
        "is passed; the step size and the number of rounds are what is left to tune."
    ]


def _over(value: float, threshold: float) -> float:
    return float(min(np.log(max(value, 1e-12) / threshold), 5.0))


def names_of(diagnosis: Diagnosis, ids: np.ndarray, most: int = 3) -> str:
    """Clients by name where the data have one."""
    names = diagnosis.names
    few = [names[int(i)] if names is not None else str(int(i)) for i in ids[:most]]
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ("" if names is not None else "client " if len(ids) == 1 else "clients ") + (
        f"{', '.join(few)}{more}" if more else listing(few)
    )


def work_of(job: Job, look: Look, which: np.ndarray) -> str:
    """The local work of some of a look's clients: 5 epochs, or 3 to 40 local steps."""
    schedule = schedule_of(job)
    steps = look.steps[which]
    if schedule.unit == "epochs" and job.algorithm.step.steps is None:
        sizes = job.problem.roster.samples[look.ids[which]]
        one = [job.algorithm.step.blocks or epoch_steps(int(n), schedule.batch_size) for n in sizes]
        epochs = np.rint(steps / np.array(one)).astype(int)
        return _range(epochs, "epoch")
    return _range(steps, "local step")


def _range(values: np.ndarray, what: str) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low} {what}{'' if low == 1 else 's'}" if low == high else f"{low} to {high} {what}s"


# -- one topic each: what is to be said, and its weight --------------------------------------------------------------

Said = Iterator[tuple[str, float]]


def _course(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    if diagnosis.diverged is not None:
        text = (
            f"The run diverged: after round {diagnosis.diverged} the model is no longer finite; a smaller --lr, or "
            "local.clip, is the first thing to change."
        )
        yield text, 9.0


def _away(diagnosis: Diagnosis) -> float:
    """The share of clients that took part in no round, of those that were run."""
    return float((diagnosis.history.last < 0).mean()) if diagnosis.history.rounds else 0.0


def _aim(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    aim, method = diagnosis.aim, job.algorithm.identity.method
    average_miss, method_miss = aim.miss(aim.plain), aim.miss(aim.own)
    low, high = aim.steps.min(), aim.steps.max()
    work, away = f"from {compact(float(low))} to {compact(float(high))} local steps a round", _away(diagnosis)
    if method_miss is not None and method_miss > MISSED and isinstance(aim.own, Surrogate):
        ratio = aim.own.w / aim.p
        top, least = int(ratio.argmax()), int(ratio.argmin())
        text = (
            f"{method} goes down another objective than it is asked to: the clients do {work}, so that "
            f"{names_of(diagnosis, diagnosis.ids[[top]])} counts {ratio[top]:.1f} times and "
            f"{names_of(diagnosis, diagnosis.ids[[least]])} {ratio[least]:.2f} times its weight (chi-square "
            f"{method_miss:.2f}); {methods_for()['unequal_work']} has 0 on the same work, as have equal local steps "
            "for all (--steps)."
        )
        yield text, 1 + _over(method_miss, MISSED)
    elif average_miss is not None and average_miss > MISSED and method_miss is None:
        text = (
            f"On this work ({work}) a plain average goes down another objective (chi-square {average_miss:.2f}), and "
            f"what {method} makes of it cannot be said: {aim.own}."
        )
        yield text, _over(average_miss, MISSED)
    elif average_miss is not None and average_miss > MISSED and method_miss is not None:
        text = (
            f"A plain average would go down another objective on this work ({work}, chi-square {average_miss:.2f}); "
            f"{method} keeps the true weights (chi-square {compact(method_miss, '.1e') if method_miss > 1e-9 else 0}), "
            f"of clients that take part{f'; {percent(away)} took part in no round' if away > 0 else ''}."
        )
        yield text, 0.5 * _over(average_miss, MISSED)


def _skew(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    labels, features, samples = diagnosis.skew.labels, diagnosis.skew.features, diagnosis.skew.samples
    if labels is not None and (mean := float(labels.mean())) > LABELS:
        text = (
            f"Labels are skewed: the shares of classes of a client are {mean:.2f} from everybody's (0 to 2), the sizes "
            f"go from {samples.min()} to {samples.max()} samples."
        )
        yield text, 0.3 + _over(mean, LABELS)
    if features is not None and features.share > FEATURES:
        how = "beyond what their labels explain, " if features.within == "class" else ""
        text = (
            f"Features are skewed: {how}{percent(features.share)} of their variance lies between clients; normalise by "
            "client, or personalise (eval.personalise)."
        )
        yield text, 0.3 + 0.3 * _over(features.share, FEATURES)
    away = _away(diagnosis)
    if away > AWAY:
        yield f"{percent(away)} of the clients took part in none of the {diagnosis.history.rounds} rounds.", 0.2


def _times(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    total, did = diagnosis.history.seconds.sum(0), diagnosis.history.gradients
    if not total.sum() > 0:
        if did.any():
            text = (
                f"No devices are simulated (devices); over {diagnosis.history.rounds} rounds a client evaluated "
                f"{span(did)} mini-batch gradients, and got {size(job.cost.down)} and sent {size(job.cost.up)} each "
                "time it took part."
            )
            yield text, 0.0
        return
    down, compute, up, waiting = total / total.sum()
    remark, weight = "", 0.0
    if waiting > WAITS:
        what = "a deadline (--set deadline)" if schedule_of(job).deadline is None else "a shorter deadline"
        remark = f"; {what}, or local work by seconds (local.seconds), gives it to training"
        weight = 0.5 + _over(float(waiting), WAITS)
    elif down + up > compute:
        remark, weight = "; links are what costs: more local steps, or compressed messages (--upload)", 0.4
    text = (
        f"Of the clients' simulated time {percent(compute)} is computing, {percent(down + up)} sending and "
        f"{percent(waiting)} waiting for the slowest of the round{remark}."
    )
    yield text, weight


def _drift(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    n, order = len(look.ids), np.argsort(-look.drift.share, kind="stable")
    part = look.drift.share[order]
    few, limit = int(np.searchsorted(part.cumsum(), HALF) + 1), max(1, int(FEW * n))
    while few < limit and part[few] > ALIKE * part[few - 1]:
        few += 1
    remedy, methods = look.remedies, methods_for()
    fixes: list[tuple[float, str]] = []
    if remedy is not None:
        fixes = [
            (remedy.equal_work, f"equal work ({methods['unequal_work']}, or steps given by client)"),
            (remedy.control, f"control variates ({methods['drift']})"),
        ]
    good = sorted((f for f in fixes if f[0] >= REMOVES), reverse=True)
    removes = " and ".join(f"{what} would remove {percent(share)} of it" for share, what in good)
    removes = removes or "fewer local steps lessen it"  # where neither remedy is measured to
    top, share = order[: min(few, n)], float(part[:few].sum())
    if few <= limit and n > 1:
        theirs, everyones = work_of(job, look, top), work_of(job, look, np.arange(n))
        work = "" if theirs == everyones else f", with {theirs} where all do {everyones}"
        text = (
            f"After round {look.round} {percent(share)} of the drift apart comes from {few} of {n} clients "
            f"({names_of(diagnosis, look.ids[top])}){work}; {removes}."
        )
        yield text, 1.0
    elif look.drift.ratio > APART:
        text = (
            f"After round {look.round} clients end {look.drift.ratio**0.5:.1f} times as far from their mean as it "
            f"moves; {removes}."
        )
        yield text, 0.5
    along = rank_correlation(look.drift.move, look.steps)
    if along > 0.5:
        yield f"How far a client drifts goes with its local steps (rank correlation {along:.2f}).", 0.2


def _unlike(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    B2, against = look.gradient.dissimilarity, float((look.gradient.alignment < 0).mean())
    if B2 <= UNLIKE:
        return
    some = f", and {percent(against)} of the clients point against the full gradient" if against > 0.05 else ""
    if look.remedies is None:
        helps = (
            f"{job.algorithm.identity.method}'s corrections leave {percent(look.direction)} of that in the first "
            "direction of the local steps"
        )
    else:
        helps = (
            f"methods that correct each client's direction ({methods_for()['dissimilar_gradients']}) are made for "
            "this, fewer local steps lessen it"
        )
    text = (
        f"The clients' gradients disagree: B^2 is {compact(B2)} after round {look.round} (1 if all are the same){some}"
        f"; {helps}."
    )
    yield text, 0.3 * _over(B2, UNLIKE) + 0.3


def _noise(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    if look.noise_ratio is not None and look.noise_ratio > NOISY:
        text = (
            f"Mini-batch noise is {look.noise_ratio:.1f} times a client's gradient after round {look.round}, so that "
            "the batch leads local steps more than the loss does; a larger --batch-size or local.lr_decay helps from "
            "here on, corrections of drift do not."
        )
        yield text, 0.5 * _over(look.noise_ratio, NOISY)


def _steps(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    if job.assignment.rule is not None:
        return  # nobody gave it
    steep = max(diagnosis.looks, key=lambda one: one.lr * one.smoothness)
    most = steep.lr * steep.smoothness
    if most > STEEP:
        text = (
            f"The local step size {compact(steep.lr)} overshoots where the losses are steepest: eta L is at least "
            f"{compact(most)} after round {steep.round} (steps on a quadratic are stable below 2); if the curve jumps, "
            f"tune --lr down to {compact(2 / steep.smoothness)}."
        )
        yield text, 0.3 * _over(most, STEEP)
    elif 0 < most < TIMID:
        text = f"The local step size {compact(steep.lr)} is short: eta L is about {compact(most)}; try a larger --lr."
        yield text, 0.3


def _memory(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    remembered, staleness = look.remembered, look.memory
    if staleness is None or remembered is None or look.round == 0:
        return
    off = f"What clients remember ({remembered.name}) is {percent(staleness.relative)} off their gradients"
    if staleness.relative > WRONG:
        age = diagnosis.history.age()[look.ids]
        never = float((diagnosis.history.last[look.ids] < 0).mean())
        penalty = ", or a larger penalty or dual step," if remembered.is_dual else ""
        truer = f"fewer or smaller local steps{penalty} make it truer"
        if look.round != diagnosis.history.rounds or not (age == 0).any() or not (age > 0).any():
            ages = f" ({percent(never)} of the clients were never updated)" if never > 0 else ""
            way = truer
        else:
            fresh, old = (
                float((p @ staleness.error[k] ** 2 / max(p @ look.gradient.norms[k] ** 2, 1e-300)) ** 0.5)
                for k, p in ((k, look.p[k]) for k in (age == 0, age > 0))
            )
            ages = (
                f": {percent(fresh)} where the client took part in the last round and {percent(old)} where it did not, "
                f"for {compact(float(np.median(age[age > 0])))} rounds in the median"
                f"{f', {percent(never)} of all never' if never > 0 else ''}"
            )
            virtual = f", or virtual updates ({methods_for()['stale_memory']}),"
            stale = f"a larger --cohort{'' if remembered.moves_when_absent else virtual} keeps it fresh"
            way = stale if fresh < STALE * old else f"it is wrong from the start: {truer}"
        yield f"{off} after round {look.round}{ages}; {way}.", 0.5 + _over(staleness.relative, WRONG)
    elif look.direction < HELPS:
        text = f"{off}, which leaves {percent(look.direction)} of the variance between clients in the search direction."
        yield text, 0.3


def _cohort(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    size, n = min(job.schedule.cohort, job.problem.roster.n), job.problem.roster.n
    if look.cohort > SCATTERED:
        text = (
            f"Who is drawn decides where a round goes: the direction of a cohort of {size} of {n} is off by "
            f"{look.cohort:.1f} times its length after round {look.round}; a larger --cohort, corrections, or momentum "
            "at the server (--server) average it out."
        )
        yield text, 0.5 * _over(look.cohort, SCATTERED)


def _conditions(job: Job, diagnosis: Diagnosis, look: Look) -> Said:
    if look.theory is None:
        return
    broken = [one for one in look.theory.conditions if one.holds < one.of]
    if broken:
        sides = "; ".join(f"{c.formula} has {c.left:.3g} on the left, {c.right:.3g} on the right" for c in broken)
        text = (
            f"The sufficient conditions of {job.algorithm.identity.method}'s theory do not hold for all clients: "
            f"{sides} where it is worst. {look.theory.caveat}"
        )
        yield text, 0.1
    yield look.theory.advice, 0.05


FINDERS: tuple[tuple[str, Callable[[Job, Diagnosis, Look], Said]], ...] = (
    *(("course", _course), ("aim", _aim), ("skew", _skew), ("time", _times), ("drift", _drift)),
    *(("gradients", _unlike), ("gradients", _noise), ("steps", _steps), ("memory", _memory), ("cohort", _cohort)),
    ("memory", _conditions),
)
"""Topic and what may be said of it; of equal weight, in this order."""
