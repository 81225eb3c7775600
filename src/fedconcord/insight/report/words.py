"""The report's sentences: which method is best, where the intervals allow one, and who reaches the target.

Also what a reader of the curves would remark: methods below FedAvg, and methods that fall from their peak.
"""

from __future__ import annotations

import html
import math
from typing import NamedTuple

import numpy as np

from fedconcord.insight.report.method_tables import iterates
from fedconcord.study.statistics.format import goal_value, lead_words, listing, size, value
from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.metric import Metric
from fedconcord.study.statistics.stats import ALPHA, FEW, Comparison, tail_mean
from fedconcord.study.statistics.summary import WINDOW, Method, Summary, finals
from fedconcord.support.yardstick import YARDSTICK

esc = html.escape
TAIL = 20  # last evaluations, whose changes from one to the next are the noise
TIMES = 5.0  # of the noise; 1 in 200 curves of 100 normal values around a constant goes beyond, 1 in 50 of 300 values
SHARE = 0.02  # of the way from the start to the peak: less is not worth a word


def words(s: Summary) -> list[str]:
    """The 'In words' sentences, as HTML: a best method only where the intervals allow it."""
    v, m = s.verdict, s.primary
    final = {r.name: r.final for r in s.rows}
    what = f"final {m.title}"
    sentences: list[str] = []

    def short(name: str) -> str:
        return esc(s.method(name).short)

    side = "highest" if m.higher else "lowest"
    seeds = listing([str(x) for x in v.seeds]) if v.seeds else ""
    tests = f"Holm-corrected over {len(v.comparisons)} comparisons" if len(v.comparisons) > 1 else "one comparison"
    if v.kind == "best" and v.top is not None:
        near = min(v.comparisons, key=lambda c: c.lead.mean)
        worst = max(c.p_holm for c in v.comparisons)
        others = "every other method" if len(v.comparisons) > 1 and not v.left_out else "every other ranked method"
        sentences.append(
            f"<b>{short(v.top)} is best</b> in {what} ({value(m, final[v.top].mean)}): "
            + (
                f"ahead of {others}, and of the next, {short(near.name)}, {_lead(s, near)}"
                if len(v.comparisons) > 1
                else f"ahead of {short(near.name)} {_lead(s, near)}"
            )
            + (f". Every paired interval excludes {1 if m.log else 0}" if len(v.seeds) >= FEW else "")
            + f"; p ≤ {max(worst, 1e-4):.2g} (paired t test, {tests}, seeds {seeds})."
        )
    elif v.kind == "tied" and v.top is not None:
        tied = [c for c in v.comparisons if not c.separated]
        behind = [c.name for c in v.comparisons if c.separated]
        front = listing([f"<b>{short(n)}</b>" for n in v.front])
        sentences.append(
            f"<b>No single best:</b> the data do not separate {front} in {what} ({side} mean: {short(v.top)}, "
            f"{value(m, final[v.top].mean)}; paired by seed, {tests}, seeds {seeds})."
        )
        same = [c.name for c in tied if c.lead.low == c.lead.high == 0]
        if same:
            sentences.append(f"{short(v.top)} and {listing([short(n) for n in same])} have equal values in every seed.")
        if behind:
            sentences.append(f"{short(v.top)} is ahead of {listing([short(n) for n in behind])}.")
        alone = [c.name for c in tied if c.lead.low > 0]
        if alone and len(v.comparisons) > 1:
            sentences.append(
                f"Taken alone, a paired t test tells it from {listing([short(n) for n in alone], 'or')} "
                f"(p below {ALPHA:g}); corrected for {len(v.comparisons)} comparisons that is not enough."
            )
    elif v.kind == "one seed" and v.top is not None:
        sentences.append(
            f"One seed only: no interval can be given, so <b>no best method is named</b>. The {side} {what} of this "
            f"one draw is that of {short(v.top)} ({value(m, final[v.top].mean)}); <code>--seeds 0,1,2</code> or "
            "more would tell whether that holds."
        )
    elif v.kind == "one method" and v.top is not None:
        i = final[v.top]
        spread = ""
        if i.n > 1:
            bounds = " to ".join(value(m, end) for end in i.ends)
            spread = f" ({f'{i.n} seeds' if i.n < FEW else f'95 % t interval over {i.n} seeds'}: {bounds})"
        elif i.n == 1:
            spread = " (one seed, so no interval)"
        others = " It is the only method that can be ranked." if v.left_out else ""
        sentences.append(f"{short(v.top)} ends at {m.title} <b>{value(m, i.mean)}</b>{spread}.{others}")
    elif v.kind == "unpaired":
        sentences.append(
            "<b>No best method is named:</b> the runs are not paired by seed (see below), and a difference between "
            "them would be that of the clients as much as that of the methods."
        )
    else:
        sentences.append("<b>No best method is named:</b> no method has a complete run.")
    if v.left_out:
        sentences.append("Not ranked: " + "; ".join(f"{short(n)} ({esc(why)})" for n, why in v.left_out) + ".")
    if v.kind in ("best", "tied") and len(v.seeds) < FEW:
        degrees = f"{len(v.seeds) - 1} degree{'s' if len(v.seeds) > 2 else ''} of freedom"
        sentences.append(
            f"{len(v.seeds)} seeds leave the t test {degrees}: only large differences can be told apart, and "
            "“not separated” does not mean “equal”."
        )
    sentences += map(esc, majority_words(s))
    sentences += _objective_words(s) + _target_words(s)
    return sentences + _below_words(s) + _fall_words(s) + _answer_words(s) + _privacy_words(s) + _tree_words(s)


def majority_words(s: Summary) -> list[str]:
    """What no model need be trained for, where an accuracy is told; plain text."""
    most = s.methods[0].runs[0].head.majority if s.methods else None
    columns = {str(entry["column"]) for m in s.methods for r in m.runs for entry in r.head.ranking}
    if most is None or "test_accuracy" not in columns | {s.primary.column}:
        return []
    return [f"Always answering “{most[0]}” is right for {100 * most[1]:.1f} % of the clients' samples."]


def _objective_words(s: Summary) -> list[str]:
    """What the methods minimise, where clients have unequal numbers of samples, so that it matters."""
    sizes = next((r.counts.sum(1) for m in s.methods for r in m.runs if r.counts is not None), np.ones(1))
    kinds = {m.name: m.runs[0].head.objective for m in s.methods}
    if sizes.max() == sizes.min() or None in kinds.values():
        return []
    means = {"samples": "samples, so that clients count by what they hold", "clients": "clients, which count alike"}
    parts = []
    for kind, mean in means.items():
        names = [esc(s.method(name).short) for name, one in kinds.items() if one == kind]
        if names:
            who = "every method" if len(names) == len(kinds) > 1 else listing(names)
            parts.append(f"{who} minimise{'s' * (len(names) in (1, len(kinds)))} the mean over {mean}")
    return [f"In training, {'; '.join(parts)} (clients hold {sizes.min():,.0f} to {sizes.max():,.0f} samples)."]


def _below_words(s: Summary) -> list[str]:
    lower = below(s)
    if not lower:
        return []

    def seeds(b: Below) -> str:
        if b.worse < b.seeds:
            return f"{b.worse} of {b.seeds} seeds"
        return f"all {b.seeds} seeds" if b.seeds > 1 else "one seed"

    parts = [f"<b>{esc(s.method(b.name).short)}</b> {_lead_by(s.primary, b.lead)} in {seeds(b)}" for b in lower]
    return [f"Below {esc(s.method(lower[0].base).short)}: {listing(parts)} (mean difference, paired by seed)."]


def _fall_words(s: Summary) -> list[str]:
    fallen = falls(s)
    if not fallen:
        return []
    back = s.primary.back
    parts = [
        f"<b>{esc(s.method(f.name).short)}</b> from {value(s.primary, back(f.peak))} at round {f.round} to "
        f"{value(s.primary, back(f.final))}" + (f" ({f.seeds} of {f.of} seeds)" if f.seeds < f.of else "")
        for f in fallen
    ]
    return [
        f"Falls from its peak: {listing(parts)}. {'A method falls' if len(fallen) > 1 else 'It falls'} if its best "
        f"evaluation beats its final value by more than {TIMES:g} times the noise of its last {TAIL} evaluations and "
        f"{100 * SHARE:g} % of the way from the start."
    ]


def _answer_words(s: Summary) -> list[str]:
    parts = [
        f"{esc(s.method(name).short)} answers with its {esc(s.method(name).answer)}, which ranks it; its server's "
        f"iterate ends at {value(s.primary, row.final.mean)}"
        for name, row in iterates(s).items()
    ]
    sentences = [f"{listing(parts)}."] if parts else []
    personal = [esc(m.short) for m in s.methods if m.runs[0].head.own]
    if personal and s.primary.column.startswith("validation_"):
        sentences.append(
            f"{listing(personal)} answer{'s' * (len(personal) == 1)} with a model a client, so all are ranked on the "
            "samples that clients set apart, each client under its own model where it has one."
        )
    return sentences


def _privacy_words(s: Summary) -> list[str]:
    """What each private method spent, at most over its seeds, and that its metrics are no part of what is protected."""
    private = [(m.name, [r.head.privacy for r in m.runs if r.head.privacy is not None]) for m in s.methods]
    most = [(name, max(runs, key=lambda spent: float(spent["epsilon"]))) for name, runs in private if runs]
    sentences = [f"of a {one['unit']}: <b>{esc(s.method(name).short)}</b> {esc(one['said'])}" for name, one in most]
    if not sentences:
        return []
    figures = "The figures of this page are the simulator's view: they were measured without noise."
    return [f"Differential privacy {'; '.join(sentences)}. {figures}"]


def _tree_words(s: Summary) -> list[str]:
    """What passed between servers, beside the bytes of clients, in the first run of each method."""
    parts = []
    for m in s.methods:
        tiers = [f"{size(one['bytes_down'])} down and {size(one['bytes_up'])} up" for one in m.runs[0].head.tree]
        parts += [f"<b>{esc(s.method(m.name).short)}</b> {', then '.join(tiers)}"] if tiers else []
    return [f"Between edge servers and what is above them, from below: {'; '.join(parts)}."] if parts else []


def _lead(s: Summary, c: Comparison) -> str:
    """'by 1.20 points (paired 95 % interval 0.50 to 1.90)'; of few seeds the range, 'seed by seed', in its place."""
    low, high = (lead_words(s.primary, end) for end in c.lead.ends)
    bounds = f"{low} to {high}, seed by seed" if c.lead.n < FEW else f"paired 95 % interval {low} to {high}"
    return f"{_lead_by(s.primary, c.lead.mean)} ({bounds})"


def _lead_by(metric: Metric, lead: float) -> str:
    """'by 1.20 points'; the lead is on the averaging scale."""
    if metric.log:
        return f"by a factor of {lead_words(metric, lead)}"
    return f"by {lead_words(metric, lead)}{' points' if metric.percent else ''}"


def _target_words(s: Summary) -> list[str]:
    if not math.isfinite(s.target) or len(s.rows) < 2:
        return []
    hits = [(esc(s.method(r.name).short), sum(x.round is not None for x in r.reach), len(r.reach)) for r in s.rows]
    every = [n for n, k, of in hits if k == of]
    some = [f"{n} ({k} of {of} seeds)" for n, k, of in hits if 0 < k < of]
    never = [n for n, k, _ in hits if k == 0]
    goal = f"{goal_value(s.primary, s.target)} {s.primary.title}"
    if len(every) == len(hits):
        return [f"Every method reaches {goal} in every run; the table says at what cost."]
    parts = [f"in every run by {listing(every)}"] if every else []
    parts += [f"in some by {listing(some)}"] if some else []
    parts += [f"never by {listing(never)}"] if never else []
    return [f"{goal} is reached {'; '.join(parts)}."]


# -- remarks on the curves -------------------------------------------------------------------------------------------


class Below(NamedTuple):
    """A method that ends below FedAvg in more than half of the seeds that both have finished, and on average."""

    name: str
    base: str  # FedAvg's name
    worse: int  # seeds
    seeds: int
    lead: float  # FedAvg's, the mean over the seeds on the averaging scale


class Fall(NamedTuple):
    """A method whose final value is worse than its best evaluation by more than noise, in most of its runs."""

    name: str
    seeds: int
    of: int
    peak: float  # the mean over these seeds, on the averaging scale
    final: float
    round: int  # of the peak, the median


def below(s: Summary) -> list[Below]:
    """Methods below FedAvg, the worst first; of several FedAvgs in the comparison the best one counts."""
    if s.verdict.kind == "unpaired":
        return []
    sign = 1.0 if s.primary.higher else -1.0
    base = next((m for m in map(s.method, (r.name for r in s.rows)) if m.finished and _is_base(m)), None)
    if base is None:
        return []
    of_base = finals(base.finished, s.primary, s.horizon)
    lower = []
    for m in s.methods:
        values = finals(m.finished, s.primary, s.horizon)
        leads = [sign * (of_base[seed] - v) for seed, v in values.items() if seed in of_base]
        leads = [lead for lead in leads if math.isfinite(lead)]
        worse = sum(lead > 0 for lead in leads)
        if 2 * worse > len(leads) and math.fsum(leads) > 0 and not _is_base(m):
            lower.append(Below(m.name, base.name, worse, len(leads), math.fsum(leads) / len(leads)))
    return sorted(lower, key=lambda b: -b.lead)


def _is_base(m: Method) -> bool:
    return m.runs[0].head.method == YARDSTICK


def falls(s: Summary) -> list[Fall]:
    """Methods that fall from their peak, in the order of the table."""
    fallen_methods = []
    for m in map(s.method, (r.name for r in s.rows)):
        judged = [fall(r, s.primary, s.horizon) for r in m.finished if not r.diverged]
        fallen = [one for one in judged if one is not None]
        if fallen and 2 * len(fallen) > len(judged):
            peak, final, round = (np.array(part) for part in zip(*fallen, strict=True))
            fallen_methods.append(
                Fall(m.name, len(fallen), len(judged), float(peak.mean()), float(final.mean()), int(np.median(round)))
            )
    return fallen_methods


def fall(run: Run, metric: Metric, horizon: float) -> tuple[float, float, float] | None:
    """(peak, final value, round of the peak) on the averaging scale if the run falls, else None.

    It falls if the peak is better than the final value by more than `TIMES` the noise and `SHARE` of the way from the
    start to the peak. The noise is the standard deviation of the changes between the last `TAIL` evaluations, over
    sqrt(2): a trend, which moves them all alike, is no noise. A run of fewer evaluations is not judged.
    """
    in_time = run.round <= horizon
    round, values = run.round[in_time], metric.scale(run.metrics[metric.column][in_time])
    if round.size <= TAIL or not np.all(np.isfinite(values)):
        return None
    upward: Array = values if metric.higher else -values
    best = int(upward.argmax())
    final = tail_mean(round, values, horizon, WINDOW)
    lost = abs(float(values[best]) - final)
    noise = float(np.diff(values[-TAIL:]).std(ddof=1)) / math.sqrt(2)
    way = float(upward[best] - upward[0])
    if lost <= max(TIMES * noise, SHARE * way) or best >= round.size - WINDOW:
        return None
    return float(values[best]), final, float(round[best])
