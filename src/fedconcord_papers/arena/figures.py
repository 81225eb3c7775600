"""The performance profile: the share of federations within a factor of the best tuned method's rounds.

Dolan and More, Benchmarking optimization software with performance profiles, Mathematical Programming 91 (2002).
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedconcord.insight.report.figures.style import MUTED, WIDE, Drawing, look, panel
from fedconcord.study.statistics.format import wrap
from fedconcord_papers.arena.standing import FAR, NEAR, Standing, Table

WIDEST = 16.0  # times the best: further to the right nobody looks


def profile(table: Table, indices: dict[str, int]) -> Drawing:
    """A line a method; `indices` give the methods their looks."""
    judged = max((s.judged for s in table.standings), default=0)
    stands = "; ".join(f"{s.label} {s.near} of {s.judged} within {NEAR:g}" for s in table.standings)
    return Drawing(
        f"profile-{table.role}",
        f"Share of federations within a factor of the best tuned method's rounds to the target: {stands}.",
        f"{judged} federations, role {table.role}: where a line is at a factor, that share of them the method finished "
        f"within so many times the rounds of the best tuned method. Dotted: {NEAR:g} and {FAR:g}.",
        True,
        lambda legend: _profile(table, indices),
    )


def _profile(table: Table, indices: dict[str, int]) -> Figure:
    fig, ax = panel(WIDE, 3.4)
    finite = [ratio for s in table.standings for ratio in s.ratios if math.isfinite(ratio)]
    end = min(max([2.5, *finite]) * 1.05, WIDEST)
    start = min([1.0, *finite])
    handles = []
    for s in table.standings:
        colour, dash, marker = look(indices[s.label])
        x, y = steps(s)
        ax.step([start, *x, end], [0, *y, y[-1] if y else 0], where="post", color=colour, linestyle=dash, linewidth=1.5)
        handles.append(
            Line2D([], [], color=colour, linestyle=dash, marker=marker, markersize=4, label=wrap(s.label, 28))
        )
        ax.plot(x, y, linestyle="none", color=colour, marker=marker, markersize=4, markeredgecolor="white")
    for factor in (NEAR, FAR):
        ax.axvline(factor, color=MUTED, linewidth=0.8, linestyle=":")
    ax.set_xscale("log")
    ax.set_xlim(start * 0.98, end)
    ticks = [tick for tick in (0.5, 0.75, 1, NEAR, 1.5, FAR, 3, 4, 6, 8, 12, 16) if start * 0.98 <= tick <= end]
    ax.set_xticks(ticks)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("times the rounds of the best tuned method")
    ax.set_ylabel("share of federations (%)")
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.set_ylim(-0.02, 1.02)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f}"))
    fig.legend(handles=handles, loc="outside right upper", fontsize=7.5, handlelength=4)
    return fig


def steps(s: Standing) -> tuple[list[float], list[float]]:
    """Where the line of a method rises, and to what share."""
    x = sorted({ratio for ratio in s.ratios if math.isfinite(ratio)})
    return x, [float(np.mean([ratio <= at for ratio in s.ratios])) for at in x]
