"""Is federation worth it? The section of a comparison that has baselines (`report.worth` has the numbers)."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.report.figures.style import INK, MUTED, WIDE, Drawing, drawing, look, y_axis
from fedconcord.insight.report.method_tables import Table
from fedconcord.insight.report.page import Section
from fedconcord.insight.report.worth import Model, Worth, by_name, lead, sentences, worth
from fedconcord.study.statistics.format import NONE, value, wrap
from fedconcord.study.statistics.metric import Metric
from fedconcord.study.statistics.summary import Summary
from fedconcord.support.files import as_csv

LISTED = 40  # clients that are listed by name
ENDS = 5  # of more clients: those that gain most, and least
POINTS = 1500  # clients in the figure


def section(s: Summary) -> Section | None:
    """The section, or None without baselines; its file has a line a seed and client, plain numbers."""
    w = worth(s)
    if w is None:
        return None
    header = (
        "model",
        "mean over clients",
        "all samples",
        "worst decile",
        s.primary.title,
        "gain / same / lose",
        "gain by",
    )
    tables = [Table(header, tuple(_row(s, w, m) for m in w.models), _caption(s, w))]
    clients = by_name(w)
    if clients:
        listed = clients if len(clients) <= LISTED else (*clients[:ENDS], *clients[-ENDS:])
        rows = tuple((c.name, f"{c.samples:g}", *(_cell(w.metric, v) for v in c.figures)) for c in listed)
        tables.append(Table(("client", "samples", *(m.name for m in w.models)), rows))
    return Section(
        "Is federation worth it?",
        sentences(w),
        (_figure(s, w),) if w.alone is not None else (),
        (*tables, *_more(w)),
        {"tables/baselines.csv": _csv(w)},
    )


# -- words ---------------------------------------------------------------------------------------------------------


def _caption(s: Summary, w: Worth) -> str:
    on = (
        "the samples that each client set apart, which no model was trained on"
        if w.split == "validation"
        else "each client's own training samples: nothing was set apart (validation), so being alone looks too good"
    )
    draws = "seeds and of each its clients" if len(w.seeds) > 1 else "clients, as there is one seed"
    around = "t intervals over seeds" if w.sites else f"intervals of a bootstrap that draws {draws}"
    return (
        f"{w.metric.title.capitalize()}{' in %' if w.metric.percent else ''} of the final models on {on}; means over "
        "clients and seeds. Alone (local): every client takes the local steps that it takes in the federation, on a "
        "model of its own. Pooled: one model on all samples, with as many steps as all clients together. Both from the "
        "methods' start, at the job's own local settings. All samples: a client counts as much as it holds. "
        f"{s.primary.title.capitalize()}: of the last round; alone the mean over clients' own models. Gain: better "
        f"than alone. In brackets 95 % {around}; clients that never took part are "
        "left out of what concerns being alone."
    )


# -- tables --------------------------------------------------------------------------------------------------------


def _row(s: Summary, w: Worth, m: Model) -> tuple[str, ...]:
    figures = [(w.metric, m.mean), (w.metric, m.samples), (w.metric, m.worst_decile), (s.primary, m.tested)]
    cells = (m.name, *(_cell(metric, v).removesuffix(" %") for metric, v in figures))
    if m not in w.methods or w.alone is None:
        return (*cells, NONE, NONE)
    g = w.gains[w.methods.index(m)]
    return (*cells, f"{g.more} / {g.same} / {g.less}", lead(w.metric, g.mean).replace(" points", ""))


def _more(w: Worth) -> list[Table]:
    """Every metric of the models, and of the clients that have names."""
    if len(w.more) < 2:
        return []
    titles = tuple(f.metric.title for f in w.more)
    means = tuple((m.name, *(_cell(f.metric, f.means[k]) for f in w.more)) for k, m in enumerate(w.models))
    tables = [Table(("model", *titles), means, title=f"Every metric, mean over {'sites' if w.sites else 'clients'}")]
    for f in w.more[1:] if w.sites else ():
        each = (
            (name, f"{w.rows[i]:g}", *(_cell(f.metric, float(one[i])) for one in f.each))
            for i, name in enumerate(w.names)
        )
        header = ("site", "samples", *(m.name for m in w.models))
        tables.append(Table(header, tuple(each), title=f"{f.metric.title[:1].upper()}{f.metric.title[1:]} by site"))
    return tables


def _cell(metric: Metric, v: float) -> str:
    return value(metric, v) if math.isfinite(v) else NONE


def _csv(w: Worth) -> str:
    rows = []
    for seed in w.seeds:
        by_client = zip(*(m.by_seed[seed].tolist() for m in w.models), strict=True)
        for i, (name, n, figures) in enumerate(zip(w.names, w.samples[seed].tolist(), by_client, strict=True)):
            rows.append([seed, i, name, w.split, f"{n:g}", *("" if math.isnan(v) else v for v in figures)])
    return as_csv(["seed", "client", "name", "split", "samples", *(m.name for m in w.models)], rows).decode()


# -- figure --------------------------------------------------------------------------------------------------------


def _figure(s: Summary, w: Worth) -> Drawing:
    """Every client of every seed, or those that have names, once."""
    m, g, clients = w.methods[0], w.gains[0], by_name(w)
    are_named = 0 < len(clients) <= LISTED
    by_seed = np.array([[one.by_seed[seed] for seed in w.seeds] for one in w.models])
    figures = np.array([c.figures for c in clients]).T if are_named else by_seed.reshape(len(w.models), -1)
    alone, under = figures[0], figures[w.models.index(m)]
    pooled = None if w.pooled is None else figures[-1]
    judged = np.flatnonzero(~np.isnan(alone) & ~np.isnan(under))
    order = judged[np.argsort(alone[judged] if w.metric.higher else -alone[judged], kind="stable")]
    place = np.unique(np.linspace(1, len(order), min(len(order), POINTS)).round().astype(int))
    drawn_clients = order[place - 1]

    def plot(ax: Axes) -> None:
        colour = look(s.method(m.name).index).colour
        ax.vlines(place, alone[drawn_clients], under[drawn_clients], color=colour, linewidth=0.8, alpha=0.45)
        ax.plot(place, alone[drawn_clients], color=INK, linewidth=1.4, drawstyle="steps-mid", label="alone")
        ax.plot(place, under[drawn_clients], "o", color=colour, markersize=3.5, label=wrap(m.name, 40))
        if pooled is not None:
            ax.plot(place, pooled[drawn_clients], "_", color=MUTED, markersize=7, label="pooled")
        ax.set_xlabel("clients, from the worst off alone")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if are_named:
            ax.set_xticks(
                place, [wrap(clients[i].name, 18, 1) for i in drawn_clients.tolist()], rotation=30, ha="right"
            )
        y_axis(ax, w.metric, title=f"a client's {w.metric.title}")

    each = "A client a place, its mean over seeds" if are_named else "A client of each seed a place"
    return drawing(
        "baselines",
        f"Every client's {w.metric.title} alone and under {m.name}: {g.more} gain, {g.same} are as well off and "
        f"{g.less} lose.",
        f"{each if len(w.seeds) > 1 else 'A client a place'}, sorted by how it fares alone; a point above the step "
        f"{'gains' if w.metric.higher else 'loses'}, one below it {'loses' if w.metric.higher else 'gains'}.",
        plot,
        size=(WIDE, 3.0),
    )
