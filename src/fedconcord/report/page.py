"""report.html: one page that opens from disk, with the figures and tables beside it as files."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import matplotlib

from fedconcord.basis import files
from fedconcord.basis.errors import UserError
from fedconcord.report import again, baselines, clients, elements, tables
from fedconcord.report.curves import band_words
from fedconcord.report.figures import drawings, to_files
from fedconcord.report.figures.style import STYLE
from fedconcord.report.format import listing
from fedconcord.report.load import Run, load_runs
from fedconcord.report.summary import Summary, summarise
from fedconcord.report.words import words

esc = html.escape


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Writes `out`/report.html, `out`/figures/*.svg|png and `out`/tables/summary.csv|md|tex; returns the page's path.

    `paths` are folders of runs or of comparisons. The same runs give the same bytes. Raises UserError for what
    `load_runs` refuses, for runs that cannot be ranked together, and for an `out` that cannot be written.
    """
    runs = load_runs(paths)
    out = Path(out)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the report
        matplotlib.rcParams.update(STYLE)
        page, others = build(runs, paths, out)
    try:
        for folder in ("figures", "tables"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for name, content in others.items():
            files.write_bytes(out / name, content.encode() if isinstance(content, str) else content)
        files.write_text(out / "report.html", page)
    except OSError as e:
        raise UserError(f"cannot write the report to {out}: {e.strerror or e}") from None
    return out / "report.html"


TITLES = {
    "round": ("Progress by round", "What a method gains each time the server hears from a cohort."),
    "bytes": ("Progress by bytes sent", "The same runs against what they send, up and down together."),
    "gradient_steps": ("Progress by gradient steps", "The same runs against the clients' work."),
    "simulated_seconds": ("Progress by simulated time", "The same runs against the time that devices and links take."),
    "clients": ("How evenly the clients are served", ""),
    "models": ("Other models of the methods", ""),
    "partition": ("Who holds what", ""),
    "more": ("Other recorded metrics", ""),
}


def build(runs: Sequence[Run], paths: Sequence[Path], out: Path) -> tuple[str, dict[str, str | bytes]]:
    """(the page, the other files by their path below `out`)."""
    s = summarise(runs)
    drawn = drawings(s)
    every: dict[str, str | bytes] = {}
    number = 0

    def section(key: str) -> str:
        nonlocal number
        shown = []
        for d in drawn[key]:
            number += 1
            shown.append(elements.figure(d, number))
            every[f"figures/{d.name}.svg"], every[f"figures/{d.name}.png"] = to_files(d.draw(True))
        return f'<div class="grid">{"".join(shown)}</div>' if shown else ""

    heading, job = _job(s)
    parts = [
        '<section class="words"><h2>In words</h2>' + "".join(f"<p>{w}</p>" for w in words(s)) + "</section>",
    ]
    if s.warnings:
        items = re.sub(r"`([^`]+)`", r"<code>\1</code>", "".join(f"<li>{esc(w)}</li>" for w in s.warnings))
        parts.append(f'<section class="warn"><h2>Note</h2><ul>{items}</ul></section>')
    main = tables.table(s, s.rows)
    parts.append("<h2>Results</h2>" + elements.table(main, [r.style for r in s.rows]) + section("ranking"))
    for i, axis in enumerate(("round", "bytes", "gradient_steps", "simulated_seconds")):
        if drawn[axis]:
            title, lead = TITLES[axis]
            band = f" {band_words(s)}" if i == 0 else ""
            parts.append(f'<h2>{title}</h2><p class="note">{lead}{band}</p>{elements.legend(s)}{section(axis)}')
    compared = baselines.section(s)
    if compared is not None:
        drawn["baselines"] = list(compared.drawings)
        every["tables/baselines.csv"] = compared.csv
        parts.append(f"<h2>{baselines.TITLE}</h2>" + elements.worth(compared, section("baselines")))
    judged = clients.section(s)
    if judged is not None:
        drawn["clients"] = list(judged.drawings)
        every["tables/clients.csv"] = judged.csv
        table = f'{elements.pairs(judged.rows, judged.header)}<p class="note">{esc(judged.caption)}</p>'
        if judged.others:
            table += elements.pairs(judged.others, clients.OTHERS_HEADER)
            table += f'<p class="note">{esc(clients.OTHERS_CAPTION)}</p>'
        parts.append(f"<h2>{TITLES['clients'][0]}</h2>{elements.legend(s)}{section('clients')}{table}")
    if s.second:
        second = tables.table(s, s.second, models=True)
        parts.append(
            f"<h2>{TITLES['models'][0]}</h2>"
            + section("models")
            + elements.table(
                second._replace(caption="Columns as in the table of results."), [r.style for r in s.second]
            )
        )
    if drawn["partition"]:
        parts.append(f"<h2>{TITLES['partition'][0]}</h2>" + section("partition"))
    if drawn["more"]:
        parts.append(f"<h2>{TITLES['more'][0]}</h2>{elements.legend(s)}" + section("more"))
    parts.append(again.settings(s, paths, out))
    every["tables/summary.csv"] = tables.to_csv(s)
    every["tables/summary.md"] = tables.to_markdown(main)
    every["tables/summary.tex"] = tables.to_latex(main)
    template = Template(resources.files("fedconcord.report").joinpath("page.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=esc(f"{heading} · fedconcord"),
        heading=esc(heading),
        job=esc(job),
        body=re.sub(r"(\d) %", "\\1\u00a0%", "\n".join(parts)),  # no line break between a number and its unit
        footer="Written by fedconcord. Every figure is also in <code>figures/</code> (SVG and PNG), the table in "
        "<code>tables/</code> (CSV, Markdown, LaTeX).",
    )
    return page, every


def _job(s: Summary) -> tuple[str, str]:
    """Title and the job in one line."""
    runs = s.runs
    first = runs[0].head

    def of(field: str) -> str:
        values = list(dict.fromkeys(str(getattr(r.head, field)) for r in runs))
        return listing(values, "or")

    dims = sorted({r.head.dim for r in runs})
    size = f"{dims[0]:,}".replace(",", "\u202f") + (f" to {dims[-1]:,}".replace(",", "\u202f") if len(dims) > 1 else "")
    seeds = sorted({r.head.seed for r in runs})
    heading = (
        f"{len(s.methods)} methods on {first.data}" if len(s.methods) > 1 else f"{s.methods[0].name} on {first.data}"
    )
    parts = [of(f) for f in ("data", "partition", "model")]
    line = " · ".join(
        [
            *(p for p in parts if p.lower() not in ("", "none")),
            f"{size} parameters",
            f"{of('clients')} clients, {of('cohort')} a round",
            f"{of('rounds')} rounds",
            f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        ]
    )
    return heading, line
