"""Is federation worth it? The section of a comparison that has baselines (`report.worth` has the numbers)."""

from __future__ import annotations

import csv
import io
import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedconcord.report.figures import Drawing
from fedconcord.report.figures.style import INK, MUTED, WIDE, look, panel
from fedconcord.report.format import value, wrap
from fedconcord.report.load import Array
from fedconcord.report.stats import Interval
from fedconcord.report.summary import Metric, Summary
from fedconcord.report.tables import NONE
from fedconcord.report.worth import Gain, Model, Worth, mean_of, worth

TITLE = "Is federation worth it?"
LISTED = 40  # clients that are listed by name
ENDS = 5  # of more clients: those that gain most, and least
POINTS = 1500  # clients in the figure


class Section(NamedTuple):
    """What the page shows."""

    sentences: tuple[str, ...]
    drawings: tuple[Drawing, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    clients_header: tuple[str, ...]
    clients: tuple[tuple[str, ...], ...]  # by name; none where they have no names
    csv: str  # a line a seed and client, plain numbers


def section(s: Summary) -> Section | None:
    """The section, or None without baselines."""
    w = worth(s)
    if w is None:
        return None
    return Section(
        sentences(w),
        (_figure(s, w),) if w.alone is not None else (),
        ("model", "mean over clients", "all samples", "worst decile", s.primary.title, "gain / same / lose", "gain by"),
        tuple(_row(s, w, m) for m in w.models),
        _caption(s, w),
        ("client", "samples", *(m.name for m in w.models)),
        _clients(w),
        _csv(w),
    )


# -- words ---------------------------------------------------------------------------------------------------------


def sentences(w: Worth) -> tuple[str, ...]:
    """The verdict, for the method whose models serve the clients best on average."""
    m = w.methods[w.best()]
    levels = [("alone", w.alone), (f"under {m.name}", m), ("pooled", w.pooled)]
    said = ", ".join(f"{what} {value(w.metric, one.mean)}" for what, one in levels if one is not None)
    if w.alone is None:
        return (f"Mean {w.metric.title} over clients: {said}.",)
    g = w.gains[w.best()]
    found = [f"{_verdict(g)} Mean {w.metric.title} over clients: {said}.", _gains(w, m, g)]
    sign = 1 if w.metric.higher else -1
    if w.pooled is not None and (room := sign * (w.pooled.mean - w.alone.mean)) > 0:
        share = sign * (m.mean - w.alone.mean) / room
        found.append(f"Of what pooling all samples gains over being alone, federation gets {100 * share:.0f} %.")
    return tuple(found)


def _verdict(g: Gain) -> str:
    if not math.isfinite(g.mean.low):
        return f"There are too few clients for an interval ({g.units})."
    if g.mean.low > 0:
        return "Federation is worth it here."
    return "Federation is not worth it here." if g.mean.high < 0 else "Whether federation is worth it is open."


def _gains(w: Worth, m: Model, g: Gain) -> str:
    same = f", {g.same} {'are' if g.same != 1 else 'is'} as well off" if g.same else ""
    clients = "clients" if len(w.seeds) == 1 else f"clients of {len(w.seeds)} seeds"
    return (
        f"{g.more} of {g.units} {clients} ({_share(g.share)}) fare better under {m.name} than alone{same}, {g.less} "
        f"{'fare' if g.less != 1 else 'fares'} worse; the mean gain is {_lead(w.metric, g.mean)}."
    )


def _share(i: Interval) -> str:
    known = f", {100 * i.low:.0f} to {100 * i.high:.0f} %" if math.isfinite(i.low) else ""
    return f"{100 * i.mean:.0f} %{known}"


def _lead(metric: Metric, i: Interval) -> str:
    scale, unit = (100.0, " points") if metric.percent else (1.0, "")
    known = f" ({scale * i.low:.3g} to {scale * i.high:.3g})" if math.isfinite(i.low) else ""
    return f"{scale * i.mean:.3g}{unit}{known}"


def _caption(s: Summary, w: Worth) -> str:
    on = (
        "the samples that each client set apart, which no model was trained on"
        if w.split == "validation"
        else "each client's own training samples: nothing was set apart (validation), so being alone looks too good"
    )
    draws = "seeds and of each its clients" if len(w.seeds) > 1 else "clients, as there is one seed"
    return (
        f"{w.metric.title.capitalize()}{' in %' if w.metric.percent else ''} of the final models on {on}; means over "
        "clients and seeds. Alone (local): every client takes the local steps that it takes in the federation, on a "
        "model of its own. Pooled: one model on all samples, with as many steps as all clients together. Both from the "
        "methods' start, at the job's own local settings. All samples: a client counts as much as it holds. "
        f"{s.primary.title.capitalize()}: of the last round; alone the mean over clients' own models. Gain: better "
        f"than alone. In brackets 95 % intervals of a bootstrap that draws {draws}; clients that never took part are "
        "left out of what concerns being alone."
    )


# -- tables --------------------------------------------------------------------------------------------------------


def _row(s: Summary, w: Worth, m: Model) -> tuple[str, ...]:
    def cell(metric: Metric, v: float) -> str:
        return value(metric, v).removesuffix(" %") if math.isfinite(v) else NONE

    figures = (cell(w.metric, m.mean), cell(w.metric, m.samples), cell(w.metric, m.worst_decile))
    cells = (m.name, *figures, cell(s.primary, m.tested))
    if m not in w.methods or w.alone is None:
        return (*cells, NONE, NONE)
    g = w.gains[w.methods.index(m)]
    return (*cells, f"{g.more} / {g.same} / {g.less}", _lead(w.metric, g.mean).replace(" points", ""))


def _clients(w: Worth) -> tuple[tuple[str, ...], ...]:
    """A row a client that has a name, over its seeds: those that gain most first."""
    if not any(w.names):
        return ()
    means = [np.array([mean_of(one) for one in np.stack([*m.by_seed.values()], 1)]) for m in w.models]
    first = means[w.models.index(w.methods[w.best()])]
    gain = first - means[0] if w.alone is not None else first
    order = np.argsort(-gain if w.metric.higher else gain, kind="stable")
    if len(order) > LISTED:
        order = np.concatenate([order[:ENDS], order[-ENDS:]])
    samples = np.mean([*w.samples.values()], 0)
    return tuple(
        (w.names[i], f"{samples[i]:g}", *(value(w.metric, v[i]) if math.isfinite(v[i]) else NONE for v in means))
        for i in order.tolist()
    )


def _csv(w: Worth) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["seed", "client", "name", "split", "samples", *(m.name for m in w.models)])
    for seed in w.seeds:
        found = zip(*(m.by_seed[seed].tolist() for m in w.models), strict=True)
        for i, (name, n, figures) in enumerate(zip(w.names, w.samples[seed].tolist(), found, strict=True)):
            writer.writerow([seed, i, name, w.split, f"{n:g}", *("" if math.isnan(v) else v for v in figures)])
    return out.getvalue()


# -- figure --------------------------------------------------------------------------------------------------------


def _figure(s: Summary, w: Worth) -> Drawing:
    m = w.methods[w.best()]
    assert w.alone is not None
    alone, under, pooled = (None if one is None else _units(one) for one in (w.alone, m, w.pooled))
    assert alone is not None
    assert under is not None
    known = np.flatnonzero(~np.isnan(alone) & ~np.isnan(under))
    order = known[np.argsort(alone[known], kind="stable")]
    if not w.metric.higher:
        order = order[::-1]
    keep = np.unique(np.linspace(0, len(order) - 1, min(len(order), POINTS)).round().astype(int))
    shown = order[keep] if len(order) else order

    def draw(legend: bool) -> Figure:
        del legend  # it is the figure's own
        fig, ax = panel(WIDE, 3.0)
        place = keep[: len(shown)] + 1
        colour = look(s.method(m.name).index).colour
        ax.vlines(place, alone[shown], under[shown], color=colour, linewidth=0.8, alpha=0.45)
        ax.plot(place, alone[shown], color=INK, linewidth=1.4, drawstyle="steps-mid", label="alone")
        ax.plot(place, under[shown], "o", color=colour, markersize=3, label=wrap(m.name, 40))
        if pooled is not None:
            ax.plot(place, pooled[shown], "_", color=MUTED, markersize=4, label="pooled")
        ax.set_xlabel("clients, from the worst off alone")
        ax.set_ylabel(f"a client's {w.metric.title}" + (" (%)" if w.metric.percent else ""))
        if w.metric.percent:
            ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g}"))
        ax.legend(fontsize=6.5)
        return fig

    g = w.gains[w.best()]
    return Drawing(
        "baselines",
        f"Every client's {w.metric.title} alone and under {m.name}: {g.more} gain, {g.same} are as well off and "
        f"{g.less} lose.",
        f"A client a place{' (of every seed)' if len(w.seeds) > 1 else ''}, sorted by how it fares alone; a point "
        "above the step gains, one below it loses.",
        True,
        draw,
    )


def _units(m: Model) -> Array:
    return np.concatenate([m.by_seed[seed] for seed in sorted(m.by_seed)])
