"""The page of several data sets: the methods' ranks over them, and a short section for each."""

from __future__ import annotations

import html
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedconcord.basis import files
from fedconcord.basis.errors import UserError
from fedconcord.basis.files import as_csv
from fedconcord.report import method_tables
from fedconcord.report.figures import by_axis, critical, ranked
from fedconcord.report.format import listing, value
from fedconcord.report.load import Run, data_names, short_names
from fedconcord.report.method_tables import Table
from fedconcord.report.page import Page, code_block, details, in_words, legend, pairs, paragraphs, table
from fedconcord.report.ranks import ENOUGH, Ranks, ranks, row_of, score
from fedconcord.report.stats import ALPHA
from fedconcord.report.summary import Summary, summarise
from fedconcord.report.words import words

esc = html.escape
ASSUMED = (
    "Ranks: on each data set by the mean final value over seeds, 1 the best; ties share the mean of their ranks, and a "
    "method that diverged comes last. Every data set counts once and must be another one: partitions or seeds of the "
    "same data are not independent, which the tests assume. Nothing is assumed of the values' scale or noise."
)


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
        page.files |= {
            f"tables/{key}.csv": method_tables.to_csv(s),
            f"tables/{key}.md": method_tables.to_markdown(one),
            f"tables/{key}.tex": method_tables.to_latex(one._replace(caption=f"{name}. {one.caption}"), key),
        }
        figures = [d._replace(name=f"{key}-{d.name}") for d in (*ranked(s), by_axis(s, s.primary, "round"))]
        shown = table(one, [row.style for row in s.rows]) + legend(s) + page.figures(figures)
        page.parts.append(details(f"<b>{esc(name)}</b>: {_job(s)}", paragraphs(words(s)) + shown))
    page.files |= {
        "tables/ranks.csv": _csv(every, r),
        "tables/ranks.md": method_tables.to_markdown(main),
        "tables/ranks.tex": method_tables.to_latex(main, "ranks"),
        "figures/figures.tex": method_tables.figures_tex(page.drawn),
    }
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


def _csv(every: Mapping[str, Summary], r: Ranks) -> str:
    rows = []
    for method, there, line, average in zip(r.methods, r.names, r.ranks, r.average, strict=True):
        for (data, s), name_there, rank in zip(every.items(), there, line, strict=True):
            final = row_of(s, name_there).final.mean
            cell = f"{final:.10g}" if math.isfinite(final) else ""
            rows.append([method, f"{average:.10g}", data, name_there, f"{rank:g}", cell, s.primary.column])
    header = ["method", "average_rank", "data", "name", "rank", "final", "metric"]
    return as_csv(header, rows).decode()
