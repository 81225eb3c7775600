"""Draw the picture of docs/threats.md: what a curious server, a lying one, and two sites that agree come to.

python docs/generate/threats.py docs/threats.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, RED, GREY = "#1f5fa8", "#b3261e", "#5f6368"
PANELS = (  # title, the server, who is hostile, what passes between server and sites, what comes of it
    (
        "A curious server",
        "server\nfollows the protocol",
        (),
        ("m1", "m2", "m3"),
        """Reads every message: samples can be rebuilt.

secure.clip: it gets m1 + m2 + m3 alone.
kind=local, unit=sample, unit=person:
what it reads has the sites' own noise.""",
    ),
    (
        "A lying server",
        "server\nlies",
        ("server",),
        ("?", "?", "?"),
        """Asks for other columns, other models, again
and again; makes up jobs, sites and keys.

The gate of each site: every answer once, by
agreed rows, under its policy, in its ledger.
Pinned keys and one signed list of who is in.""",
    ),
    (
        "Two sites that agree",
        "server\nlies with them",
        ("server", "0", "1"),
        ("share", "share", "m3 + mask"),
        """Of n sites with threshold t, t open a mask;
with a server that tells two lists 2t - n do.

Fewer get nothing but the sum, from which
they take their own part: with n = 3 that is m3.
Where that is too much: kind=local, no masks.""",
    ),
)


def box(ax: Axes, x: float, y: float, text: str, hostile: bool) -> None:
    colour = RED if hostile else BLUE
    style = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": colour, "linewidth": 1.6}
    ax.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, bbox=style)


def panel(ax: Axes, title: str, server: str, hostile: tuple[str, ...], words: tuple[str, ...], below: str) -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")
    ax.text(0.5, 0.985, title, ha="center", va="top", fontsize=11, weight="bold", color="black")
    box(ax, 0.5, 0.83, server, "server" in hostile)
    for k, word in enumerate(words):
        x = 0.16 + 0.34 * k
        box(ax, x, 0.47, f"site {k + 1}", str(k) in hostile)
        ax.annotate("", (0.5 + 0.13 * (k - 1), 0.755), (x, 0.525), arrowprops={"arrowstyle": "<->", "color": GREY})
        middle = (x + 0.5 + 0.13 * (k - 1)) / 2
        ax.text(middle, 0.64, word, ha="center", va="center", fontsize=8, color=GREY,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    ax.text(0.02, 0.37, below, ha="left", va="top", fontsize=8.2, color="black", linespacing=1.35)


def main(path: Path) -> None:
    with rc_context({"svg.hashsalt": "fedconcord", "svg.fonttype": "none"}):
        fig = Figure(figsize=(11, 3.9), facecolor="white", layout="constrained")
        for ax, one in zip(fig.subplots(1, 3), PANELS, strict=True):
            panel(ax, *one)
        fig.savefig(path, metadata={"Date": None, "Creator": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/generate/threats.py FILE.svg")
    main(Path(sys.argv[1]))
