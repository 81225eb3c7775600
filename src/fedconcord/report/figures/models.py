"""The other models that methods offer, beside the one that they answer with."""

from __future__ import annotations

import math

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedconcord.report.curves import bottom, ceiling, curve, log_floor
from fedconcord.report.figures.drawing import Drawing
from fedconcord.report.figures.style import INK, PANEL, WIDE, cut_below, look, y_axis
from fedconcord.report.format import wrap
from fedconcord.report.summary import Summary


def by_model(s: Summary) -> list[Drawing]:
    """Every model against rounds, where a method offers more than one."""
    if not s.second:
        return []
    names = ", ".join(dict.fromkeys(r.name for r in s.second))
    return [
        Drawing(
            "models",
            f"{s.primary.title.capitalize()} against rounds of every model that these methods offer: {names}.",
            "Solid: the model that the method answers with, which ranks it; dashed: the other it offers"
            + ("; means over seeds." if any(len(m.runs) > 1 for m in s.methods) else "."),
            len({r.name for r in s.second}) > 1,
            lambda legend: _models(s),
        )
    ]


def _models(s: Summary) -> Figure:
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
    cap = None if s.primary.percent else ceiling(runs, keys, log)
    for ax, name in zip(axes, names, strict=False):
        m = s.method(name)
        c = look(m.index).colour
        k = curve(m.runs, s.primary.column, "round", floor)
        ax.plot(k.x, k.mid, color=c, linewidth=1.5, label=f"{m.answer} (its answer)")
        for j, model in enumerate(m.runs[0].models[1:]):
            k = curve(m.runs, f"{model}:{s.primary.column}", "round", floor)
            ax.plot(k.x, k.mid, color=INK, linewidth=0.9, linestyle=(0, (3 + 2 * j, 1.5)), label=model)
        y_axis(ax, s.primary, log)
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
        cut_below(axes[0], min([low, *ends]))
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    fig.supxlabel("round", fontsize=8)
    fig.supylabel(s.primary.label(), fontsize=8)
    return fig
