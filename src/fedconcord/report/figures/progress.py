"""A metric against rounds, bytes, gradient steps or simulated time: a line a method."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedconcord.report.curves import bottom, ceiling, curve, log_floor
from fedconcord.report.figures.drawing import Drawing
from fedconcord.report.figures.style import (
    AXIS_TITLES,
    MUTED,
    PANEL,
    cut_below,
    legend_below,
    look,
    panel,
    x_axis,
    y_axis,
)
from fedconcord.report.format import goal_value, value
from fedconcord.report.metric import Metric
from fedconcord.report.summary import Summary


def _lines(
    ax: Axes, s: Summary, column: str, axis: str, floor: float | None, cap: float | None, low: float | None
) -> None:
    for m in s.methods:
        c, dash, marker = look(m.index)
        k = curve(m.runs, column, axis, floor, cap)
        gid = f"m{m.index}"
        if k.x.size:
            every = max(1, k.x.size // 7)
            offset = (m.index * every) // max(1, len(s.methods))
            (line,) = ax.plot(
                k.x, k.mid, color=c, linestyle=dash, linewidth=1.5, zorder=3, marker=marker, markersize=4,
                markeredgecolor="white", markeredgewidth=0.5, markevery=(offset, every),
            )  # fmt: skip
            line.set_gid(f"{gid}-line")
            if len(m.runs) > 1:
                band = ax.fill_between(k.x, k.low, k.high, color=c, alpha=0.13, linewidth=0, zorder=2)
                band.set_gid(f"{gid}-band")
        for i, (x, y) in enumerate(k.tails):
            (tail,) = ax.plot(x, y, color=c, linestyle=dash, linewidth=0.8, alpha=0.75, zorder=3)
            tail.set_gid(f"{gid}-tail{i}")
        for i, (bx, by) in enumerate(k.breaks):
            end = max(min(by, math.inf if cap is None else cap), -math.inf if low is None else low)
            (cross,) = ax.plot([bx], [end], "x", color=c, markersize=8, markeredgewidth=2, zorder=5, clip_on=False)
            cross.set_gid(f"{gid}-break{i}")


def _plot(s: Summary, metric: Metric, axis: str, legend: bool) -> Figure:
    fig, ax = panel(*PANEL)
    runs = [r for m in s.methods for r in m.runs]
    floor = log_floor(runs, [metric.column])
    log = floor is not None
    cap = None if metric.percent else ceiling(runs, [metric.column], log)
    low = bottom(s, metric)
    _lines(ax, s, metric.column, axis, floor, cap, low)
    y_axis(ax, metric, log)
    x_axis(ax, axis)
    if cap is not None:
        ax.set_ylim(top=cap * (1.3 if log else 1.03))
    ax.margins(x=0.02)
    ax.set_xlim(left=0)
    if metric == s.primary and math.isfinite(s.target):
        ax.axhline(s.target, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        ax.annotate(
            f"target {goal_value(metric, s.target)}", (0, s.target), (3, 2 if metric.higher else -2),
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
            va="bottom" if metric.higher else "top", fontsize=7, color=MUTED,
        )  # fmt: skip
    if low is not None:
        cut_below(ax, low)
    if legend and len(s.methods) > 1:
        legend_below(fig, s.methods)
    return fig


def by_axis(s: Summary, metric: Metric, axis: str) -> Drawing:
    runs = [r for m in s.methods for r in m.runs]
    floor = log_floor(runs, [metric.column])
    curves = {m.name: curve(m.runs, metric.column, axis, floor) for m in s.methods}
    ends = [(name, float(c.mid[-1])) for name, c in curves.items() if c.mid.size]
    ends.sort(key=lambda e: e[1])
    span = ""
    if ends:
        span = f" Lines end between {value(metric, ends[0][1])} ({ends[0][0]})"
        span += f" and {value(metric, ends[-1][1])} ({ends[-1][0]})."
    notes = []
    low = bottom(s, metric)
    if low is not None:
        notes.append(f"The axis begins at {goal_value(metric, low)}, where the curves differ: they start below it.")
    if floor is not None:
        notes.append("Log axis; mean taken in logarithms.")
    if not metric.percent and ceiling(runs, [metric.column], floor is not None) is not None:
        notes.append("The axis is cut: a run leaves it.")
    if any(c.breaks for c in curves.values()):
        notes.append("× marks where a run that diverged was last finite, or leaves the axis.")
    where = "bytes sent" if axis == "bytes" else AXIS_TITLES[axis]
    return Drawing(
        name=f"{metric.column.replace('_', '-')}-by-{axis.replace('_', '-')}",
        alt=f"Line chart of {metric.title} against {where}, {len(s.methods)} method(s).{span}",
        caption=" ".join(notes),
        wide=False,
        draw=lambda legend: _plot(s, metric, axis, legend),
    )
