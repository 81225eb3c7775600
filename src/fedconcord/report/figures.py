"""The figures, each a matplotlib Figure made by the object API: no global state, the same bytes for the same runs."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from fedconcord.report.load import Array, Run
from fedconcord.report.stats import interval
from fedconcord.report.summary import AXES, FLOOR, Method, Metric, Summary, finals, metric_of

INK, MUTED, RULE = "#1b1f24", "#5b6570", "#d9dee3"
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#3B3B3B",
)  # Okabe & Ito, told apart by all
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*")
PANEL = (4.4, 3.1)  # inches, one of two columns of the page
WIDE = 8.9  # inches, both columns
POINTS = 500  # of one line at most: more cannot be seen
BAND_SEEDS = 5  # from so many seeds on the band is a t interval, below it is the range
AXIS_TITLES = {
    "round": "round",
    "bytes": "bytes up and down",
    "gradient_steps": "gradient steps of all clients",
    "simulated_seconds": "simulated seconds",
}
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "fedconcord",
    "path.simplify": True,
}


class Look(NamedTuple):
    """How a method is drawn, everywhere."""

    colour: str
    dash: Any
    marker: str


class Drawing(NamedTuple):
    """A figure of the report. `draw(True)` has its own legend, for a file; `draw(False)` leaves that to the page."""

    name: str
    alt: str
    caption: str
    wide: bool
    draw: Callable[[bool], Figure]


class Curve(NamedTuple):
    """A method's line: the middle and the band over its seeds, then single runs where the seeds part."""

    x: Array  # [P] mean over the seeds
    mid: Array  # [P]
    low: Array  # [P]
    high: Array  # [P]
    tails: tuple[tuple[Array, Array], ...]  # a run each that goes on after another has ended
    breaks: tuple[tuple[float, float], ...]  # where a run that diverged was last finite


def look(index: int) -> Look:
    n = len(COLOURS)
    return Look(COLOURS[index % n], DASHES[index // n % len(DASHES)], MARKERS[index % len(MARKERS)])


def superscript(n: int) -> str:
    return str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def quantity(v: float) -> str:
    """A count, short: 12k, 3.4M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(v) >= size:
            return f"{v / size:.3g}{unit}"
    return f"{v:.3g}"


def compact(v: float, form: str = ".3g") -> str:
    """A number with exponents as people write them: 1e-5, not 1e-05."""
    return re.sub(r"e([-+])0*(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", format(v, form))


def size(v: float) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(v) >= factor:
            return f"{v / factor:.3g} {unit}"
    return f"{v:.0f} B"


def value(metric: Metric, v: float) -> str:
    """A metric's value in words."""
    if metric.log and v <= FLOOR * (1 + 1e-9):
        return f"at most {compact(FLOOR)}"
    if not math.isfinite(v):
        return "not finite"
    return f"{100 * v:.2f} %" if metric.percent else compact(v)


def goal_value(metric: Metric, v: float) -> str:
    """A target in words: no more digits than it was given with."""
    return f"{100 * v:.4g} %" if metric.percent else compact(v)


def curve(runs: Sequence[Run], column: str, axis: str, floor: float | None, cap: float | None = None) -> Curve:
    """The line of a method's runs: their mean over the rounds that all of them evaluated, then run by run.

    A run that diverged is drawn on its own, up to its last finite value, unless all of them did. With a floor (see
    `log_floor`) means are taken in logarithms; with a cap the run breaks off where it first passes it.
    """
    runs = [r for r in runs if column in r.metrics]
    length = {}  # evaluations of a run before its first value that is not finite
    for r in runs:
        bad = np.flatnonzero(~np.isfinite(r.metrics[column]))
        length[r.folder] = int(bad[0]) if bad.size else r.round.size

    def y(r: Run) -> Array:
        return r.metrics[column] if floor is None else np.log10(np.maximum(r.metrics[column], floor))

    def back(v: Array) -> Array:
        return v if floor is None else 10.0**v

    averaged = [r for r in runs if not r.diverged] or runs
    shared = set.intersection(*(set(r.round[: length[r.folder]]) for r in averaged)) if averaged else set()
    at = np.array(sorted(shared))
    if at.size > POINTS:
        at = at[np.unique(np.linspace(0, at.size - 1, POINTS).round().astype(int))]
    x = mid = low = high = np.empty(0)
    if at.size:
        rows = [np.searchsorted(r.round, at) for r in averaged]
        ys = np.stack([y(r)[i] for r, i in zip(averaged, rows, strict=True)])
        x = np.mean([r.axis(axis)[i] for r, i in zip(averaged, rows, strict=True)], axis=0)
        if len(averaged) >= BAND_SEEDS:
            bounds = np.array([interval(v)[:3] for v in ys.T])
            mid, low, high = back(bounds[:, 0]), back(bounds[:, 1]), back(bounds[:, 2])
        else:
            mid, low, high = back(ys.mean(0)), back(ys.min(0)), back(ys.max(0))
    tails, breaks = [], []
    for r in runs:
        end = length[r.folder]
        start = int(np.searchsorted(r.round, at[-1])) if at.size and r in averaged else 0
        if start < end - 1:
            keep = np.unique(np.r_[np.arange(start, end, max(1, (end - start) // POINTS)), end - 1])
            tails.append((r.axis(axis)[keep], back(y(r)[keep])))
        if end and (end < r.round.size or r.diverged):
            values = back(y(r)[:end])
            over = np.flatnonzero(values > cap) if cap is not None else np.empty(0)
            at_end = int(over[0]) if over.size else end - 1
            breaks.append((float(r.axis(axis)[at_end]), float(values[at_end])))
    return Curve(x, mid, low, high, tuple(tails), tuple(breaks))


def log_floor(runs: Sequence[Run], columns: Sequence[str]) -> float | None:
    """Whether these columns get a log axis, and if so the smallest positive value, which stands for 0 on it.

    Log where values are positive (a distance may touch 0) and span more than 1.5 decades; never an accuracy.
    """
    metrics = [metric_of(c.rsplit(":", 1)[-1]) for c in columns]
    values = np.concatenate([r.metrics[c] for r in runs for c in columns if c in r.metrics] or [np.empty(0)])
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if any(m.percent for m in metrics) or not positive.size or finite.min() < 0:
        return None
    least = float(positive.min())
    wide = all(m.log for m in metrics) or (finite.min() > 0 and finite.max() > 30 * least)
    return least if wide else None


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.add_subplot()


def _decades(v: float, _: object = None) -> str:
    e = round(math.log10(v)) if v > 0 else 0
    return f"10{superscript(e)}" if v > 0 and math.isclose(v, 10.0**e, rel_tol=1e-9) else f"{v:.3g}"


def _y_axis(ax: Axes, metric: Metric, log: bool) -> None:
    ax.set_ylabel(metric.title + (" (%)" if metric.percent else ""))
    if log:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(_decades))
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
    elif metric.percent:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g}"))


def _x_axis(ax: Axes, axis: str) -> None:
    ax.set_xlabel(AXIS_TITLES[axis])
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=axis == "round"))
    if axis != "round":
        formatter = size if axis == "bytes" else quantity
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: formatter(v) if v else "0"))


def wrap(text: str, width: int, lines: int = 3) -> str:
    """A name over some lines, broken at spaces or after commas; what does not fit ends in '…'."""
    parts = textwrap.wrap(text.replace(",", ", ").replace(",  ", ", "), width)
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: width - 1] + "…"]
    return "\n".join(parts)


def _legend(fig: Figure, methods: Sequence[Method]) -> None:
    """The methods below the axes; the figure grows by what they need."""
    handles, labels = [], []
    columns = min(len(methods), max(1, int(fig.get_figwidth() // 2.2)))
    for m in methods:
        c, dash, marker = look(m.index)
        handles.append(Line2D([], [], color=c, linestyle=dash, marker=marker, markersize=4, linewidth=1.5))
        labels.append(wrap(m.name, 28))
    legend = fig.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=7.5, handlelength=4)
    for text in legend.get_texts():
        text.set_parse_math(False)
    deep = math.ceil(len(methods) / columns)  # entries run down a column first
    inches = [
        sum(0.07 + 0.125 * (1 + k.count("\n")) for k in labels[i : i + deep]) for i in range(0, len(labels), deep)
    ]
    fig.set_figheight(fig.get_figheight() + 0.1 + max(inches))


def _cap(runs: Sequence[Run], columns: Sequence[str], log: bool) -> float | None:
    """Where a loss axis ends if a run leaves the others far behind: some times the worst start."""
    values = [r.metrics[c] for r in runs for c in columns if c in r.metrics]
    starts = [float(v[0]) for v in values if v.size and math.isfinite(v[0])]
    if not starts or max(starts) <= 0:
        return None
    cap = max(starts) * (10 if log else 2)
    top = max((float(v[np.isfinite(v)].max()) for v in values if np.isfinite(v).any()), default=0.0)
    return cap if top > cap else None


def _lines(ax: Axes, s: Summary, column: str, axis: str, floor: float | None, cap: float | None) -> None:
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
            end = min(by, cap) if cap is not None else by
            (cross,) = ax.plot([bx], [end], "x", color=c, markersize=8, markeredgewidth=2, zorder=5, clip_on=False)
            cross.set_gid(f"{gid}-break{i}")


def _plot(s: Summary, metric: Metric, axis: str, legend: bool) -> Figure:
    fig, ax = _figure(*PANEL)
    runs = [r for m in s.methods for r in m.runs]
    floor = log_floor(runs, [metric.column])
    log = floor is not None
    cap = None if metric.percent else _cap(runs, [metric.column], log)
    _lines(ax, s, metric.column, axis, floor, cap)
    _y_axis(ax, metric, log)
    _x_axis(ax, axis)
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
    if legend and len(s.methods) > 1:
        _legend(fig, s.methods)
    return fig


def band_words(s: Summary) -> str:
    """What the bands of the curves are."""
    counts = {len(m.runs) for m in s.methods}
    if counts == {1}:
        return "One seed a method, so there are no bands."
    t, r = max(counts) >= BAND_SEEDS, min(counts) < BAND_SEEDS
    bands = {
        (True, False): "the band its 95 % t interval",
        (False, True): f"the band the range from the lowest to the highest seed (fewer than {BAND_SEEDS} seeds)",
        (True, True): f"the band its 95 % t interval, with fewer than {BAND_SEEDS} seeds the range",
    }
    text = f"Line: the mean over seeds; {bands[t, r]}."
    ends = [{float(x.round[-1]) for x in m.runs} for m in s.methods]
    if any(len(e) > 1 for e in ends) or any(x.diverged for m in s.methods for x in m.runs):
        text += " Thin lines: single seeds that diverged or go on after others have ended."
    return text


def _curve_drawing(s: Summary, metric: Metric, axis: str) -> Drawing:
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
    if floor is not None:
        notes.append("Log axis; mean taken in logarithms.")
    if not metric.percent and _cap(runs, [metric.column], floor is not None) is not None:
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


def _final(s: Summary, legend: bool) -> Figure:
    del legend  # the rows are named
    fig, ax = _figure(PANEL[0], 0.75 + 0.36 * len(s.rows))
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
        if row.final.n > 1:
            ax.plot([row.final.low, row.final.high], [i, i], color=c, linewidth=2.2, alpha=0.55, zorder=2)
        ax.plot(seeds, [i] * len(seeds), "o", color=c, markersize=3, alpha=0.6, markeredgewidth=0, zorder=3)
        ax.plot([row.final.mean], [i], marker, color=c, markersize=6.5, markeredgecolor="white", zorder=4)
    _label_rows(ax, [r.name for r in s.rows], notes)
    ax.set_xlabel(f"final {s.primary.title}" + (" (%)" if s.primary.percent else ""))
    if s.primary.log and dots:
        ax.set_xscale("log")
        low, high = max(min(dots), FLOOR), max(dots)
        pad = max(2.0, (high / low) ** 0.12)
        ax.set_xlim(low / pad, high * pad)
        ax.xaxis.set_major_formatter(FuncFormatter(_decades))
        ax.xaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
    elif dots:
        span = (max(dots) - min(dots)) or 0.01
        ends = [e for r in s.rows for e in (r.final.low, r.final.high) if math.isfinite(e)] or dots
        left, right = (max(min(ends), min(dots) - span / 2), min(max(ends), max(dots) + span / 2))
        ax.set_xlim(min([left, *dots]) - 0.05 * span, max([right, *dots]) + 0.05 * span)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        if s.primary.percent:
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}"))
    return fig


def lead_words(metric: Metric, v: float) -> str:
    """A lead on the averaging scale: points, a factor or a difference."""
    if metric.percent:
        return f"{100 * v:.2f}"
    return compact(10.0**v) if metric.log else compact(v)


def _leads(s: Summary, legend: bool) -> Figure:
    del legend
    cs = s.verdict.comparisons
    fig, ax = _figure(PANEL[0], 0.75 + 0.36 * len(cs))
    f: Callable[[float], float] = (lambda v: 10.0**v) if s.primary.log else (lambda v: v)
    unit = 100 if s.primary.percent else 1
    notes = []
    for i, c in enumerate(cs):
        colour, _, marker = look(s.method(c.name).index)
        ax.plot([unit * f(c.lead.low), unit * f(c.lead.high)], [i, i], color=colour, linewidth=2.2, alpha=0.55)
        face = colour if c.separated else "white"
        ax.plot([unit * f(c.lead.mean)], [i], marker, color=colour, markersize=6.5, markerfacecolor=face, zorder=4)
        low, high = lead_words(s.primary, c.lead.low), lead_words(s.primary, c.lead.high)
        notes.append(f"{lead_words(s.primary, c.lead.mean)} [{low}, {high}]")
    ax.axvline(unit * f(0.0), color=INK, linewidth=0.9, zorder=1)
    _label_rows(ax, [f"over {c.name}" for c in cs], notes)
    means = [c.lead.mean for c in cs]
    ends = [v for c in cs for v in (c.lead.low, c.lead.high)]
    room = 1.5 * max(max(map(abs, means)), 1e-9)  # a wide interval (two seeds) runs out of the frame, not the points
    left, right = max(min([0.0, *ends]), -room), min(max([0.0, *ends]), max(means) + room)
    pad = 0.06 * (right - left) or 1e-6
    if s.primary.log:
        ax.set_xscale("log")
        ax.set_xlim(f(left - pad), f(right + pad))
        ax.xaxis.set_major_formatter(FuncFormatter(_decades))
        ax.xaxis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
        ax.set_xlabel(f"how many times smaller the final {s.primary.title} of {s.method(s.verdict.top or '').short} is")
    else:
        ax.set_xlim(unit * (left - pad), unit * (right + pad))
        what = "points" if s.primary.percent else s.primary.title
        ax.set_xlabel(f"lead of {s.method(s.verdict.top or '').short} ({what})")
    return fig


def partition_order(counts: Array) -> NDArray[np.intp]:
    """Clients by their most common class, the purest first: [N] indices."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.lexsort((-share.max(1), counts.argmax(1)))


def partition(counts: Array, names: Sequence[str], sizes: Array | None = None, what: str = "class") -> Figure:
    """A heat map of clients by classes, or by what else `names` [C] are, from counts [N, C], below the clients' sizes.

    Sizes [N] are the sums of the counts if none are given. Readable for some to thousands of clients.
    """
    order = partition_order(counts)
    sizes = (counts.sum(1) if sizes is None else sizes)[order]
    counts = counts[order]
    n, classes = counts.shape
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    fig = Figure(figsize=(WIDE, 1.35 + min(3.2, max(1.3, 0.19 * classes))), layout="constrained")
    FigureCanvasAgg(fig)
    grid = fig.add_gridspec(2, 2, height_ratios=(0.65, min(3.2, max(1.3, 0.19 * classes))), width_ratios=(1, 0.012))
    top, ax = fig.add_subplot(grid[0, 0]), fig.add_subplot(grid[1, 0])
    edges = np.arange(n + 1) - 0.5
    top.stairs(sizes, edges, fill=True, color="#7d8b99")
    top.set_ylabel("samples")
    top.set_xticks([])
    top.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    top.set_xlim(-0.5, n - 0.5)
    top.grid(axis="x", visible=False)
    few = n * classes <= 1500
    if few:
        image: Any = ax.pcolormesh(
            edges, np.arange(classes + 1) - 0.5, share.T, cmap="Blues", vmin=0, vmax=1, edgecolor="white",
            linewidth=0.6 if n <= 100 else 0.2,
        )  # fmt: skip
    else:  # whole pixels a cell, so that no browser blurs one client into the next
        wide, tall = math.ceil(1600 / n), math.ceil(300 / classes)
        cells = np.repeat(np.repeat(share.T, tall, axis=0), wide, axis=1)
        image = ax.imshow(
            cells, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="none", origin="lower",
            extent=(-0.5, n - 0.5, -0.5, classes - 0.5),
        )  # fmt: skip
    ax.grid(visible=False)
    ax.set_ylim(classes - 0.5, -0.5)
    step = math.ceil(classes / 20)
    ax.set_yticks(range(0, classes, step), [wrap(c, 14, 1) for c in names[::step]])
    ax.set_ylabel(what)
    if n <= 60:
        ax.set_xticks(range(n), [str(i) for i in order], fontsize=6.5 if n <= 40 else 5.2)
        ax.set_xlabel(f"client, sorted by its most common {what}")
    else:
        ax.set_xticks([])
        ax.set_xlabel(f"{n} clients, sorted by their most common {what}")
    ax.tick_params(length=0)
    bar = fig.colorbar(image, cax=fig.add_subplot(grid[1, 1]), ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0", "50", "100"])
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label("% of its data", fontsize=7)
    bar.outline.set_visible(False)
    return fig


def _partition(run: Run) -> Figure:
    assert run.counts is not None
    return partition(run.counts, run.classes)


def _models(s: Summary, legend: bool) -> Figure:
    names = list(dict.fromkeys(r.name for r in s.second))
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    fig = Figure(figsize=(WIDE if columns > 1 else PANEL[0], 0.5 + 1.75 * rows), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    runs = [r for n in names for r in s.method(n).runs]
    keys = [s.primary.column] + [f"{r.model}:{s.primary.column}" for r in s.second]
    floor = log_floor(runs, keys)
    log = floor is not None
    cap = None if s.primary.percent else _cap(runs, keys, log)
    for ax, name in zip(axes, names, strict=False):
        m = s.method(name)
        c = look(m.index).colour
        first, *others = m.runs[0].head.models
        k = curve(m.runs, s.primary.column, "round", floor)
        ax.plot(k.x, k.mid, color=c, linewidth=1.5, label=f"{first} (its answer)")
        for j, model in enumerate(others):
            k = curve(m.runs, f"{model}:{s.primary.column}", "round", floor)
            ax.plot(k.x, k.mid, color=INK, linewidth=0.9, linestyle=(0, (3 + 2 * j, 1.5)), label=model)
        _y_axis(ax, s.primary, log)
        ax.set_ylabel("")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.set_xlim(left=0)
        ax.set_title(wrap(name, 36 if columns == 3 else 48, 2), fontsize=7.5, loc="left")
        ax.legend(fontsize=6.5, loc="best", handlelength=2.2)
        if cap is not None:
            ax.set_ylim(top=cap)
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    fig.supxlabel("round", fontsize=8)
    fig.supylabel(s.primary.title + (" (%)" if s.primary.percent else ""), fontsize=8)
    return fig


def _partition_words(run: Run) -> str:
    assert run.counts is not None
    sizes = run.counts.sum(1)
    held = (run.counts > 0).sum(1)
    share = np.median(run.counts.max(1)[sizes > 0] / sizes[sizes > 0]) if np.any(sizes > 0) else 0.0
    return (
        f"The median client holds {np.median(sizes):g} samples (from {sizes.min():g} to {sizes.max():g}) of "
        f"{np.median(held):g} of the {run.counts.shape[1]} classes; its most common class makes up {100 * share:.0f} %."
    )


def drawings(s: Summary) -> dict[str, list[Drawing]]:
    """Section -> its figures: 'ranking', 'round', 'bytes', 'gradient_steps', 'simulated_seconds', 'models' ..."""
    out: dict[str, list[Drawing]] = {"ranking": []}
    if len(s.methods) > 1:
        order = ", ".join(f"{r.name} {value(s.primary, r.final.mean)}" for r in s.rows)
        many = any(r.final.n > 1 for r in s.rows)
        dots = (
            "Dots: single seeds; large mark: mean; bar: 95 % t interval over seeds, cut at the frame." if many else ""
        )
        out["ranking"].append(
            Drawing(
                "final",
                f"Final {s.primary.title} of each method, best first: {order}.",
                f"Final {s.primary.title}, {'' if many else 'one seed, '}best first. {dots}".strip(),
                False,
                lambda legend: _final(s, legend),
            )
        )
    if s.verdict.comparisons:
        order = ", ".join(
            f"{c.name} {lead_words(s.primary, c.lead.mean)} ({'separated' if c.separated else 'not separated'})"
            for c in s.verdict.comparisons
        )
        unit = "factor" if s.primary.log else "points" if s.primary.percent else "difference"
        out["ranking"].append(
            Drawing(
                "lead",
                f"Lead of {s.verdict.top} over each other method, {unit}: {order}.",
                f"Lead of {s.verdict.top}, paired by seed, with its 95 % t interval. Filled: separated after Holm's "
                "correction; hollow: not.",
                False,
                lambda legend: _leads(s, legend),
            )
        )
    metrics = [s.primary, *([s.loss] if s.loss else [])]
    usable = [r for m in s.methods for r in m.runs]
    for axis in (*AXES, "simulated_seconds"):
        moves = axis == "round" or any(r.axis(axis).size and np.nanmax(r.axis(axis)) > 0 for r in usable)
        out[axis] = [_curve_drawing(s, m, axis) for m in metrics] if moves else []
    out["models"] = []
    if s.second:
        names = ", ".join(dict.fromkeys(r.name for r in s.second))
        out["models"].append(
            Drawing(
                "models",
                f"{s.primary.title.capitalize()} against rounds of every model that these methods offer: {names}.",
                "Solid: the model that the method answers with; dashed: the other it offers"
                + ("; means over seeds." if any(len(m.runs) > 1 for m in s.methods) else "."),
                len({r.name for r in s.second}) > 1,
                lambda legend: _models(s, legend),
            )
        )
    out["partition"] = []
    drawn = min((r for r in usable if r.counts is not None), key=lambda r: r.head.seed, default=None)
    if drawn is not None:
        words = _partition_words(drawn)
        seeds = {r.head.seed for r in usable}
        seed = f" Drawn: seed {drawn.head.seed}; other seeds draw theirs by the same rule." if len(seeds) > 1 else ""
        chosen = drawn
        out["partition"].append(
            Drawing(
                "partition",
                f"Heat map of clients by classes for {drawn.head.partition}. {words}",
                f"{words} Colour: the share of a client's data that is of a class; grey: how much it holds.{seed}",
                True,
                lambda legend: _partition(chosen),
            )
        )
    known = {m.column for m in metrics}
    columns = dict.fromkeys(c for r in usable for c in r.metrics if ":" not in c and c not in known)
    out["more"] = [_curve_drawing(s, metric_of(c), "round") for c in columns]
    return out


def _laid_out(fig: Figure) -> Figure:
    """The figure with its layout found once; every save after it would find the same one again, slowly."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    return fig


def to_files(fig: Figure) -> tuple[bytes, bytes]:
    """(SVG, PNG): text as outlines, no date, so that a file looks and reads the same anywhere."""
    svg, png = io.BytesIO(), io.BytesIO()
    _laid_out(fig)
    fig.savefig(svg, format="svg", metadata={"Date": None, "Creator": "fedconcord"})
    fig.savefig(png, format="png", dpi=160, metadata={"Software": "fedconcord"})
    return svg.getvalue(), png.getvalue()


def to_inline(fig: Figure, prefix: str, alt: str) -> str:
    """An <svg> element for the page: text stays text in the page's font, ids are the figure's own."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        _laid_out(fig).savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: inherit", svg)
    svg = re.sub(r"(font: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", svg)
    tag, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', tag)
    assert box is not None
    label = alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return f'<svg {box[0]} role="img" aria-label="{label}">{rest.strip()}'
