"""Average ranks with the critical difference: the diagram of Demsar (2006), figure 1."""

from __future__ import annotations

from matplotlib.figure import Figure

from fedconcord.report.figures.drawing import Drawing
from fedconcord.report.figures.style import INK, MUTED, WIDE, panel
from fedconcord.report.format import wrap
from fedconcord.report.ranks import Ranks
from fedconcord.report.stats import ALPHA


def critical(r: Ranks) -> Drawing:
    """The ranks on one axis; thick lines join what the test does not tell apart, where there are data sets enough."""
    order = ", ".join(f"{name} {rank:.2f}" for name, rank in zip(r.methods, r.average, strict=True))
    joined = f"Thick lines join methods that differ by less than the critical difference (Nemenyi, {ALPHA:g})."
    return Drawing(
        "ranks",
        f"Average ranks of {len(r.methods)} methods over {len(r.data)} data sets: {order}.",
        f"Average ranks over {len(r.data)} data sets; 1 is the best. {joined if r.enough else ''}".strip(),
        True,
        lambda legend: _critical(r),
    )


def _critical(r: Ranks) -> Figure:
    k = len(r.methods)
    left = (k + 1) // 2  # the better half is named at the left
    groups = r.groups if r.enough else []
    top = 0.35 + 0.14 * len(groups)  # of the names
    rows = max(left, k - left)
    fig, ax = panel(WIDE, 1.1 + 0.26 * rows + 0.14 * len(groups))
    ax.set_axis_off()
    ax.grid(visible=False)
    ax.plot([1, k], [0, 0], color=INK, linewidth=1)
    for rank in range(1, k + 1):
        ax.plot([rank, rank], [0, -0.1], color=INK, linewidth=1)
        ax.annotate(str(rank), (rank, -0.1), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7.5)
    out = 0.06 * (k - 1)
    for i, (name, average) in enumerate(zip(r.methods, r.average, strict=True)):
        first = i < left
        y = top + 0.26 * (i if first else k - 1 - i)
        end = 1 - out if first else k + out
        ax.plot([average, average, end], [0, y, y], color=MUTED, linewidth=0.9)
        text = f"{wrap(name, 40, 1)}  {average:.2f}"
        ax.annotate(
            text, (end, y), (-3 if first else 3, 0), textcoords="offset points", ha="right" if first else "left",
            va="center", fontsize=8,
        )  # fmt: skip
    for row, (i, j) in enumerate(groups):
        y = 0.16 + 0.14 * row
        ax.plot([r.average[i] - 0.02, r.average[j] + 0.02], [y, y], color=INK, linewidth=3, solid_capstyle="butt")
    if r.enough:
        ax.plot([1, 1 + r.critical], [-0.55, -0.55], color=INK, linewidth=1, marker="|", markersize=6)
        ax.annotate(
            f"critical difference {r.critical:.2f}", (1 + r.critical / 2, -0.55), (0, 3), textcoords="offset points",
            ha="center", va="bottom", fontsize=7.5,
        )  # fmt: skip
    ax.set_ylim(top + 0.26 * rows, -0.85 if r.enough else -0.4)
    ax.set_xlim(1 - 0.45 * (k - 1), max(k + 0.45 * (k - 1), 1.1 + r.critical))
    return fig
