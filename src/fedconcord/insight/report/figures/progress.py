"""A metric against rounds, bytes, gradient steps or simulated time: a line a method, or a model that it offers."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.report.curves import Curve, bottom, ceiling, curve, log_floor
from fedconcord.insight.report.figures import style
from fedconcord.insight.report.figures.style import Drawing, drawing
from fedconcord.study.statistics.format import goal_value, value, wrap
from fedconcord.study.statistics.metric import Metric
from fedconcord.study.statistics.summary import Method, Summary


def by_axis(s: Summary, metric: Metric, axis: str) -> Drawing:
    """A metric of every method against one of `AXIS_TITLES`."""
    runs = [r for m in s.methods for r in m.runs]
    floor, low = log_floor(runs, [metric.column]), bottom(s, metric)
    log = floor is not None
    cap = None if metric.higher else ceiling(runs, [metric.column], log)
    curves = [(m, curve(m.runs, metric.column, axis, floor, cap)) for m in s.methods]

    def plot(ax: Axes) -> None:
        for m, k in curves:
            _line(ax, m, k, len(curves), low, cap)
        style.y_axis(ax, metric, log)
        style.x_axis(ax, axis)
        if cap is not None:
            ax.set_ylim(top=cap * (1.3 if log else 1.03))
        ax.margins(x=0.02)
        ax.set_xlim(left=0)
        if metric == s.primary and math.isfinite(s.target):
            ax.axhline(s.target, color=style.MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            ax.annotate(
                f"target {goal_value(metric, s.target)}", (0, s.target), (3, 2 if metric.higher else -2),
                xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
                va="bottom" if metric.higher else "top", fontsize=7, color=style.MUTED,
            )  # fmt: skip
        if low is not None:
            style.cut_below(ax, low)

    ends = sorted(((float(k.mid[-1]), m.name) for m, k in curves if k.mid.size), key=lambda end: end[0])
    span = " and ".join(f"{value(metric, end)} ({name})" for end, name in (ends[0], ends[-1])) if ends else ""
    begin = "" if low is None else f"The axis begins at {goal_value(metric, low)}, where the curves differ: they start"
    breaks = [k for _, k in curves if k.breaks]
    notes = [
        f"{begin} below it." if begin else "",
        "Log axis; mean taken in logarithms." if log else "",
        "The axis is cut: a run leaves it." if cap is not None else "",
        "× marks where a run that diverged was last finite, or leaves the axis." if breaks else "",
    ]
    where = "bytes sent" if axis == "bytes" else style.AXIS_TITLES[axis]
    return drawing(
        f"{metric.column.replace('_', '-')}-by-{axis.replace('_', '-')}",
        f"Line chart of {metric.title} against {where}, {len(s.methods)} method(s)."
        + (f" Lines end between {span}." if span else ""),
        " ".join(filter(None, notes)),
        plot,
        below=s.methods,
    )


def _line(ax: Axes, m: Method, k: Curve, methods: int, low: float | None, cap: float | None) -> None:
    """A method's mean, band, single runs and the crosses where they break off, of so many methods."""
    c, dash, marker = style.look(m.index)
    gid = f"m{m.index}"
    if k.x.size:
        every = max(1, k.x.size // 7)
        offset = (m.index * every) // max(1, methods)
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


def by_model(s: Summary) -> list[Drawing]:
    """Every model against rounds, where a method offers more than the one that it answers with."""
    names = list(dict.fromkeys(r.name for r in s.second))
    if not names:
        return []
    means = "; means over seeds." if any(len(m.runs) > 1 for m in s.methods) else "."
    return [
        Drawing(
            "models",
            f"{s.primary.title.capitalize()} against rounds of every model that these methods offer: "
            f"{', '.join(names)}.",
            f"Solid: the model that the method answers with, which ranks it; dashed: the other it offers{means}",
            len(names) > 1,
            lambda in_file: _models(s, names),
        )
    ]


def _models(s: Summary, names: list[str]) -> Figure:
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    fig = Figure(figsize=(style.WIDE if columns > 1 else style.PANEL[0], 0.5 + 1.75 * rows), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    runs = [r for n in names for r in s.method(n).runs]
    keys = [s.primary.column] + [f"{r.model}:{s.primary.column}" for r in s.second]
    floor = log_floor(runs, keys)
    log = floor is not None
    cap = None if s.primary.higher else ceiling(runs, keys, log)
    for ax, name in zip(axes, names, strict=False):
        m = s.method(name)
        c = style.look(m.index).colour
        k = curve(m.runs, s.primary.column, "round", floor)
        ax.plot(k.x, k.mid, color=c, linewidth=1.5, label=f"{m.answer} (its answer)")
        for j, model in enumerate(m.runs[0].head.models[1:]):
            k = curve(m.runs, f"{model}:{s.primary.column}", "round", floor)
            ax.plot(k.x, k.mid, color=style.INK, linewidth=0.9, linestyle=(0, (3 + 2 * j, 1.5)), label=model)
        style.y_axis(ax, s.primary, log)
        ax.set_ylabel("")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.set_xlim(left=0)
        ax.set_title(wrap(name, 36 if columns == 3 else 48, 2), fontsize=7.5, loc="left")
        ax.legend(fontsize=6.5, loc="best", handlelength=2.2)
        if cap is not None:
            ax.set_ylim(top=cap)
    low = bottom(s, s.primary)
    if low is not None:  # the axes share it; a mean that lags behind may end below it
        ends = [r.final.mean for r in s.second if math.isfinite(r.final.mean)]
        style.cut_below(axes[0], min([low, *ends]))
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    fig.supxlabel("round", fontsize=8)
    fig.supylabel(s.primary.label(), fontsize=8)
    return fig
