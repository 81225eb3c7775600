"""Final values, leads and average ranks. What is ranked is named in the figure, so that it needs no legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.report.figures import style
from fedconcord.insight.report.figures.style import Drawing, drawing
from fedconcord.study.statistics.format import lead_words, value, wrap
from fedconcord.study.statistics.metric import FLOOR
from fedconcord.study.statistics.ranks import Ranks
from fedconcord.study.statistics.stats import ALPHA, FEW
from fedconcord.study.statistics.summary import Summary, finals


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
            drawing(
                "final",
                f"Final {s.primary.title} of each method, best first: {order}.",
                f"Final {s.primary.title}, {'' if many else 'one seed, '}best first. {dots}".strip(),
                partial(_final, s),
                size=_rows(len(s.rows)),
            )
        )
    if s.verdict.comparisons:
        order = ", ".join(
            f"{c.name} {lead_words(s.primary, c.lead.mean)} ({'separated' if c.separated else 'not separated'})"
            for c in s.verdict.comparisons
        )
        unit = "factor" if s.primary.log else "points" if s.primary.percent else "difference"
        few = len(s.verdict.seeds) < FEW
        out.append(
            drawing(
                "lead",
                f"Lead of {s.verdict.top} over each other method, {unit}: {order}.",
                f"Lead of {s.verdict.top}, paired by seed: "
                f"{'dots: single seeds; large mark: mean' if few else 'mean and 95 % t interval'}. Filled: separated "
                "after Holm's correction; hollow: not.",
                partial(_leads, s),
                size=_rows(len(s.verdict.comparisons)),
            )
        )
    return out


def _rows(count: int) -> tuple[float, float]:
    return style.PANEL[0], 0.75 + 0.36 * count


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
            note, (1, i - 0.27), (-2, 0), xycoords=("axes fraction", "data"), fontsize=7.5, color=style.MUTED,
            textcoords="offset points", va="center", ha="right", bbox=halo, zorder=3,
        )  # fmt: skip


def _final(s: Summary, ax: Axes) -> None:
    dots: list[float] = []
    notes = []
    for i, row in enumerate(s.rows):
        m = s.method(row.name)
        c, _, marker = style.look(m.index)
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
        style.log_scale(ax, "x")
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
            style.percent_ticks(ax, "x", ".4g")


def _leads(s: Summary, ax: Axes) -> None:
    cs = s.verdict.comparisons
    f: Callable[[float], float] = (lambda v: 10.0**v) if s.primary.log else (lambda v: v)
    unit = 100 if s.primary.percent else 1
    notes = []
    for i, c in enumerate(cs):
        colour, _, marker = style.look(s.method(c.name).index)
        if c.lead.n < FEW:
            dots = [unit * f(v) for v in c.lead.values]
            ax.plot(dots, [i] * len(dots), "o", color=colour, markersize=3, alpha=0.6, markeredgewidth=0)
        else:
            ax.plot([unit * f(v) for v in c.lead.ends], [i, i], color=colour, linewidth=2.2, alpha=0.55)
        face = colour if c.separated else "white"
        ax.plot([unit * f(c.lead.mean)], [i], marker, color=colour, markersize=6.5, markerfacecolor=face, zorder=4)
        low, high = (lead_words(s.primary, end) for end in c.lead.ends)
        notes.append(f"{lead_words(s.primary, c.lead.mean)} [{low}, {high}]")
    ax.axvline(unit * f(0.0), color=style.INK, linewidth=0.9, zorder=1)
    _label_rows(ax, [f"over {c.name}" for c in cs], notes)
    means = [c.lead.mean for c in cs]
    ends = [v for c in cs for v in c.lead.ends]
    room = 1.5 * max(max(map(abs, means)), 1e-9)  # a wide interval runs out of the frame, not the means
    left, right = max(min([0.0, *ends]), -room), min(max([0.0, *ends]), max(means) + room)
    pad = 0.06 * (right - left) or 1e-6
    if s.primary.log:
        style.log_scale(ax, "x")
        ax.set_xlim(f(left - pad), f(right + pad))
        ax.set_xlabel(f"how many times smaller the final {s.primary.title} of {s.method(s.verdict.top or '').short} is")
    else:
        ax.set_xlim(unit * (left - pad), unit * (right + pad))
        what = "points" if s.primary.percent else s.primary.title
        ax.set_xlabel(f"lead of {s.method(s.verdict.top or '').short} ({what})")


def critical(r: Ranks) -> Drawing:
    """Average ranks with the critical difference: the diagram of Demsar (2006), figure 1.

    The ranks on one axis; thick lines join what the test does not tell apart, where there are data sets enough.
    """
    order = ", ".join(f"{name} {rank:.2f}" for name, rank in zip(r.methods, r.average, strict=True))
    joined = f"Thick lines join methods that differ by less than the critical difference (Nemenyi, {ALPHA:g})."
    k, groups = len(r.methods), r.groups if r.enough else []
    rows = (k + 1) // 2  # the better half is named at the left
    top = 0.35 + 0.14 * len(groups)  # of the names

    def plot(ax: Axes) -> None:
        ax.set_axis_off()
        ax.grid(visible=False)
        ax.plot([1, k], [0, 0], color=style.INK, linewidth=1)
        for rank in range(1, k + 1):
            ax.plot([rank, rank], [0, -0.1], color=style.INK, linewidth=1)
            ax.annotate(
                str(rank), (rank, -0.1), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7.5
            )
        out = 0.06 * (k - 1)
        for i, (name, average) in enumerate(zip(r.methods, r.average, strict=True)):
            first = i < rows
            y = top + 0.26 * (i if first else k - 1 - i)
            end = 1 - out if first else k + out
            ax.plot([average, average, end], [0, y, y], color=style.MUTED, linewidth=0.9)
            text = f"{wrap(name, 40, 1)}  {average:.2f}"
            ax.annotate(
                text, (end, y), (-3 if first else 3, 0), textcoords="offset points", ha="right" if first else "left",
                va="center", fontsize=8,
            )  # fmt: skip
        for row, (i, j) in enumerate(groups):
            y = 0.16 + 0.14 * row
            ax.plot(
                [r.average[i] - 0.02, r.average[j] + 0.02], [y, y], color=style.INK, linewidth=3, solid_capstyle="butt"
            )
        if r.enough:
            ax.plot([1, 1 + r.critical], [-0.55, -0.55], color=style.INK, linewidth=1, marker="|", markersize=6)
            ax.annotate(
                f"critical difference {r.critical:.2f}", (1 + r.critical / 2, -0.55), (0, 3), ha="center", va="bottom",
                textcoords="offset points", fontsize=7.5,
            )  # fmt: skip
        ax.set_ylim(top + 0.26 * rows, -0.85 if r.enough else -0.4)
        ax.set_xlim(1 - 0.45 * (k - 1), max(k + 0.45 * (k - 1), 1.1 + r.critical))

    return drawing(
        "ranks",
        f"Average ranks of {len(r.methods)} methods over {len(r.data)} data sets: {order}.",
        f"Average ranks over {len(r.data)} data sets; 1 is the best. {joined if r.enough else ''}".strip(),
        plot,
        size=(style.WIDE, 1.1 + 0.26 * rows + 0.14 * len(groups)),
    )
