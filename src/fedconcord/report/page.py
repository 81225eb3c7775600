"""report.html: one page that opens from disk, with the figures and tables beside it as files."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from fedconcord.basis import files, folders
from fedconcord.basis.errors import UserError
from fedconcord.report import again, baselines, clients, elements, tables
from fedconcord.report.curves import band_words
from fedconcord.report.figures import drawings
from fedconcord.report.figures.style import styled
from fedconcord.report.format import listing
from fedconcord.report.load import Run, data_name, load_data_sets, short_names
from fedconcord.report.several import build_several
from fedconcord.report.summary import Summary, summarise
from fedconcord.report.words import words

esc = html.escape


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Writes `out`/report.html, figures/*.svg|png|pdf and tables/*.csv|md|tex beside it; returns the page's path.

    `paths` are folders of runs or of comparisons; of several data sets the page ranks the methods over them. Without
    `out` it is the first path, and of several data sets a new folder below runs/. The same runs give the same bytes.
    Raises UserError for what `load_data_sets` refuses, for runs that cannot be ranked together, and for an `out` that
    cannot be written.
    """
    sets = load_data_sets(paths)
    if out is None:
        out = paths[0] if len(sets) == 1 else folders.free_folder(Path("runs"), "report")
    out = Path(out)
    with styled():
        page, others = (
            build(next(iter(sets.values())), paths, out) if len(sets) == 1 else build_several(sets, paths, out)
        )
    try:
        for name, content in others.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
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
        shown, found = elements.grid(drawn[key], number + 1)
        number += len(drawn[key])
        every.update(found)
        return shown

    heading, job = page_head(s, paths)
    parts = [elements.told(words(s), s.warnings)]
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
    titled = main._replace(caption=f"Final {s.primary.title}. {job}. {main.caption}")
    every["tables/summary.tex"] = tables.to_latex(titled, folders.folder_name(data_of(s)))
    every["figures/figures.tex"] = tables.figures_tex([d for found in drawn.values() for d in found])
    return elements.page(heading, job, parts), every


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
