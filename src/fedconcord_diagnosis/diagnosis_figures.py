"""The figures of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.methods.surrogate import Surrogate
from fedconcord.insight.report.figures.style import COLOURS, MARKERS, MUTED, Drawing, drawing, log_scale, percent_ticks
from fedconcord.study.statistics.format import percent, span
from fedconcord_diagnosis.course import Diagnosis

BLUE, RED, GREEN, PINK, AMBER = COLOURS[:5]
SHARES = ("getting the model", "computing", "sending", "waiting")


def drawings(diagnosis: Diagnosis) -> dict[str, list[Drawing]]:
    """Section -> its figures."""
    return {
        "aim": _weights(diagnosis),
        "gradients": [_rounds(diagnosis), _agreement(diagnosis)],
        "drift": [_shares(diagnosis), _work(diagnosis)],
        "memory": _memory(diagnosis),
        "skew": _skew(diagnosis),
        "time": _times(diagnosis),
    }


class Words(NamedTuple):
    """What stands beside a figure, and its axes' titles."""

    name: str
    alt: str
    caption: str
    x: str
    y: str


def _drawing(words: Words, plot: Callable[[Axes], None], integers: bool = True) -> Drawing:
    """A figure of one panel; `integers` are the ticks of x."""

    def titled(ax: Axes) -> None:
        plot(ax)
        ax.set_xlabel(words.x)
        ax.set_ylabel(words.y)
        if integers:
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    return drawing(*words[:3], titled)


class Points(NamedTuple):
    """Clients at x [n] and y [n]."""

    x: np.ndarray
    y: np.ndarray
    colour: str = BLUE
    marker: str = "o"
    label: str | None = None


def _scatter(
    words: Words, *points: Points, level: float | None = None, bounds: tuple[float, float | None], integers: bool = True
) -> Drawing:
    """A point a client between `bounds` of y, with a line at `level`."""

    def plot(ax: Axes) -> None:
        if level is not None:
            ax.axhline(level, color=MUTED, linewidth=0.8)
        for one in points:
            ax.scatter(
                one.x, one.y, s=14, color=one.colour, marker=one.marker, linewidths=0, alpha=0.8, label=one.label
            )
        ax.set_ylim(*bounds)

    return _drawing(words, plot, integers)


def _rounds(diagnosis: Diagnosis) -> Drawing:
    lines = {
        "B²: gradients disagree": [look.gradient.dissimilarity for look in diagnosis.looks],
        "drift apart / move": [look.drift.ratio for look in diagnosis.looks],
        "direction's variance / gradients'": [look.direction for look in diagnosis.looks],
        "cohort's deviation": [look.cohort for look in diagnosis.looks],
    }
    at = [look.round for look in diagnosis.looks]

    def plot(ax: Axes) -> None:
        for k, (name, values) in enumerate(lines.items()):
            positive = [v if v > 0 else np.nan for v in values]
            if np.isnan(positive).all():  # 0 throughout, as the deviation of a cohort of all clients
                continue
            ax.plot(at, positive, color=COLOURS[k], marker=MARKERS[k], markersize=4, linewidth=1.5, label=name)
        log_scale(ax, "y")

    ends = "; ".join(f"{name} {values[0]:.3g} to {values[-1]:.3g}" for name, values in lines.items())
    caption = "At the rounds that were looked at; all without unit."
    return _drawing(Words("rounds", f"Measures by round: {ends}.", caption, "round", ""), plot)


def _agreement(diagnosis: Diagnosis) -> Drawing:
    look = diagnosis.looks[-1]
    cosine = look.gradient.alignment
    words = Words(
        "agreement",
        f"Each client's gradient after round {look.round}: its length and its cosine with the full gradient, from "
        f"{cosine.min():.2f} to {cosine.max():.2f}.",
        f"Each point a client, after round {look.round}. Below 0: a step for this client is a step back for all.",
        "length of the client's gradient",
        "cosine with the full gradient",
    )
    return _scatter(words, Points(look.gradient.norms, cosine), level=0, bounds=(-1.05, 1.05), integers=False)


def _shares(diagnosis: Diagnosis) -> Drawing:
    look = diagnosis.looks[-1]
    rising = np.sort(look.drift.share)[::-1].cumsum()
    n, few = len(rising), max(1, round(0.1 * len(rising)))

    def plot(ax: Axes) -> None:
        ax.plot(np.arange(n + 1), np.append(0, rising), color=BLUE, linewidth=1.5)
        ax.plot([0, n], [0, 1], color=MUTED, linewidth=0.8, linestyle="dashed")
        ax.axvspan(0, few, color=MUTED, alpha=0.12, linewidth=0)
        ax.set_xlim(0, n)
        ax.set_ylim(0, 1.02)
        percent_ticks(ax, "y")

    words = Words(
        "drift-shares",
        f"Cumulative share of the drift apart by client after round {look.round}; the first {few} make "
        f"{percent(float(rising[few - 1]))}.",
        "Dashed: all alike. Shaded: a tenth of the clients.",
        "clients, those that drift most first",
        "share of the drift apart (%)",
    )
    return _drawing(words, plot)


def _work(diagnosis: Diagnosis) -> Drawing:
    look = diagnosis.looks[-1]
    words = Words(
        "drift-work",
        f"How far clients move in the round after round {look.round} against their local steps.",
        "Move: from the server's model to the end of the local steps. Apart: from the mean of all moves.",
        "local steps in the round",
        "distance",
    )
    move = Points(look.steps, look.drift.move, label="move")
    return _scatter(words, move, Points(look.steps, look.drift.away, RED, "^", "apart"), bounds=(0, None))


def _weights(diagnosis: Diagnosis) -> list[Drawing]:
    aim = diagnosis.aim
    kinds = (("plain average", aim.plain, AMBER, "s"), ("this method", aim.own, BLUE, "o"))
    points = [Points(aim.steps, of.w / aim.p, c, m, name) for name, of, c, m in kinds if isinstance(of, Surrogate)]
    if not points:
        return []
    spans = "; ".join(f"{one.label} {one.y.min():.2f} to {one.y.max():.2f}" for one in points)
    words = Words(
        "weights",
        f"The weight that each client gets over the weight it should have: {spans}.",
        "1: the client counts as the objective says. Found by the method's own steps on unit gradients.",
        "mean local steps a round",
        "weight it gets / its weight",
    )
    return [_scatter(words, *points, level=1, bounds=(0, None), integers=False)]


def _memory(diagnosis: Diagnosis) -> list[Drawing]:
    look, age = diagnosis.looks[-1], diagnosis.history.age()
    if look.memory is None or look.remembered is None or look.round == 0 or look.round != diagnosis.history.rounds:
        return []
    error = look.memory.error / np.maximum(look.gradient.norms, 1e-300)
    words = Words(
        "memory",
        f"How far what each client remembers is from its gradient after round {look.round}, against its age; the "
        f"median is {np.median(error):.2f}.",
        f"{look.remembered.name}; 1: as far off as if it remembered nothing.",
        "rounds since the client was last updated",
        "error of what it remembers / its gradient",
    )
    return [_scatter(words, Points(age[look.ids], error), level=1, bounds=(0, None))]


def _skew(diagnosis: Diagnosis) -> list[Drawing]:
    labels = diagnosis.skew.labels
    if labels is None:
        return []
    words = Words(
        "labels",
        f"Every client's label skew against its size; mean distance {labels.mean():.2f} of at most 2.",
        "Sum over classes of |p_i - p| (Zhao et al., 2018): 0 where a client has everybody's mix.",
        "samples of the client",
        "distance of its classes to everybody's",
    )
    return [_scatter(words, Points(diagnosis.skew.samples, labels), bounds=(0, 2))]


def _times(diagnosis: Diagnosis) -> list[Drawing]:
    seconds, taken = diagnosis.history.seconds, diagnosis.history.taken
    timed = seconds.sum() > 0
    who = np.flatnonzero(taken)
    if not len(who):
        return []
    amount = seconds[who] if timed else diagnosis.history.gradients[who, None]
    order = np.argsort(-amount.sum(1), kind="stable")

    def plot(ax: Axes) -> None:
        base = np.zeros(len(who))
        for k in range(amount.shape[1]):
            colour = (GREEN, BLUE, AMBER, "#c3cad1")[k] if timed else BLUE
            label = SHARES[k] if timed else None
            ax.bar(np.arange(len(who)), amount[order, k], bottom=base, width=1.0, color=colour, label=label)
            base = base + amount[order, k]

    total = seconds.sum(0)
    what = (
        ", ".join(f"{name} {percent(part)}" for name, part in zip(SHARES, total / total.sum(), strict=True))
        if timed
        else f"{span(amount)} mini-batch gradients"
    )
    y = "simulated seconds" if timed else "mini-batch gradients"
    alt = f"What each client did over the run: {what}."
    return [_drawing(Words("time", alt, f"Over all rounds: {what}.", "clients, those with most first", y), plot)]
