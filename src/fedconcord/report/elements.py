"""Pieces of the page as HTML: figures, tables, lists, and the methods' keys beside their names."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from importlib import resources
from string import Template

from fedconcord.report.baselines import Section
from fedconcord.report.figures import Drawing, to_files, to_inline
from fedconcord.report.figures.style import look
from fedconcord.report.summary import Summary
from fedconcord.report.tables import Table

esc = html.escape


def legend(s: Summary) -> str:
    """The methods with their keys; nothing for one method, which every title names."""
    if len(s.methods) < 2:
        return ""
    items = [
        f'<li data-method="{m.index}" tabindex="0">{_key(m.index)}<span>{esc(m.name)}</span></li>' for m in s.methods
    ]
    return f'<ul class="legend" aria-label="Methods">{"".join(items)}</ul>'


def figure(d: Drawing, number: int) -> str:
    """A figure with its caption; the number keeps the ids of its parts apart from other figures'."""
    svg = to_inline(d.draw(False), f"f{number}", d.alt)
    kind = ' class="wide scroll"' if d.wide else ""
    note = f"<figcaption>{esc(d.caption)}</figcaption>" if d.caption else ""
    return f"<figure{kind}><div>{svg}</div>{note}</figure>"


def grid(drawn: Sequence[Drawing], first: int, folder: str = "figures") -> tuple[str, dict[str, str | bytes]]:
    """Figures for the page, numbered from `first`, and their files by path below the report's folder."""
    shown = [figure(d, first + i) for i, d in enumerate(drawn)]
    files: dict[str, str | bytes] = {
        f"{folder}/{d.name}.{suffix}": content for d in drawn for suffix, content in to_files(d.draw(True)).items()
    }
    return (f'<div class="grid">{"".join(shown)}</div>' if shown else ""), files


FOOTER = (
    "Every figure is also in <code>figures/</code> (SVG, PNG, PDF; captions in <code>figures.tex</code>), every table "
    "in <code>tables/</code> (CSV, Markdown, LaTeX)."
)


def page(heading: str, job: str, parts: Sequence[str], footer: str = FOOTER) -> str:
    """The page: `job` is one line, `parts` and `footer`, which says where the files are, are HTML."""
    template = Template(resources.files("fedconcord.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=esc(f"{heading} · fedconcord"),
        heading=esc(heading),
        job=esc(job),
        body=re.sub(r"(\d) %", "\\1\u00a0%", "\n".join(parts)),  # no line break between a number and its unit
        footer=f"Written by fedconcord. {footer}",
    )


def told(sentences: Sequence[str], warnings: Sequence[str]) -> str:
    """'In words', and what to be wary of; the sentences are HTML, the warnings text."""
    shown = '<section class="words"><h2>In words</h2>' + "".join(f"<p>{w}</p>" for w in sentences) + "</section>"
    if warnings:
        items = re.sub(r"`([^`]+)`", r"<code>\1</code>", "".join(f"<li>{esc(w)}</li>" for w in warnings))
        shown += f'\n<section class="warn"><h2>Note</h2><ul>{items}</ul></section>'
    return shown


def table(t: Table, indices: Sequence[int]) -> str:
    """A table with its caption; `indices` give each row the key of its method. Columns that are rarely asked for stand
    in a second table, folded."""
    count = len(t.header)
    shown = _columns(t, indices, range(1, count if t.shown is None else t.shown))
    if t.shown is not None and t.shown < count:
        folded = range(t.shown, count)
        names = esc(", ".join(t.header[j] for j in folded))
        shown += f"<details><summary>More columns: {names}</summary>{_columns(t, indices, folded)}</details>"
    return f'{shown}<p class="note">{esc(t.caption)}</p>'


def _columns(t: Table, indices: Sequence[int], columns: Sequence[int]) -> str:
    """Some columns of a table, behind the names of its rows."""
    head = "".join(f'<th scope="col">{esc(t.header[j])}</th>' for j in (0, *columns))
    main = next(j for j, h in enumerate(t.header) if h.startswith("final"))
    body = []
    for row, strong, index in zip(t.rows, t.strong, indices, strict=True):
        cells = "".join(f"<td{' class=main' * (j == main)}>{_cell(row[j])}</td>" for j in columns)
        line = '<tr class="strong">' if strong else "<tr>"
        name = f'<div class="name">{_key(index)}<span>{_breakable(row[0])}</span></div>'
        body.append(f'{line}<th scope="row">{name}</th>{cells}</tr>')
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def pairs(rows: Sequence[tuple[str, ...]], head: Sequence[str]) -> str:
    """A plain table: the first cell of a row names it."""
    top = "".join(f'<th scope="col">{esc(h)}</th>' for h in head)
    cells = ["".join(f"<td>{esc(c)}</td>" for c in r[1:]) for r in rows]
    body = "".join(f'<tr><th scope="row">{esc(r[0])}</th>{c}</tr>' for r, c in zip(rows, cells, strict=True))
    return f'<div class="table"><table class="left"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def worth(found: Section, figures: str) -> str:
    """What baselines say: sentences, a figure, a table of models and one of clients."""
    said = "".join(f"<p>{esc(sentence)}</p>" for sentence in found.sentences)
    table = f'{pairs(found.rows, found.header)}<p class="note">{esc(found.caption)}</p>'
    more = "".join(
        f"<details><summary>{esc(one.title)}</summary>{pairs(one.rows, one.header)}</details>" for one in found.more
    )
    return said + figures + table + (pairs(found.clients, found.clients_header) if found.clients else "") + more


def terms(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with their values."""
    return "<dl>" + "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in pairs) + "</dl>"


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


def _breakable(name: str) -> str:
    """A long name may break after a comma or an opening bracket, and nowhere else if it can be helped."""
    return re.sub(r"([,(])(?=\S)", r"\1<wbr>", esc(name)) if len(name) > 24 else esc(name)


def _cell(text: str) -> str:
    """What stands in brackets at the end of a cell goes below it, small."""
    found = re.fullmatch(r"(.*?) ([(\[].*[)\]])", text)
    return f"{esc(found[1])}<br><small>{esc(found[2])}</small>" if found else esc(text)
