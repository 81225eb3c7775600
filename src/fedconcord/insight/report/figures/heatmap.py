"""Who holds what: clients by classes, as a figure of a report and as a partition that is written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedconcord.federation.partitions.describe import PLURAL, Description, summary
from fedconcord.insight.report.figures.style import WIDE, Drawing, styled, to_files
from fedconcord.study.statistics.format import percent, span, wrap
from fedconcord.study.statistics.load import Array, Run
from fedconcord.support import files

MEANING = (
    "Entropy: of a client's shares p_i. Distance: sum over {} of |p_i - p|, p the shares of all clients together, the "
    "earth mover's distance of Zhao et al. (2018); half of it is the total variation."
)


def partitions(runs: Sequence[Run]) -> list[Drawing]:
    """The partition of the lowest seed, where one is recorded."""
    run = min((r for r in runs if r.counts is not None), key=lambda r: r.head.seed, default=None)
    if run is None:
        return []
    counts, classes = run.counts, run.classes
    assert counts is not None
    sizes, several = counts.sum(1), (counts > 0).sum(1)
    share = np.median(counts.max(1)[sizes > 0] / sizes[sizes > 0]) if np.any(sizes > 0) else 0.0
    words = (
        f"The median client holds {np.median(sizes):g} samples (all clients: {span(sizes)}) of "
        f"{np.median(several):g} of the {len(classes)} classes; its most common class makes up {percent(share)}."
    )
    seeds = {r.head.seed for r in runs}
    seed = f" Drawn: seed {run.head.seed}; other seeds draw theirs by the same rule." if len(seeds) > 1 else ""
    return [
        Drawing(
            "partition",
            f"Heat map of clients by classes for {run.head.partition}. {words}",
            f"{words} Colour: the share of a client's data that is of a class; grey: how much it holds.{seed}",
            True,
            lambda in_file: partition(counts, classes),
        )
    ]


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


def write_description(folder: Path, description: Description, title: str) -> Path:
    """Write partition.md, partition.png|svg|pdf and clients.csv into a folder; the path of the first.

    clients.csv has a line a client: its number, samples, entropy (bits), distance (0 to 2) and the samples of each
    column.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts, sizes = description.counts.astype(float), description.sizes.astype(float)
    with styled():
        forms = to_files(partition(counts, description.names, sizes, description.what))
    for suffix, content in forms.items():
        files.write_bytes(folder / f"partition.{suffix}", content)
    header = ["client", "samples", "entropy", "distance", *(f"{description.what} {name}" for name in description.names)]
    rows = zip(description.sizes, description.entropy, description.distance, description.counts, strict=True)
    cells = [[i, int(n), float(bits), float(far), *map(int, row)] for i, (n, bits, far, row) in enumerate(rows)]
    files.write_csv(folder / "clients.csv", header, cells)
    lines = [f"# {title}", "", "| quantity | value |", "|:--|:--|"]
    lines += [f"| {quantity} | {value} |" for quantity, value in summary(description)]
    lines += ["", "![Clients by what they hold](partition.png)", "", MEANING.format(PLURAL[description.what])]
    lines += ["Each client: `clients.csv`.", ""]
    files.write_text(folder / "partition.md", "\n".join(lines))
    return folder / "partition.md"
