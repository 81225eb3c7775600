"""Sensitivity: the metric of every trial against each parameter of its method."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedconcord.report.figures import Drawing
from fedconcord.report.figures.style import INK, MUTED, look, panel, y_axis
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.results import Edge, MethodSearch, extend_words, shown

SIZE = (4.4, 2.5)  # inches, one of two columns of the page


def sensitivity(tuning: Tuning, search: MethodSearch, index: int, edges: list[Edge]) -> list[Drawing]:
    """A figure a parameter of a method; `index` gives its colour, as in the final comparison."""
    at = {edge.key: edge for edge in edges}
    return [_drawing(tuning, search, index, key, at.get(key)) for key in search.space.places]


def _drawing(tuning: Tuning, search: MethodSearch, index: int, key: str, edge: Edge | None) -> Drawing:
    metric = tuning.objective.metric
    best = search.best
    stands = "" if best is None else f" Best: {key} {best.values[key]:g}, {shown(tuning.objective, best.last)}."
    extend = "" if edge is None else f" {extend_words(edge)}"
    return Drawing(
        name=f"{search.space.method}-{key}",
        alt=f"{metric.title} of {len(search.trials)} trials of {search.space.method} against {key}.{stands}",
        caption=f"{search.space.method}.{stands}{extend}",
        wide=False,
        draw=lambda legend: _plot(tuning, search, index, key, edge),
    )


def _plot(tuning: Tuning, search: MethodSearch, index: int, key: str, edge: Edge | None) -> Figure:
    fig, ax = panel(*SIZE)
    metric, place, first = (
        tuning.objective.metric,
        search.space.places[key],
        tuning.rungs[search.space.method][0].rounds,
    )
    colour, _, marker = look(index)
    whole = [trial for trial in search.trials if not trial.scores[first].broken]
    early = sorted((trial.values[key], trial.scores[first].value) for trial in whole)
    is_single = len(search.space.places) == 1  # else neighbours on this axis differ in the others
    ax.plot([x for x, _ in early], [y for _, y in early], **_look(colour, marker, "white", 0.9 if is_single else 0.0))
    late = [trial for trial in whole if trial.rounds > first and not trial.last.broken]
    for trial in late:
        x = trial.values[key]
        ax.plot([x, x], [trial.scores[first].value, trial.last.value], color=colour, linewidth=0.7, alpha=0.6)
        ax.plot([x], [trial.last.value], **_look(colour, marker, colour, 0.0))
    if search.best is not None:
        x, y = search.best.values[key], search.best.last.value
        ax.plot([x], [y], "o", markersize=10, markerfacecolor="none", markeredgecolor=INK, zorder=5)
    if place.scale == "log":
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    y_axis(ax, metric, metric.log)
    ax.set_xlabel(key)
    lost = [trial.values[key] for trial in search.trials if trial.last.broken]
    bottom = ax.get_xaxis_transform()
    ax.plot(lost, [0.03] * len(lost), "x", color=colour, transform=bottom, clip_on=False, markersize=5)
    if edge is not None:
        ax.axvline(edge.range.low if edge.side == "low" else edge.range.high, color=MUTED, linewidth=0.9, linestyle=":")
    ax.margins(x=0.08, y=0.12)
    return fig


def _look(colour: str, marker: str, fill: str, width: float) -> dict[str, Any]:
    return {
        "color": colour, "linewidth": width, "marker": marker, "markersize": 4.5,
        "markerfacecolor": fill, "markeredgecolor": colour, "markeredgewidth": 0.9,
    }  # fmt: skip
