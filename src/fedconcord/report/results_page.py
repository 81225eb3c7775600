"""report.html of the runs of one data set or of several, with the figures and tables beside it as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedconcord.basis import files
from fedconcord.report import again, baselines, clients, method_tables
from fedconcord.report.curves import band_words
from fedconcord.report.datasets_page import build_several
from fedconcord.report.figures import drawings
from fedconcord.report.format import listing
from fedconcord.report.load import Run, data_name, load_data_sets, short_names
from fedconcord.report.page import Page, in_words, legend, table
from fedconcord.report.summary import Summary, summarise
from fedconcord.report.words import words


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
    page, drawn = Page(heading, job), drawings(s)
    main = method_tables.table(s, s.rows)
    page.parts.append(in_words(words(s), s.warnings))
    page.section("Results", table(main, [r.style for r in s.rows]), page.figures(drawn["ranking"]))
    for axis, (title, lead) in AXES.items():
        if drawn[axis]:
            lead += f" {band_words(s)}" if axis == "round" else ""
            page.section(title, legend(s), page.figures(drawn[axis]), lead=lead)
    for one, names in ((baselines.section(s), ""), (clients.section(s), legend(s))):
        if one is not None:
            page.add(one, names)
    if s.second:
        second = method_tables.table(s, s.second, models=True)._replace(caption="Columns as in the table of results.")
        shown = table(second, [r.style for r in s.second])
        page.section("Other models of the methods", page.figures(drawn["models"]), shown)
    if drawn["partition"]:
        page.section("Who holds what", page.figures(drawn["partition"]))
    if drawn["more"]:
        page.section("Other recorded metrics", legend(s), page.figures(drawn["more"]))
    page.parts.append(again.settings(s, paths, out))
    titled = main._replace(caption=f"Final {s.primary.title}. {job}. {main.caption}")
    page.files |= {
        "tables/summary.csv": method_tables.to_csv(s),
        "tables/summary.md": method_tables.to_markdown(main),
        "tables/summary.tex": method_tables.to_latex(titled, files.folder_name(data_of(s))),
        "figures/figures.tex": method_tables.figures_tex(page.drawn),
    }
    return page


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
