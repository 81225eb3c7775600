"""What the recipes share: a run as arrays, figures in the report's style, tables as CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from fedconcord.execution.job import Job, train
from fedconcord.insight.report.curves import POINTS
from fedconcord.insight.report.figures.style import WIDE, look, styled
from fedconcord.study.statistics.format import superscript
from fedconcord.study.statistics.load import Array
from fedconcord.support import files

LETTERS = 120  # of titles side by side in a row of panels


class Track(NamedTuple):
    """One metric of a run by round, up to where it stopped."""

    round: Array  # [P]
    value: Array  # [P]
    gradients: Array  # [P] mini-batch gradients of all clients, cumulative


def track(job: Job, rounds: int, metric: str, *, every: int = 1, goal: float = -math.inf, cap: float = 1e12) -> Track:
    """Run to `rounds` rounds, or until the metric is at most the goal, above the cap or not finite."""
    rows = []
    for row in train(job, rounds, eval_every=every):
        if row.metrics is None:
            continue
        value = row.metrics[metric]
        if not value < cap:
            break
        rows.append((row.round, value, row.gradient_steps))
        if value <= goal:
            break
    return Track(*np.array(rows, np.float64).T)


@contextmanager
def panels(out: Path, name: str, titles: Sequence[str], height: float = 3.1) -> Iterator[list[Axes]]:
    """Axes side by side in the report's style, written to NAME.png and NAME.svg on leaving."""
    with styled():
        fig = Figure(figsize=(WIDE, height), layout="constrained")
        FigureCanvasAgg(fig)
        axes = list(np.atleast_1d(fig.subplots(1, len(titles))))
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(textwrap.fill(title, LETTERS // len(titles)), fontsize=8.5, loc="left")
        yield axes
        handles: dict[str, Any] = {}
        for ax in axes:
            handles |= {label: h for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
            for scale, axis, (low, high) in (
                (ax.get_xscale(), ax.xaxis, ax.get_xlim()),
                (ax.get_yscale(), ax.yaxis, ax.get_ylim()),
            ):
                if scale == "linear":
                    continue
                if axis is ax.yaxis and scale == "log" and high < 300 * low:  # too few decades to read values from
                    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(FuncFormatter(_power))
                axis.set_minor_formatter(FuncFormatter(lambda v, _: ""))
        if handles:
            columns = min(len(handles), int(WIDE / (0.75 + 0.07 * max(map(len, handles)))))
            fig.legend(handles.values(), handles, loc="outside lower left", ncols=columns, fontsize=7.5, handlelength=3)
        out.mkdir(parents=True, exist_ok=True)
        fig.savefig(out / f"{name}.png", dpi=160)
        fig.savefig(out / f"{name}.svg", metadata={"Date": None})


def _power(v: float, _: object = None) -> str:
    """10⁻³ for a power of ten far from 1, else the number."""
    if not 1e-2 <= v <= 1e3 and v > 0 and math.isclose(v, 10.0 ** round(math.log10(v)), rel_tol=1e-9):
        return f"10{superscript(round(math.log10(v)))}"
    return f"{v:g}"


def line(ax: Axes, index: int, x: Array, y: Array, label: str, **style: Any) -> None:
    """A method's line in its colour, dash and marker; at most 500 points."""
    colour, dash, marker = look(index)
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).round().astype(int))
    x, y = x[keep], y[keep]
    options: dict[str, Any] = {"linestyle": dash, "marker": marker, "markersize": 4, "linewidth": 1.4}
    step = max(1, len(x) // 7)
    options |= {"markevery": (index * step // 4, step), "markeredgecolor": "white", "markeredgewidth": 0.5}
    ax.plot(x, y, color=colour, label=label, **options | style)


def table(out: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """NAME.csv with the rows' keys as columns."""
    out.mkdir(parents=True, exist_ok=True)
    files.write_csv(out / f"{name}.csv", list(rows[0]), rows)
