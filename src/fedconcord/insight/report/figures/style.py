"""How every figure looks: colours, dashes and markers of the methods, axes, the legend; and its forms: SVG, PNG and PDF
files, an element of the page.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedconcord.study.statistics.format import decades, quantity, size, wrap
from fedconcord.study.statistics.metric import Metric
from fedconcord.study.statistics.summary import Method

INK, MUTED, RULE = "#1b1f24", "#5b6570", "#d9dee3"
# Okabe & Ito, told apart by all
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#3B3B3B")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*")
PANEL = (4.4, 3.1)  # inches, one of two columns of the page
WIDE = 8.9  # inches, both columns
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
    "pdf.fonttype": 3,  # TrueType (42) takes three times as long
    "path.simplify": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """While figures are drawn: a user's matplotlibrc must not change them."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


class Look(NamedTuple):
    """How a method is drawn, everywhere."""

    colour: str
    dash: Any
    marker: str


def look(index: int) -> Look:
    """The look of the method with this index; no two of the first 84 share it."""
    n = len(COLOURS)
    return Look(COLOURS[index % n], DASHES[index // n % len(DASHES)], MARKERS[index % len(MARKERS)])


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; sizes in inches."""
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.add_subplot()


def log_scale(ax: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with powers of ten as labels; with 1, 2 and 5 times these where it has less than two decades,
    which would leave one label or none."""
    ax.set_xscale("log") if which == "x" else ax.set_yscale("log")
    axis = ax.xaxis if which == "x" else ax.yaxis

    def is_short() -> bool:
        low, high = axis.get_view_interval()
        return bool(high < 100 * low)

    def between(value: float, _: int) -> str:
        return f"{value:g}" if is_short() and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(FuncFormatter(lambda value, at: f"{value:g}" if is_short() else decades(value, at)))
    axis.set_minor_formatter(FuncFormatter(between))


def percent_ticks(ax: Axes, which: Literal["x", "y"], form: str = "g") -> None:
    """Labels in percent of an axis of shares."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda v, _: format(100 * v, form)))


def y_axis(ax: Axes, metric: Metric, log: bool = False, title: str | None = None) -> None:
    """Title, scale and tick labels of a metric's values; `title` in place of the metric's own."""
    ax.set_ylabel(metric.label(title))
    if log:
        log_scale(ax, "y")
    elif metric.percent:
        percent_ticks(ax, "y")


def cut_below(ax: Axes, low: float) -> None:
    """Begin the axis of values at `low`, with the two strokes of a broken axis at its foot; its top keeps the margin
    that what is left asks for."""
    high = max(one.dataLim.y1 for one in ax.get_shared_y_axes().get_siblings(ax))
    ax.set_ylim(low, high + 0.04 * (high - low))
    for up in (0.015, 0.035):
        ax.plot(
            [-0.012, 0.012], [up - 0.008, up + 0.008], transform=ax.transAxes, color=INK, linewidth=0.9, clip_on=False,
            zorder=6,
        )  # fmt: skip


def x_axis(ax: Axes, axis: str) -> None:
    """Title and tick labels of what the curves run against."""
    ax.set_xlabel(AXIS_TITLES[axis])
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=axis == "round"))
    if axis != "round":
        formatter = size if axis == "bytes" else quantity
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: formatter(v) if v else "0"))


def legend_below(fig: Figure, methods: Sequence[Method]) -> None:
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


# -- its forms -------------------------------------------------------------------------------------------------------


class Drawing(NamedTuple):
    """A figure of the report. `draw(True)` has its own legend, for a file; `draw(False)` leaves that to the page."""

    name: str
    alt: str
    caption: str
    wide: bool
    draw: Callable[[bool], Figure]


def drawing(
    name: str,
    alt: str,
    caption: str,
    plot: Callable[[Axes], object],
    *,
    size: tuple[float, float] = PANEL,
    beside: bool = False,
    below: Sequence[Method] = (),
) -> Drawing:
    """A figure of one pair of axes, `size` in inches: what `plot` draws, with a legend where that has labels.

    Args:
        beside: the page names what is drawn beside it, so that only a file has the legend, and of one line none has.
        below: methods that a file names below the axes.
    """

    def draw(in_file: bool) -> Figure:
        fig, ax = panel(*size)
        plot(ax)
        labels, least = len(ax.get_legend_handles_labels()[1]), 2 if beside else 1
        if labels >= least and (in_file or not beside):
            ax.legend(fontsize=6.5)
        if in_file and len(below) > 1:
            legend_below(fig, below)
        return fig

    return Drawing(name, alt, caption, size[0] == WIDE, draw)


def _laid_out(fig: Figure) -> Figure:
    """The figure with its layout found once; every save after it would find the same one again, slowly."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    return fig


METADATA: dict[str, dict[str, Any]] = {  # without dates: the same figure is the same bytes
    "svg": {"Date": None, "Creator": "fedconcord"},
    "png": {"Software": "fedconcord"},
    "pdf": {"CreationDate": None, "Creator": "fedconcord", "Producer": None},
}


def to_files(fig: Figure) -> dict[str, bytes]:
    """A figure by the suffix of its file: svg with text as outlines, png, pdf; each looks the same anywhere."""
    files = {}
    _laid_out(fig)
    for suffix, metadata in METADATA.items():
        buffer = io.BytesIO()
        fig.savefig(buffer, format=suffix, dpi=160, metadata=metadata)
        files[suffix] = buffer.getvalue()
    return files


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
