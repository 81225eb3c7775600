"""report.html: one page that opens from disk, with the figures and tables beside it as files."""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import matplotlib

from fedconcord.basis.errors import UserError
from fedconcord.report import clients, figures, tables
from fedconcord.report.figures import Drawing, goal_value, lead_words, look, value
from fedconcord.report.load import UNPAIRED_KEYS, Run, flatten, load_runs, show, varying
from fedconcord.report.summary import Comparison, Summary, summarise

esc = html.escape


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes the whole file or nothing: a temporary file in the same folder, then a rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide the page from a web server
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def listing(names: Sequence[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _lead(s: Summary, c: Comparison) -> str:
    """'by 1.20 points (paired 95 % interval 0.50 to 1.90)'."""
    low, high = lead_words(s.primary, c.lead.low), lead_words(s.primary, c.lead.high)
    mean = lead_words(s.primary, c.lead.mean)
    if s.primary.log:
        return f"by a factor of {mean} (paired 95 % interval {low} to {high})"
    unit = " points" if s.primary.percent else ""
    return f"by {mean}{unit} (paired 95 % interval {low} to {high})"


def words(s: Summary) -> list[str]:
    """The 'In words' sentences, as HTML: a best method only where the intervals allow it."""
    v, m = s.verdict, s.primary
    final = {r.name: r.final for r in s.rows}
    what = f"final {m.title}"
    said: list[str] = []

    def short(name: str) -> str:
        return esc(s.method(name).short)

    side = "highest" if m.higher else "lowest"
    seeds = listing([str(x) for x in v.seeds]) if v.seeds else ""
    tests = f"Holm-corrected over {len(v.comparisons)} comparisons" if len(v.comparisons) > 1 else "one comparison"
    if v.kind == "best" and v.top is not None:
        near = min(v.comparisons, key=lambda c: c.lead.mean)
        worst = max(c.p_holm for c in v.comparisons)
        others = "every other method" if len(v.comparisons) > 1 and not v.left_out else "every other ranked method"
        said.append(
            f"<b>{short(v.top)} is best</b> in {what} ({value(m, final[v.top].mean)}): "
            + (
                f"ahead of {others}, and of the next, {short(near.name)}, {_lead(s, near)}"
                if len(v.comparisons) > 1
                else f"ahead of {short(near.name)} {_lead(s, near)}"
            )
            + f". Every paired interval excludes {1 if m.log else 0}; p ≤ {max(worst, 1e-4):.2g}"
            + f" ({tests}, seeds {seeds})."
        )
    elif v.kind == "tied" and v.top is not None:
        tied = [c for c in v.comparisons if not c.separated]
        behind = [c.name for c in v.comparisons if c.separated]
        front = listing([f"<b>{short(n)}</b>" for n in v.front])
        said.append(
            f"<b>No single best:</b> the data do not separate {front} in {what} ({side} mean: {short(v.top)}, "
            f"{value(m, final[v.top].mean)}; paired by seed, {tests}, seeds {seeds})."
        )
        same = [c.name for c in tied if c.lead.low == c.lead.high == 0]
        if same:
            said.append(f"{short(v.top)} and {listing([short(n) for n in same])} have equal values in every seed.")
        if behind:
            said.append(f"{short(v.top)} is ahead of {listing([short(n) for n in behind])}.")
        alone = [c.name for c in tied if c.lead.low > 0]
        if alone and len(v.comparisons) > 1:
            said.append(
                f"Taken alone, the paired 95 % interval of its lead over {listing([short(n) for n in alone], 'or')} "
                f"excludes {1 if m.log else 0}; corrected for {len(v.comparisons)} comparisons that is not enough."
            )
    elif v.kind == "one seed" and v.top is not None:
        said.append(
            f"One seed only: no interval can be given, so <b>no best method is named</b>. The {side} {what} of this "
            f"one draw is that of {short(v.top)} ({value(m, final[v.top].mean)}); <code>--seeds 0,1,2</code> or "
            "more would tell whether that holds."
        )
    elif v.kind == "one method" and v.top is not None:
        i = final[v.top]
        spread = ""
        if i.n > 1:
            bounds = f"{value(m, i.low)} to {value(m, i.high)}"
            spread = f" (95 % t interval over {i.n} seeds: {bounds})"
        elif i.n == 1:
            spread = " (one seed, so no interval)"
        others = " It is the only method that can be ranked." if v.left_out else ""
        said.append(f"{short(v.top)} ends at {m.title} <b>{value(m, i.mean)}</b>{spread}.{others}")
    elif v.kind == "unpaired":
        said.append(
            "<b>No best method is named:</b> the runs are not paired by seed (see below), and a difference between "
            "them would be that of the clients as much as that of the methods."
        )
    else:
        said.append("<b>No best method is named:</b> no method has a complete run.")
    if v.left_out:
        said.append("Not ranked: " + "; ".join(f"{short(n)} ({esc(why)})" for n, why in v.left_out) + ".")
    if v.kind in ("best", "tied") and len(v.seeds) < 5:
        degrees = f"{len(v.seeds) - 1} degree{'s' if len(v.seeds) > 2 else ''} of freedom"
        said.append(
            f"{len(v.seeds)} seeds leave the t interval {degrees}: only large differences can be told apart, and "
            "“not separated” does not mean “equal”."
        )
    said += _target_words(s)
    return said


def _target_words(s: Summary) -> list[str]:
    if not math.isfinite(s.target) or len(s.rows) < 2:
        return []
    hits = [(esc(s.method(r.name).short), sum(x.round is not None for x in r.reach), len(r.reach)) for r in s.rows]
    every = [n for n, k, of in hits if k == of]
    some = [f"{n} ({k} of {of} seeds)" for n, k, of in hits if 0 < k < of]
    never = [n for n, k, _ in hits if k == 0]
    goal = f"{goal_value(s.primary, s.target)} {s.primary.title}"
    if len(every) == len(hits):
        return [f"Every method reaches {goal} in every run; the table says at what cost."]
    parts = [f"in every run by {listing(every)}"] if every else []
    parts += [f"in some by {listing(some)}"] if some else []
    parts += [f"never by {listing(never)}"] if never else []
    return [f"{goal} is reached {'; '.join(parts)}."]


def _marker(kind: str, x: float, y: float, r: float) -> str:
    """The path of a matplotlib marker, as the legend's keys draw it."""
    star = [(r * 1.25 * (1 if k % 2 == 0 else 0.42), math.pi * (k / 5 - 0.5)) for k in range(10)]
    polygons: dict[str, list[tuple[float, float]]] = {
        "s": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "^": [(0, -r), (r, r), (-r, r)],
        "v": [(0, r), (r, -r), (-r, -r)],
        "<": [(-r, 0), (r, -r), (r, r)],
        ">": [(r, 0), (-r, -r), (-r, r)],
        "D": [(0, -1.2 * r), (1.2 * r, 0), (0, 1.2 * r), (-1.2 * r, 0)],
        "p": [(r * math.sin(2 * math.pi * k / 5), -r * math.cos(2 * math.pi * k / 5)) for k in range(5)],
        "h": [(r * math.sin(math.pi * k / 3), -r * math.cos(math.pi * k / 3)) for k in range(6)],
        "*": [(a * math.cos(t), a * math.sin(t)) for a, t in star],
        "P": [
            (-r / 3, -r), (r / 3, -r), (r / 3, -r / 3), (r, -r / 3), (r, r / 3), (r / 3, r / 3),
            (r / 3, r), (-r / 3, r), (-r / 3, r / 3), (-r, r / 3), (-r, -r / 3), (-r / 3, -r / 3),
        ],
        "X": [
            (-r, -r / 2), (-r / 2, -r), (0, -r / 2), (r / 2, -r), (r, -r / 2), (r / 2, 0),
            (r, r / 2), (r / 2, r), (0, r / 2), (-r / 2, r), (-r, r / 2), (-r / 2, 0),
        ],
    }  # fmt: skip
    points = polygons.get(kind, [(r * math.sin(k * 0.3927), -r * math.cos(k * 0.3927)) for k in range(16)])
    return "M" + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in points) + "Z"


def _key(index: int) -> str:
    """The line style and marker of a method as a small picture; its name stands beside it."""
    colour, dash, marker = look(index)
    array = "" if dash == "solid" else f' stroke-dasharray="{" ".join(f"{2 * d:g}" for d in dash[1])}"'
    return (
        '<svg class="key" viewBox="0 0 40 14" aria-hidden="true">'
        f'<path d="M1 7H39" stroke="{colour}" stroke-width="2.4"{array}/>'
        f'<path d="{_marker(marker, 20, 7, 4.6)}" fill="{colour}" stroke="#fff" stroke-width="1"/></svg>'
    )


def _legend(s: Summary) -> str:
    if len(s.methods) < 2:
        return ""
    items = [
        f'<li data-method="{m.index}" tabindex="0">{_key(m.index)}<span>{esc(m.name)}</span></li>' for m in s.methods
    ]
    return f'<ul class="legend" aria-label="Methods">{"".join(items)}</ul>'


def _figure(d: Drawing, number: int) -> str:
    svg = figures.to_inline(d.draw(False), f"f{number}", d.alt)
    kind = ' class="wide scroll"' if d.wide else ""
    note = f"<figcaption>{esc(d.caption)}</figcaption>" if d.caption else ""
    return f"<figure{kind}><div>{svg}</div>{note}</figure>"


def _breakable(name: str) -> str:
    """A long name may break after a comma or an opening bracket, and nowhere else if it can be helped."""
    return re.sub(r"([,(])(?=\S)", r"\1<wbr>", esc(name)) if len(name) > 24 else esc(name)


def _cell(text: str) -> str:
    """What stands in brackets at the end of a cell goes below it, small."""
    found = re.fullmatch(r"(.*?) ([(\[].*[)\]])", text)
    return f"{esc(found[1])}<br><small>{esc(found[2])}</small>" if found else esc(text)


def _table(t: tables.Table, indices: Sequence[int]) -> str:
    head = "".join(f'<th scope="col">{esc(h)}</th>' for h in t.header)
    main = next(j for j, h in enumerate(t.header) if h.startswith("final"))
    body = []
    for row, strong, index in zip(t.rows, t.strong, indices, strict=True):
        opened = ['<td class="main">' if j == main else "<td>" for j in range(len(row))]
        cells = "".join(f"{o}{_cell(c)}</td>" for o, c in zip(opened[1:], row[1:], strict=True))
        line = '<tr class="strong">' if strong else "<tr>"
        name = f'<div class="name">{_key(index)}<span>{_breakable(row[0])}</span></div>'
        body.append(f'{line}<th scope="row">{name}</th>{cells}</tr>')
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        f'<p class="note">{esc(t.caption)}</p>'
    )


def _pairs(rows: Sequence[tuple[str, ...]], head: Sequence[str]) -> str:
    top = "".join(f'<th scope="col">{esc(h)}</th>' for h in head)
    cells = ["".join(f"<td>{esc(c)}</td>" for c in r[1:]) for r in rows]
    body = "".join(f'<tr><th scope="row">{esc(r[0])}</th>{c}</tr>' for r, c in zip(rows, cells, strict=True))
    return f'<div class="table"><table class="left"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _terms(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in pairs) + "</dl>"


def to_toml(config: Mapping[str, Any], prefix: str = "") -> str:
    """A configuration as TOML; keys that are null are left out, for TOML has no null."""

    def key(k: str) -> str:
        return k if re.fullmatch(r"[A-Za-z0-9_-]+", k) else json.dumps(k, ensure_ascii=False)

    def cell(v: Any) -> str:
        if isinstance(v, Mapping):
            return "{" + ", ".join(f"{key(k)} = {cell(x)}" for k, x in v.items() if x is not None) + "}"
        if isinstance(v, list | tuple):
            return "[" + ", ".join(cell(x) for x in v if x is not None) + "]"
        if isinstance(v, float) and not math.isfinite(v):
            return str(v)
        return json.dumps(v, ensure_ascii=False, default=str)

    lines = [f"{key(k)} = {cell(v)}" for k, v in config.items() if v is not None and not isinstance(v, Mapping)]
    for k, v in config.items():
        if isinstance(v, Mapping):
            lines += ["", f"[{prefix}{key(k)}]", to_toml(v, f"{prefix}{key(k)}.")]
    return "\n".join(lines).strip()


def whole_job(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The settings of the comparison that gives all these runs; None if no single comparison does."""
    labels = list(dict.fromkeys(r.head.label for r in runs))
    seeds = sorted({r.head.seed for r in runs})
    made = {(r.head.label, r.head.seed) for r in runs}
    texts = all(r.head.config and r.name == r.head.label and r.head.label.startswith(r.head.method) for r in runs)
    if not texts or len(made) != len(labels) * len(seeds) or len(made) == 1:
        return None
    job = json.loads(json.dumps(runs[0].head.config))
    for key in ("method", "label", "seed", "algorithm", "out"):  # a method's text holds what is its own
        job.pop(key, None)
    for key in varying(runs):
        section, _, leaf = key.rpartition(".")
        if key == "method" or section == "algorithm":
            continue
        plain = [r for r in runs if f"{key}=" not in r.head.label]  # those that took it from the job
        values = {show(flatten(r.head.config).get(key)): flatten(r.head.config).get(key) for r in plain}
        if section != "local" or len(values) > 1:
            return None
        job["local"].pop(leaf, None)
        if values:
            job["local"][leaf] = next(iter(values.values()))
    return {"methods": labels, "seeds": seeds, **job}


def _values(named: Mapping[str, str], runs: Sequence[Run]) -> list[str]:
    """`key = value` of the keys that a method's runs have; two where its seeds ran elsewhere or longer."""
    flats = [flatten(r.head.config) for r in runs]
    found = {name: dict.fromkeys(show(f[k]) for f in flats if k in f) for k, name in named.items()}
    return [f"{name} = {' or '.join(values)}" for name, values in found.items() if values]


def _settings(s: Summary, paths: Sequence[Path], out: Path) -> str:
    runs = [m.runs[0] for m in s.methods]
    flats = [flatten(r.head.config) for m in s.methods for r in m.runs]
    differ = varying(s.runs)
    every = dict.fromkeys(k for f in flats for k in f)
    same = [k for k in every if k not in differ and not UNPAIRED_KEYS & set(k.split("."))]
    command = " ".join(["fedconcord report", *(shlex.quote(str(p)) for p in paths), "--out", shlex.quote(str(out))])
    parts = ["<h2>Settings and how to get this again</h2>"]
    if same:
        values = [(k, show(next(f[k] for f in flats if k in f))) for k in same]
        parts.append(f"<details open><summary>Shared by every run</summary>{_terms(values)}</details>")
    if differ:
        named = {k: k.removeprefix("algorithm.") for k in differ if k != "method"}
        rows = [(m.name, ", ".join(_values(named, m.runs))) for m in s.methods]
        parts.append(f"<h3>Where the methods differ</h3>{_pairs(rows, ('method', 'settings'))}")
    if any(flats):
        parts.append("<h3>The same runs</h3><p>Save settings below as <code>job.toml</code>, then:</p>")
        job = whole_job(s.runs)
        if job is not None:
            parts.append("<pre>fedconcord compare --config job.toml --out runs/again</pre>")
            parts.append(f"<details><summary>the whole comparison</summary><pre>{esc(to_toml(job))}</pre></details>")
        parts.append("<pre>fedconcord run --config job.toml --out runs/again</pre>")
        for r in runs:
            toml = f"<pre>{esc(to_toml(r.head.config))}</pre>"
            parts.append(f"<details><summary>{esc(r.name)}, seed {r.head.seed}</summary>{toml}</details>")
    parts.append(f"<h3>This page, its figures and tables</h3><pre>{esc(command)}</pre>")
    versions = dict.fromkeys(tuple(sorted(r.head.versions.items())) for r in s.runs)
    said = "; ".join(", ".join(f"{k} {v}" for k, v in group) for group in versions if group)
    parts.append(f'<p class="note">Versions: {esc(said or "not recorded")}.</p>')
    return "\n".join(parts)


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
    drawn = figures.drawings(s)
    every: dict[str, str | bytes] = {}
    number = 0

    def section(key: str) -> str:
        nonlocal number
        shown = []
        for d in drawn[key]:
            number += 1
            shown.append(_figure(d, number))
            every[f"figures/{d.name}.svg"], every[f"figures/{d.name}.png"] = figures.to_files(d.draw(True))
        return f'<div class="grid">{"".join(shown)}</div>' if shown else ""

    heading, job = _job(s)
    parts = [
        '<section class="words"><h2>In words</h2>' + "".join(f"<p>{w}</p>" for w in words(s)) + "</section>",
    ]
    if s.warnings:
        items = re.sub(r"`([^`]+)`", r"<code>\1</code>", "".join(f"<li>{esc(w)}</li>" for w in s.warnings))
        parts.append(f'<section class="warn"><h2>Note</h2><ul>{items}</ul></section>')
    main = tables.table(s, s.rows)
    parts.append("<h2>Results</h2>" + _table(main, [r.style for r in s.rows]) + section("ranking"))
    for i, axis in enumerate(("round", "bytes", "gradient_steps", "simulated_seconds")):
        if drawn[axis]:
            title, lead = TITLES[axis]
            band = f" {figures.band_words(s)}" if i == 0 else ""
            parts.append(f'<h2>{title}</h2><p class="note">{lead}{band}</p>{_legend(s)}{section(axis)}')
    judged = clients.section(s)
    if judged is not None:
        drawn["clients"] = list(judged.drawings)
        every["tables/clients.csv"] = judged.csv
        table = f'{_pairs(judged.rows, judged.header)}<p class="note">{esc(judged.caption)}</p>'
        parts.append(f"<h2>{TITLES['clients'][0]}</h2>{_legend(s)}{section('clients')}{table}")
    if s.second:
        second = tables.table(s, s.second, models=True)
        parts.append(
            f"<h2>{TITLES['models'][0]}</h2>"
            + section("models")
            + _table(second._replace(caption="Columns as in the table of results."), [r.style for r in s.second])
        )
    if drawn["partition"]:
        parts.append(f"<h2>{TITLES['partition'][0]}</h2>" + section("partition"))
    if drawn["more"]:
        parts.append(f"<h2>{TITLES['more'][0]}</h2>{_legend(s)}" + section("more"))
    parts.append(_settings(s, paths, out))
    every["tables/summary.csv"] = tables.to_csv(s)
    every["tables/summary.md"] = tables.to_markdown(main)
    every["tables/summary.tex"] = tables.to_latex(main)
    template = Template(files("fedconcord.report").joinpath("page.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=esc(f"{heading} · fedconcord"),
        heading=esc(heading),
        job=esc(job),
        body=re.sub(r"(\d) %", "\\1\u00a0%", "\n".join(parts)),  # no line break between a number and its unit
        footer="Written by fedconcord. Every figure is also in <code>figures/</code> (SVG and PNG), the table in "
        "<code>tables/</code> (CSV, Markdown, LaTeX).",
    )
    return page, every


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Writes `out`/report.html, `out`/figures/*.svg|png and `out`/tables/summary.csv|md|tex; returns the page's path.

    `paths` are folders of runs or of comparisons. The same runs give the same bytes. Raises UserError for what
    `load_runs` refuses, for runs that cannot be ranked together, and for an `out` that cannot be written.
    """
    runs = load_runs(paths)
    out = Path(out)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the report
        matplotlib.rcParams.update(figures.STYLE)
        page, others = build(runs, paths, out)
    try:
        for folder in ("figures", "tables"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for name, content in others.items():
            write_atomic(out / name, content)
        write_atomic(out / "report.html", page)
    except OSError as e:
        raise UserError(f"cannot write the report to {out}: {e.strerror or e}") from None
    return out / "report.html"
