"""The final values and the leads, with their intervals. Their rows are named, so that they need no legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedconcord.report.figures.drawing import Drawing
from fedconcord.report.figures.style import INK, MUTED, PANEL, log_scale, look, panel, percent_ticks
from fedconcord.report.format import lead_words, value, wrap
from fedconcord.report.metric import FLOOR
from fedconcord.report.stats import FEW
from fedconcord.report.summary import Summary, finals


def ranked(s: Summary) -> list[Drawing]:
    """Final values where there are several methods, leads where there is a best one or a front."""
    out = []
    if len(s.methods) > 1:
        order = ", ".join(f"{r.name} {value(s.primary, r.final.mean)}" for r in s.rows)
        counts = [r.final.n for r in s.rows]
        many = max(counts) > 1
        bar = "" if max(counts) < FEW else "; bar: 95 % t interval over seeds, cut at the frame"
        bar += f" (only from {FEW} seeds on)" if bar and min(counts) < FEW else ""
        dots = f"Dots: single seeds; large mark: mean{bar}." if many else ""
        out.append(
            Drawing(
                "final",
                f"Final {s.primary.title} of each method, best first: {order}.",
                f"Final {s.primary.title}, {'' if many else 'one seed, '}best first. {dots}".strip(),
                False,
                lambda legend: _final(s),
            )
        )
    if s.verdict.comparisons:
        order = ", ".join(
            f"{c.name} {lead_words(s.primary, c.lead.mean)} ({'separated' if c.separated else 'not separated'})"
            for c in s.verdict.comparisons
        )
        unit = "factor" if s.primary.log else "points" if s.primary.percent else "difference"
        out.append(
            Drawing(
                "lead",
                f"Lead of {s.verdict.top} over each other method, {unit}: {order}.",
                f"Lead of {s.verdict.top}, paired by seed: "
                + ("dots: single seeds; large mark: mean" if len(s.verdict.seeds) < FEW else "mean and 95 % t interval")
                + ". Filled: separated after Holm's correction; hollow: not.",
                False,
                lambda legend: _leads(s),
            )
        )
    return out


def _label_rows(ax: Axes, labels: Sequence[str], notes: Sequence[str]) -> None:
    """Each row's name above its interval, inside the axes: long names need no margin."""
    ax.set_ylim(len(labels) - 0.35, -0.75)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    halo = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    for i, (label, note) in enumerate(zip(labels, notes, strict=True)):
        room = 64 - len(note)
        ax.annotate(
            wrap(label, room, 1), (0, i - 0.27), (2, 0), xycoords=("axes fraction", "data"), fontsize=7.5,
            textcoords="offset points", va="center", ha="left", bbox=halo, zorder=3,
        )  # fmt: skip
        ax.annotate(
            note, (1, i - 0.27), (-2, 0), xycoords=("axes fraction", "data"), fontsize=7.5, color=MUTED,
            textcoords="offset points", va="center", ha="right", bbox=halo, zorder=3,
        )  # fmt: skip


def _final(s: Summary) -> Figure:
    fig, ax = panel(PANEL[0], 0.75 + 0.36 * len(s.rows))
    dots: list[float] = []
    notes = []
    for i, row in enumerate(s.rows):
        m = s.method(row.name)
        c, _, marker = look(m.index)
        seeds = [s.primary.back(v) for v in finals(m.finished, s.primary, s.horizon).values() if math.isfinite(v)]
        dots += seeds
        if not seeds:
            notes.append(row.notes or "no complete run")
            continue
        notes.append(value(s.primary, row.final.mean))
        if row.final.n >= FEW:
            ax.plot([row.final.low, row.final.high], [i, i], color=c, linewidth=2.2, alpha=0.55, zorder=2)
        ax.plot(seeds, [i] * len(seeds), "o", color=c, markersize=3, alpha=0.6, markeredgewidth=0, zorder=3)
        ax.plot([row.final.mean], [i], marker, color=c, markersize=6.5, markeredgecolor="white", zorder=4)
    _label_rows(ax, [r.name for r in s.rows], notes)
    ax.set_xlabel(s.primary.label(f"final {s.primary.title}"))
    if s.primary.log and dots:
        log_scale(ax, "x")
        low, high = max(min(dots), FLOOR), max(dots)
        pad = max(2.0, (high / low) ** 0.12)
        ax.set_xlim(low / pad, high * pad)
    elif dots:
        span = (max(dots) - min(dots)) or 0.01
        ends = [e for r in s.rows for e in r.final.ends]
        left, right = (max(min(ends), min(dots) - span / 2), min(max(ends), max(dots) + span / 2))
        ax.set_xlim(min([left, *dots]) - 0.05 * span, max([right, *dots]) + 0.05 * span)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        if s.primary.percent:
            percent_ticks(ax, "x", ".4g")
    return fig


def _leads(s: Summary) -> Figure:
    cs = s.verdict.comparisons
    fig, ax = panel(PANEL[0], 0.75 + 0.36 * len(cs))
    f: Callable[[float], float] = (lambda v: 10.0**v) if s.primary.log else (lambda v: v)
    unit = 100 if s.primary.percent else 1
    notes = []
    for i, c in enumerate(cs):
        colour, _, marker = look(s.method(c.name).index)
        if c.lead.n < FEW:
            dots = [unit * f(v) for v in c.lead.values]
            ax.plot(dots, [i] * len(dots), "o", color=colour, markersize=3, alpha=0.6, markeredgewidth=0)
        else:
            ax.plot([unit * f(v) for v in c.lead.ends], [i, i], color=colour, linewidth=2.2, alpha=0.55)
        face = colour if c.separated else "white"
        ax.plot([unit * f(c.lead.mean)], [i], marker, color=colour, markersize=6.5, markerfacecolor=face, zorder=4)
        low, high = (lead_words(s.primary, end) for end in c.lead.ends)
        notes.append(f"{lead_words(s.primary, c.lead.mean)} [{low}, {high}]")
    ax.axvline(unit * f(0.0), color=INK, linewidth=0.9, zorder=1)
    _label_rows(ax, [f"over {c.name}" for c in cs], notes)
    means = [c.lead.mean for c in cs]
    ends = [v for c in cs for v in c.lead.ends]
    room = 1.5 * max(max(map(abs, means)), 1e-9)  # a wide interval runs out of the frame, not the means
    left, right = max(min([0.0, *ends]), -room), min(max([0.0, *ends]), max(means) + room)
    pad = 0.06 * (right - left) or 1e-6
    if s.primary.log:
        log_scale(ax, "x")
        ax.set_xlim(f(left - pad), f(right + pad))
        ax.set_xlabel(f"how many times smaller the final {s.primary.title} of {s.method(s.verdict.top or '').short} is")
    else:
        ax.set_xlim(unit * (left - pad), unit * (right + pad))
        what = "points" if s.primary.percent else s.primary.title
        ax.set_xlabel(f"lead of {s.method(s.verdict.top or '').short} ({what})")
    return fig
