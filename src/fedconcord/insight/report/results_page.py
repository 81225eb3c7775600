"""report.html of the runs of one data set or of several, with the figures and tables beside it as files.

Of several it has the methods' ranks over them, and a short section for each.
"""

from __future__ import annotations

import html
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedconcord.insight.report import again, baselines, clients, method_tables
from fedconcord.insight.report.curves import band_words
from fedconcord.insight.report.figures.heatmap import partitions
from fedconcord.insight.report.figures.progress import by_axis, by_model
from fedconcord.insight.report.figures.ranking import critical, ranked
from fedconcord.insight.report.method_tables import Table
from fedconcord.insight.report.page import Page, code_block, details, in_words, legend, pairs, paragraphs, table
from fedconcord.insight.report.words import words
from fedconcord.study.statistics.format import listing, value
from fedconcord.study.statistics.load import Run, data_name, data_names, load_data_sets, short_names
from fedconcord.study.statistics.metric import metric_of
from fedconcord.study.statistics.ranks import ENOUGH, Ranks, ranks, row_of, score
from fedconcord.study.statistics.stats import ALPHA
from fedconcord.study.statistics.summary import Summary, summarise
from fedconcord.support import files
from fedconcord.support.errors import UserError

esc = html.escape
ASSUMED = (
    "Ranks: on each data set by the mean final value over seeds, 1 the best; ties share the mean of their ranks, and a "
    "method that diverged comes last. Every data set counts once and must be another one: partitions or seeds of the "
    "same data are not independent, which the tests assume. Nothing is assumed of the values' scale or noise."
)


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Writes `out`/report.html, figures/*.svg|png|pdf and tables/*.csv|md|tex beside it; returns the page's path.

    `paths` are folders of runs or of comparisons; of several data sets the page ranks the methods over them. Without
    `out` it is the first path, and of several data sets a new folder below runs/. The same runs give the same bytes.
    Raises UserError for what `load_data_sets` refuses, for runs that cannot be ranked together, and for an `out` that
    cannot be written.
    """
    sets = load_data_sets(paths)
    if out is None:
        out = paths[0] if len(sets) == 1 else files.free_folder(Path("runs"), "report")
    out = Path(out)
    page = build(next(iter(sets.values())), paths, out) if len(sets) == 1 else build_several(sets, paths, out)
    return page.write(out / "report.html")


AXES = {
    "round": ("Progress by round", "What a method gains each time the server hears from a cohort."),
    "bytes": ("Progress by bytes sent", "The same runs against what they send, up and down together."),
    "gradient_steps": ("Progress by gradient steps", "The same runs against the clients' work."),
    "simulated_seconds": ("Progress by simulated time", "The same runs against the time that devices and links take."),
}


def build(runs: Sequence[Run], paths: Sequence[Path], out: Path) -> Page:
    """The page of the runs of one data set."""
    s = summarise(runs)
    heading, job = page_head(s, paths)
    page, main = Page(heading, job), method_tables.table(s, s.rows)
    every = [r for m in s.methods for r in m.runs]
    metrics = [s.primary, *([s.loss] if s.loss else [])]
    page.parts.append(in_words(words(s), s.warnings))
    page.section("Results", table(main, [r.style for r in s.rows]), page.figures(ranked(s)))
    for axis, (title, lead) in AXES.items():
        if axis == "round" or any(r.axis(axis).size and np.nanmax(r.axis(axis)) > 0 for r in every):
            lead += f" {band_words(s)}" if axis == "round" else ""
            page.section(title, legend(s), page.figures([by_axis(s, m, axis) for m in metrics]), lead=lead)
    for one, names in ((baselines.section(s), ""), (clients.section(s), legend(s))):
        if one is not None:
            page.add(one, names)
    if s.second:
        second = method_tables.table(s, s.second, models=True)._replace(caption="Columns as in the table of results.")
        models = table(second, [r.style for r in s.second])
        page.section("Other models of the methods", page.figures(by_model(s)), models)
    if division := partitions(every):
        page.section("Who holds what", page.figures(division))
    columns = dict.fromkeys(
        c for r in every for c in r.metrics if ":" not in c and c not in [m.column for m in metrics]
    )
    if columns:
        more = [by_axis(s, metric_of(column), "round") for column in columns]
        page.section("Other recorded metrics", legend(s), page.figures(more))
    page.parts.append(again.settings(s, paths, out))
    page.files |= _forms("summary", method_tables.to_csv(s), main, f"Final {s.primary.title}. {job}. ", data_of(s))
    page.files["figures/figures.tex"] = method_tables.figures_tex(page.drawn)
    return page


def _forms(name: str, numbers: str, t: Table, before: str = "", key: str = "") -> dict[str, str | bytes]:
    """A table's files: plain numbers, Markdown, and LaTeX, which has more words before its caption and a key."""
    titled = t._replace(caption=f"{before}{t.caption}")
    return {
        f"tables/{name}.csv": numbers,
        f"tables/{name}.md": method_tables.to_markdown(t),
        f"tables/{name}.tex": method_tables.to_latex(titled, files.folder_name(key or name)),
    }


def data_of(s: Summary) -> str:
    """The data set as titles name it."""
    return data_name(s.runs[0].head.data)


def page_head(s: Summary, paths: Sequence[Path]) -> tuple[str, str]:
    """Title and the job in one line."""
    runs = s.runs

    def of(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(r.head, field)) for r in runs))
        return listing(values, "or")

    dims = sorted({r.head.dim for r in runs})
    size = f"{dims[0]:,}".replace(",", "\u202f") + (f" to {dims[-1]:,}".replace(",", "\u202f") if len(dims) > 1 else "")
    seeds = sorted({r.head.seed for r in runs})
    heading = f"{f'{len(s.methods)} methods' if len(s.methods) > 1 else s.methods[0].name} on {data_of(s)}"
    parts = [data_of(s), of("partition"), of("model")]
    line = " · ".join(
        [
            *(p for p in parts if p.lower() not in ("", "none")),
            f"{size} parameters",
            f"{of('clients')} clients, {of('cohort')} a round",
            f"{of('rounds')} rounds",
            f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
            *([f"from {listing([*short_names([str(path) for path in paths]).values()])}"] if len(paths) > 1 else []),
        ]
    )
    return heading, line


# -- several data sets -----------------------------------------------------------------------------------------------


def summaries(sets: Mapping[str, Sequence[Run]]) -> dict[str, Summary]:
    """Data set by its short name -> what the report says of it.

    Raises:
        UserError: no method is in all data sets.
    """
    names = data_names(list(sets))
    by_data = {names[data]: summarise(runs) for data, runs in sets.items()}
    if not ranks(by_data).methods:
        each = "; ".join(f"{name}: {', '.join(m.name for m in s.methods)}" for name, s in by_data.items())
        raise UserError(f"no method is in all data sets ({each}); report on them one by one, or give methods one label")
    return by_data


def build_several(sets: Mapping[str, Sequence[Run]], paths: Sequence[Path], out: Path) -> Page:
    """The page of runs of several data sets."""
    every = summaries(sets)
    r = ranks(every)
    where = list(short_names([str(path) for path in paths]).values())
    heading = f"{len(r.methods)} methods on {len(r.data)} data sets"
    page = Page(heading, f"{', '.join(r.data)} · from {listing(where)}")
    main = rank_table(every, r)
    warnings = [f"{name}: {w}" for name, s in every.items() for w in s.warnings]
    page.parts.append(in_words(rank_words(r), warnings))
    page.section("Ranks", pairs(main.rows, main.header, main.caption), page.figures([critical(r)]))
    page.section("Data set by data set")
    for name, s in every.items():
        key = files.folder_name(name)
        one = method_tables.table(s, s.rows)
        page.files |= _forms(key, method_tables.to_csv(s), one, f"{name}. ")
        figures = [d._replace(name=f"{key}-{d.name}") for d in (*ranked(s), by_axis(s, s.primary, "round"))]
        parts = table(one, [row.style for row in s.rows]) + legend(s) + page.figures(figures)
        page.parts.append(details(f"<b>{esc(name)}</b>: {_job(s)}", paragraphs(words(s)) + parts))
    page.files |= _forms("ranks", _ranks_csv(every, r), main)
    page.files["figures/figures.tex"] = method_tables.figures_tex(page.drawn)
    command = " ".join(["fedconcord report", *(shlex.quote(str(p)) for p in paths), "--out", shlex.quote(str(out))])
    page.section(
        "How to get this again",
        f"{code_block(command)}<p>The whole page of one data set, with its settings: "
        "<code>fedconcord report</code> with its folder alone.</p>",
    )
    return page


def _job(s: Summary) -> str:
    head, seeds = s.runs[0].head, sorted({r.head.seed for r in s.runs})
    where = ", ".join(part for part in (head.partition, head.model) if part.lower() not in ("", "none"))
    best, side = s.rows[0], "highest" if s.primary.higher else "lowest"
    return esc(
        f"{len(s.methods)} methods, {where}, {head.clients} clients, {head.cohort} a round, {len(seeds)} seed"
        f"{'s' if len(seeds) > 1 else ''}; {side}: {s.method(best.name).short}, {value(s.primary, best.final.mean)}"
    )


def rank_words(r: Ranks) -> list[str]:
    """What may be said over the data sets, as HTML."""
    k, n = len(r.methods), len(r.data)
    first = f"<b>{esc(r.methods[0])}</b> has the best average rank, {r.average[0]:.2f} of {k} methods on {n} data sets"
    sentences = [f"{first}{f'; the next is {esc(r.methods[1])} ({r.average[1]:.2f})' if k > 1 else ''}."]
    test = f"(χ² = {r.chi2:.2f} with {k - 1} degrees of freedom, p {'=' if r.p > 1e-4 else '≤'} {max(r.p, 1e-4):.2g})"
    if n < ENOUGH:
        sentences.append(
            f"{n} data sets are too few for a test over data sets to say anything (from {ENOUGH} on; Demsar, 2006, "
            "wants more than 10): the ranks describe these data sets and no others."
        )
    elif not math.isfinite(r.p):
        sentences.append("The Friedman test needs three methods or more that are not all tied.")
    elif r.p >= ALPHA:
        sentences.append(f"The Friedman test finds no difference between the methods {test}, so no pair is told apart.")
    else:
        behind = np.flatnonzero(r.average - r.average[0] >= r.critical)
        names = listing([esc(r.methods[i]) for i in behind]) if behind.size else ""
        apart = f"{esc(r.methods[0])} is told apart from {names}" if names else "no method is told apart from it"
        sentences.append(
            f"The Friedman test finds a difference between the methods {test}. Nemenyi's critical difference is "
            f"{r.critical:.2f}: {apart}."
        )
    if r.left_out:
        sentences.append(f"Not ranked, for they are not on all data sets: {esc(listing(r.left_out))}.")
    return sentences


def rank_table(every: Mapping[str, Summary], r: Ranks) -> Table:
    """A line a method: its average rank, and on each data set its rank with the final value."""
    rows = []
    for name, there, line, average in zip(r.methods, r.names, r.ranks, r.average, strict=True):
        cells = []
        for s, name_there, rank in zip(every.values(), there, line, strict=True):
            final = row_of(s, name_there).final.mean
            is_ranked = math.isfinite(score(s, s.method(name_there)))
            cells.append(f"{rank:g} ({value(s.primary, final) if is_ranked else 'diverged or not complete'})")
        rows.append((name, f"{average:.2f}", *cells))
    header = ("method", "average rank", *(f"{name}: {s.primary.title}" for name, s in every.items()))
    return Table(header, tuple(rows), ASSUMED)


def _ranks_csv(every: Mapping[str, Summary], r: Ranks) -> str:
    rows = []
    for method, there, line, average in zip(r.methods, r.names, r.ranks, r.average, strict=True):
        for (data, s), name_there, rank in zip(every.items(), there, line, strict=True):
            final = row_of(s, name_there).final.mean
            cell = f"{final:.10g}" if math.isfinite(final) else ""
            rows.append([method, f"{average:.10g}", data, name_there, f"{rank:g}", cell, s.primary.column])
    header = ["method", "average_rank", "data", "name", "rank", "final", "metric"]
    return files.as_csv(header, rows).decode()
