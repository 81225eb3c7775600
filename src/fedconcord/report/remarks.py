"""What a reader of the curves would remark: methods below FedAvg, and methods that fall from their peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.basis.yardstick import YARDSTICK
from fedconcord.report.load import Array, Run
from fedconcord.report.metric import Metric
from fedconcord.report.stats import tail_mean
from fedconcord.report.summary import WINDOW, Method, Summary, finals

TAIL = 20  # last evaluations, whose changes from one to the next are the noise
TIMES = 5.0  # of the noise; 1 in 200 curves of 100 normal values around a constant goes beyond, 1 in 50 of 300 values
SHARE = 0.02  # of the way from the start to the peak: less is not worth a word


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
    seen = run.round <= horizon
    round, values = run.round[seen], metric.scale(run.metrics[metric.column][seen])
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


def noise_words(fallen: Sequence[Fall]) -> str:
    """From where on a method is said to fall."""
    who = "A method falls" if len(fallen) > 1 else "It falls"
    return (
        f"{who} if its best evaluation beats its final value by more than {TIMES:g} times the noise of its last {TAIL} "
        f"evaluations and {100 * SHARE:g} % of the way from the start."
    )
