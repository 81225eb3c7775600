"""The figures of a diagnosis."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedconcord.analysis.surrogate import Surrogate
from fedconcord.diagnosis.course import Diagnosis
from fedconcord.diagnosis.findings import percent
from fedconcord.report.figures import Drawing
from fedconcord.report.figures.style import COLOURS, MARKERS, MUTED, PANEL, panel
from fedconcord.report.format import decades

BLUE, RED, GREEN, PINK, AMBER = COLOURS[:5]
SHARES = ("getting the model", "computing", "sending", "waiting")


def drawings(found: Diagnosis) -> dict[str, list[Drawing]]:
    """Section -> its figures."""
    return {
        "aim": _weights(found),
        "gradients": [_rounds(found), _agreement(found)],
        "drift": [_shares(found), _work(found)],
        "memory": _memory(found),
        "skew": _skew(found),
        "time": _times(found),
    }


def _rounds(found: Diagnosis) -> Drawing:
    lines = {
        "B²: gradients disagree": [look.gradient.dissimilarity for look in found.looks],
        "drift apart / move": [look.drift.ratio for look in found.looks],
        "direction's variance / gradients'": [look.direction for look in found.looks],
        "cohort's deviation": [look.cohort for look in found.looks],
    }
    at = [look.round for look in found.looks]

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        for k, (name, values) in enumerate(lines.items()):
            shown = [v if v > 0 else np.nan for v in values]
            ax.plot(at, shown, color=COLOURS[k], marker=MARKERS[k], markersize=4, linewidth=1.5, label=name)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(decades))
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("round")
        ax.legend(fontsize=6.5)
        return fig

    said = "; ".join(f"{name} {values[0]:.3g} to {values[-1]:.3g}" for name, values in lines.items())
    return Drawing(
        "rounds", f"Measures by round: {said}.", "At the rounds that were looked at; all without unit.", False, draw
    )


def _agreement(found: Diagnosis) -> Drawing:
    look = found.looks[-1]
    cosine = look.gradient.alignment

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        ax.axhline(0, color=MUTED, linewidth=0.8)
        ax.scatter(look.gradient.norms, cosine, s=14, color=BLUE, linewidths=0, alpha=0.8)
        ax.set_xlabel("length of the client's gradient")
        ax.set_ylabel("cosine with the full gradient")
        ax.set_ylim(-1.05, 1.05)
        return fig

    return Drawing(
        "agreement",
        f"Each client's gradient after round {look.round}: its length and its cosine with the full gradient, from "
        f"{cosine.min():.2f} to {cosine.max():.2f}.",
        f"Each point a client, after round {look.round}. Below 0: a step for this client is a step back for all.",
        False,
        draw,
    )


def _shares(found: Diagnosis) -> Drawing:
    look = found.looks[-1]
    rising = np.sort(look.drift.share)[::-1].cumsum()
    few = max(1, round(0.1 * len(rising)))

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        n = len(rising)
        ax.plot(np.arange(n + 1), np.append(0, rising), color=BLUE, linewidth=1.5)
        ax.plot([0, n], [0, 1], color=MUTED, linewidth=0.8, linestyle="dashed")
        ax.axvspan(0, few, color=MUTED, alpha=0.12, linewidth=0)
        ax.set_xlim(0, n)
        ax.set_ylim(0, 1.02)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g}"))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("clients, those that drift most first")
        ax.set_ylabel("share of the drift apart (%)")
        return fig

    return Drawing(
        "drift-shares",
        f"Cumulative share of the drift apart by client after round {look.round}; the first {few} make "
        f"{percent(float(rising[few - 1]))}.",
        "Dashed: all alike. Shaded: a tenth of the clients.",
        False,
        draw,
    )


def _work(found: Diagnosis) -> Drawing:
    look = found.looks[-1]

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        ax.scatter(look.steps, look.drift.move, s=14, color=BLUE, linewidths=0, alpha=0.8, label="move")
        ax.scatter(look.steps, look.drift.away, s=14, color=RED, marker="^", linewidths=0, alpha=0.8, label="apart")
        ax.set_xlabel("local steps in the round")
        ax.set_ylabel("distance")
        ax.set_ylim(0, None)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.legend(fontsize=6.5)
        return fig

    return Drawing(
        "drift-work",
        f"How far clients move in the round after round {look.round} against their local steps.",
        "Move: from the server's model to the end of the local steps. Apart: from the mean of all moves.",
        False,
        draw,
    )


def _weights(found: Diagnosis) -> list[Drawing]:
    aim = found.aim
    known = {"plain average": (aim.plain, AMBER, "s"), "this method": (aim.own, BLUE, "o")}
    shown = {name: (of.w / aim.p, c, m) for name, (of, c, m) in known.items() if isinstance(of, Surrogate)}
    if not shown:
        return []

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        ax.axhline(1, color=MUTED, linewidth=0.8)
        for name, (ratio, colour, marker) in shown.items():
            ax.scatter(aim.steps, ratio, s=14, color=colour, marker=marker, linewidths=0, alpha=0.8, label=name)
        ax.set_xlabel("mean local steps a round")
        ax.set_ylabel("weight it gets / its weight")
        ax.set_ylim(0, None)
        ax.legend(fontsize=6.5)
        return fig

    said = "; ".join(f"{name} {ratio.min():.2f} to {ratio.max():.2f}" for name, (ratio, _, _) in shown.items())
    return [
        Drawing(
            "weights",
            f"The weight that each client gets over the weight it should have: {said}.",
            "1: the client counts as the objective says. Found by the method's own steps on unit gradients.",
            False,
            draw,
        )
    ]


def _memory(found: Diagnosis) -> list[Drawing]:
    look, age = found.looks[-1], found.history.age()
    if look.memory is None or look.remembered is None or look.round == 0 or look.round != found.history.rounds:
        return []
    error = look.memory.error / np.maximum(look.gradient.norms, 1e-300)
    ages = age[look.ids]

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        ax.axhline(1, color=MUTED, linewidth=0.8)
        ax.scatter(ages, error, s=14, color=BLUE, linewidths=0, alpha=0.8)
        ax.set_xlabel("rounds since the client was last updated")
        ax.set_ylabel("error of what it remembers / its gradient")
        ax.set_ylim(0, None)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return fig

    return [
        Drawing(
            "memory",
            f"How far what each client remembers is from its gradient after round {look.round}, against its age; the "
            f"median is {np.median(error):.2f}.",
            f"{look.remembered.name}; 1: as far off as if it remembered nothing.",
            False,
            draw,
        )
    ]


def _skew(found: Diagnosis) -> list[Drawing]:
    labels = found.skew.labels
    if labels is None:
        return []

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        ax.scatter(found.skew.samples, labels, s=14, color=BLUE, linewidths=0, alpha=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("samples of the client")
        ax.set_ylabel("distance of its classes to everybody's")
        ax.set_ylim(0, 2)
        return fig

    return [
        Drawing(
            "labels",
            f"Every client's label skew against its size; mean distance {labels.mean():.2f} of at most 2.",
            "Sum over classes of |p_i - p| (Zhao et al., 2018): 0 where a client has everybody's mix.",
            False,
            draw,
        )
    ]


def _times(found: Diagnosis) -> list[Drawing]:
    seconds, taken = found.history.seconds, found.history.taken
    timed = seconds.sum() > 0
    who = np.flatnonzero(taken)
    if not len(who):
        return []
    amount = seconds[who] if timed else found.history.gradients[who, None]
    order = np.argsort(-amount.sum(1), kind="stable")

    def draw(legend: bool) -> Figure:
        fig, ax = panel(*PANEL)
        base = np.zeros(len(who))
        for k in range(amount.shape[1]):
            colour = (GREEN, BLUE, AMBER, "#c3cad1")[k] if timed else BLUE
            ax.bar(np.arange(len(who)), amount[order, k], bottom=base, width=1.0, color=colour, label=SHARES[k])
            base = base + amount[order, k]
        ax.set_xlabel("clients, those with most first")
        ax.set_ylabel("simulated seconds" if timed else "mini-batch gradients")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if timed:
            ax.legend(fontsize=6.5)
        return fig

    total = seconds.sum(0)
    what = (
        ", ".join(f"{name} {percent(part)}" for name, part in zip(SHARES, total / total.sum(), strict=True))
        if timed
        else f"from {amount.min():.0f} to {amount.max():.0f} mini-batch gradients"
    )
    return [Drawing("time", f"What each client did over the run: {what}.", f"Over all rounds: {what}.", False, draw)]
