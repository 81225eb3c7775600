"""How evenly the final models serve the clients: the figures and the table of the report's section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedconcord.insight.report.figures.style import MUTED, PANEL, Drawing, drawing, look, percent_ticks, y_axis
from fedconcord.insight.report.method_tables import Table, spread_words
from fedconcord.insight.report.page import Section
from fedconcord.study.statistics.format import metric_cell, value, wrap
from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.metric import Metric, metric_of
from fedconcord.study.statistics.stats import interval
from fedconcord.study.statistics.summary import Method, Summary
from fedconcord.support.files import as_csv
from fedconcord.support.readers import columns

FIGURES = {  # of run.json -> head of the column
    "mean": "mean",
    "worst_decile": "worst decile",
    "best_decile": "best decile",
    "gap": "gap",
    "std": "std",
    "worst": "worst client",
}
AFTER = {"mean": "mean after fine-tuning", "worst_decile": "worst decile after"}
OTHERS = {
    "overall": "all samples",
    "mean": "mean over clients",
    "worst_decile": "worst decile",
    "best_decile": "best decile",
}
OTHERS_CAPTION = (
    "Other metrics on the same samples: over all of them together, and over the clients where a metric is defined "
    "(AUROC and average precision need samples of two classes)."
)
POINTS = 400  # of one line
WORST = 3  # clients that are named


class Judged(NamedTuple):
    """One method's final models on every client."""

    name: str
    style: int  # the number of the method: its colour and line style
    spreads: tuple[dict[str, Any], ...]  # a run each: clients_judged of run.json
    values: Array  # clients of all seeds together, sorted, worst first
    tuned: bool  # whether every run has each client's own fine-tuned model too
    worst: tuple[str, ...]  # those that fare worst over all seeds, by name; none where they have none

    def figures(self, name: str, after: bool = False) -> list[float]:
        """One of the figures of every run that has it, of the final model or `after` fine-tuning it."""
        parts = [spread.get("personalised", {}) if after else spread for spread in self.spreads]
        return [part[name] for part in parts if name in part]

    def mean(self, name: str, after: bool = False) -> float:
        """Its mean over the runs; NaN where one has none."""
        values = self.figures(name, after)
        return float(np.mean(values)) if len(values) == len(self.spreads) else math.nan


def section(s: Summary) -> Section | None:
    """The section, or None where no finished run has looked at its clients; its file has a line a run."""
    runs_by_method = [(m, [r for r in m.finished if r.head.clients_judged is not None]) for m in s.methods]
    metrics = {(r.head.clients_judged or {})["metric"] for _, runs in runs_by_method for r in runs}
    splits = {(r.head.clients_judged or {})["split"] for _, runs in runs_by_method for r in runs}
    if not metrics or len(metrics) > 1 or len(splits) > 1:  # nothing, or nothing that compares
        return None
    metric = metric_of(metrics.pop())
    judged = tuple(_judged(m, runs, metric) for m, runs in runs_by_method if runs)
    tuned = [j for j in judged if j.tuned]
    looks = [(m, _looks(runs)) for m, runs in runs_by_method]
    drawings = [_distribution(judged, metric)]
    if any(len(deciles) > 1 for _, deciles in looks):
        drawings.append(_by_round(looks, metric))
    if tuned:
        drawings.append(_fine_tuned(tuned, metric))
    header = ("method", *FIGURES.values(), *(AFTER.values() if tuned else ()))
    of = [(figure, False) for figure in FIGURES] + [(figure, True) for figure in AFTER if tuned]
    rows = tuple((j.name, *(metric_cell(metric, interval(j.figures(*one))) for one in of)) for j in judged)
    tables = [Table(header, rows, _caption(judged, metric, splits.pop(), bool(tuned)))]
    others = tuple(line for j in judged for line in _others(j))
    if others:
        tables.append(Table(("method", "metric", *OTHERS.values(), "defined at"), others, OTHERS_CAPTION))
    files: dict[str, str | bytes] = {"tables/clients.csv": _csv(runs_by_method)}
    return Section("How evenly the clients are served", (), tuple(drawings), tuple(tables), files)


def _judged(m: Method, runs: Sequence[Run], metric: Metric) -> Judged:
    tables = [columns(r.folder / "clients.csv") for r in runs]
    values = np.sort([float(cell) for t in tables for cell in t.get(metric.column, []) if cell])
    return Judged(
        m.name,
        m.index,
        tuple(r.head.clients_judged or {} for r in runs),
        values if metric.higher else values[::-1],
        all(f"{metric.column}_personalised" in t for t in tables),
        _named_worst(tables, metric),
    )


def _named_worst(tables: Sequence[dict[str, list[str]]], metric: Metric) -> tuple[str, ...]:
    """The clients with the worst mean over the tables, where all of them name the same ones."""
    names = tables[0].get("name", [])
    if not any(names) or any(t.get("name") != names for t in tables):
        return ()
    cells = np.array([[float(cell or "nan") for cell in t[metric.column]] for t in tables]).mean(0)
    order = np.argsort(cells if metric.higher else -cells, kind="stable")  # NaN last
    worst = [i for i in order[:WORST].tolist() if not math.isnan(cells[i])]
    return tuple(f"{names[i]} {value(metric, float(cells[i]))}" for i in worst)


# -- figures -------------------------------------------------------------------------------------------------------


def _distribution(judged: Sequence[Judged], metric: Metric) -> Drawing:
    def plot(ax: Axes) -> None:
        for j in judged:
            colour, dash, _ = look(j.style)
            n = j.values.size
            keep = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int)) if n else np.empty(0, int)
            (line,) = ax.plot(
                100 * (keep + 1) / max(n, 1), j.values[keep], color=colour, linestyle=dash, linewidth=1.5,
                drawstyle="steps-pre", label=wrap(j.name, 28),
            )  # fmt: skip
            line.set_gid(f"m{j.style}-clients")
        ax.axvspan(0, 10, color=MUTED, alpha=0.12, linewidth=0)
        ax.set_xlim(0, 100)
        ax.set_xlabel("clients, worst first (%)")
        y_axis(ax, metric, title=f"a client's {metric.title}")

    low = ", ".join(f"{j.name} {value(metric, j.mean('worst_decile'))}" for j in judged)
    return drawing(
        "clients",
        f"Every client's {metric.title} under the final model, clients sorted from the worst; worst decile: {low}.",
        "Each line: the clients of all seeds, sorted. Shaded: the worst decile.",
        plot,
        beside=True,
    )


def _looks(runs: Sequence[Run]) -> dict[int, float]:
    """Round -> worst decile, the mean over the runs, at the rounds that all of them looked at."""
    tables = [columns(path) for r in runs if (path := r.folder / "fairness.csv").exists()]
    deciles = [dict(zip(map(int, t["round"]), map(float, t["worst_decile"]), strict=True)) for t in tables if t]
    shared = set.intersection(*map(set, deciles)) if len(deciles) == len(runs) and deciles else set()
    return {round: float(np.mean([one[round] for one in deciles])) for round in sorted(shared)}


def _by_round(looks: Sequence[tuple[Method, dict[int, float]]], metric: Metric) -> Drawing:
    def plot(ax: Axes) -> None:
        for m, deciles in looks:
            colour, dash, marker = look(m.index)
            (line,) = ax.plot(
                list(deciles), list(deciles.values()), color=colour, linestyle=dash, marker=marker, markersize=4,
                linewidth=1.5, label=wrap(m.name, 28),
            )  # fmt: skip
            line.set_gid(f"m{m.index}-worst")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("round")
        y_axis(ax, metric, title=f"worst decile: {metric.title}")

    ends = ", ".join(f"{m.name} {value(metric, list(deciles.values())[-1])}" for m, deciles in looks if deciles)
    return drawing(
        "worst-decile",
        f"The worst decile's {metric.title} by round; at the last look: {ends}.",
        "The worst decile of the clients at the rounds of eval.clients_every, mean over seeds.",
        plot,
        beside=True,
    )


def _fine_tuned(judged: Sequence[Judged], metric: Metric) -> Drawing:
    def plot(ax: Axes) -> None:
        for i, j in enumerate(judged):
            colour, _, _ = look(j.style)
            for down, figure, marker in ((0.0, "mean", "o"), (0.25, "worst_decile", "v")):
                ends = [j.mean(figure), j.mean(figure, after=True)]
                ax.plot(ends, [i + down] * 2, color=colour, linewidth=1.2, alpha=0.55, zorder=2)
                for end, face in zip(ends, ("white", colour), strict=True):
                    ax.plot([end], [i + down], marker, color=colour, markerfacecolor=face, markersize=6, zorder=3)
            ax.annotate(
                wrap(j.name, 60, 1), (0, i - 0.3), (2, 0), xycoords=("axes fraction", "data"), fontsize=7.5,
                textcoords="offset points", va="center", ha="left",
            )  # fmt: skip
        ax.set_ylim(len(judged) - 0.45, -0.6)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.set_xlabel(metric.label(f"a client's {metric.title}"))
        if metric.percent:
            percent_ticks(ax, "x")

    def change(j: Judged, figure: str) -> str:
        return f"{value(metric, j.mean(figure))} to {value(metric, j.mean(figure, after=True))}"

    changes = "; ".join(f"{j.name} mean {change(j, 'mean')}, worst decile {change(j, 'worst_decile')}" for j in judged)
    return drawing(
        "personalised",
        f"{metric.title.capitalize()} over clients before and after fine-tuning at each client: {changes}.",
        "Hollow: the final model; filled: the same, fine-tuned by each client on its own training samples. Circle: "
        "mean over clients; triangle: worst decile.",
        plot,
        size=(PANEL[0], 0.8 + 0.62 * len(judged)),
    )


# -- table ---------------------------------------------------------------------------------------------------------


def _others(j: Judged) -> Iterator[tuple[str, ...]]:
    """A row for each other metric that all of a method's runs have."""
    others = [spread.get("others", {}) for spread in j.spreads]
    for column in others[0] if others else ():
        if any(column not in one for one in others):
            continue
        metric = metric_of(column)
        cells = [[one[column][figure] for one in others if figure in one[column]] for figure in OTHERS]
        defined = [one[column]["defined"] for one in others]
        of = dict.fromkeys(f"{n} of {spread['judged']}" for n, spread in zip(defined, j.spreads, strict=True))
        yield j.name, metric.title, *(metric_cell(metric, interval(values)) for values in cells), ", ".join(of)


def _caption(judged: Sequence[Judged], metric: Metric, split: str, tuned: bool) -> str:
    spreads = [spread for j in judged for spread in j.spreads]
    counts = sorted({spread["judged"] for spread in spreads})
    left_out = max(spread["without_samples"] for spread in spreads)
    on = {
        "validation": "the samples that it set apart, which no model was trained on",
        "test": "its own test samples, at its site",
        "train": "its own training samples: nothing was set apart (setting validation), so these figures flatter",
    }[split]
    parts = [
        f"{metric.title.capitalize()}{' in %' if metric.percent else ''} of the final model at each client, on {on}; "
        f"every client counts once ({' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} clients"
        + (f", up to {left_out} without samples left out)." if left_out else ")."),
        "Deciles: the mean over the tenth of the clients that fare worst and best; gap: best minus worst decile; std: "
        "standard deviation over clients (the figures of q-FFL, Li et al., ICLR 2020); worst client: what agnostic "
        "federated learning looks at (Mohri et al., ICML 2019).",
    ]
    worst = [f"under {j.name} {', '.join(j.worst)}" for j in judged if j.worst]
    if worst:
        parts.append(f"Worst off {'; '.join(worst)}.")
    if any(len(j.spreads) > 1 for j in judged):
        parts.append(f"Mean over seeds {spread_words([len(j.spreads) for j in judged])}.")
    if tuned:
        parts.append("After fine-tuning: each client with its own model, on the same samples.")
    return " ".join(parts)


def _csv(runs_by_method: Sequence[tuple[Any, Sequence[Run]]]) -> str:
    facts = ("round", "split", "metric", "judged", "without_samples", *FIGURES)
    rows = []
    for method, run in ((method, run) for method, runs in runs_by_method for run in runs):
        about = run.head.clients_judged or {}
        personalised = (about.get("personalised", {}).get(figure, "") for figure in FIGURES)
        rows.append([method.name, run.head.seed, *(about[fact] for fact in facts), *personalised])
    return as_csv(["name", "seed", *facts, *(f"{figure}_personalised" for figure in FIGURES)], rows).decode()
