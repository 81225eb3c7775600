"""A page that stands alone: its parts as HTML, figures that are numbered, and the files that lie beside it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from matplotlib.markers import MarkerStyle

from fedconcord.insight.report.figures.style import Drawing, look, styled, to_files, to_inline
from fedconcord.insight.report.method_tables import Table
from fedconcord.study.statistics.summary import Summary
from fedconcord.support import files
from fedconcord.support.errors import UserError

esc = html.escape
LONG = 20  # characters of a word from which on it may break within, in a table
FOOTER = (
    "Every figure is also in <code>figures/</code> (SVG, PNG, PDF; captions in <code>figures.tex</code>), every table "
    "in <code>tables/</code> (CSV, Markdown, LaTeX)."
)


class Section(NamedTuple):
    """What a page shows of one subject: text, figures and tables, in this order, and the files beside the page."""

    title: str
    sentences: tuple[str, ...]
    drawings: tuple[Drawing, ...]
    tables: tuple[Table, ...]  # folded where they have a title
    files: dict[str, str | bytes]  # by path below the page's folder


class Page:
    """A page as it is put together. Parts and the footer, which says where the files are, are HTML."""

    def __init__(self, heading: str, job: str, footer: str = FOOTER, folder: str = "figures") -> None:
        self.heading, self.job, self.footer = heading, job, footer  # `job` is one line of text
        self.folder = folder  # of the figures' files, below the page's
        self.parts: list[str] = []
        self.drawn: list[Drawing] = []
        self.files: dict[str, str | bytes] = {}  # by path below the page's folder

    def section(self, title: str, *parts: str, lead: str = "") -> None:
        """Add a section; `lead` is text that says what it shows."""
        self.parts.append(f"<h2>{title}</h2>{note(lead) if lead else ''}{''.join(parts)}")

    def add(self, one: Section, legend: str = "") -> None:
        """Add a section with its files; `legend` is HTML, above the figures."""
        shown = [
            details(esc(t.title), pairs(t.rows, t.header, t.caption)) if t.title else pairs(t.rows, t.header, t.caption)
            for t in one.tables
        ]
        sentences = paragraphs([esc(sentence) for sentence in one.sentences])
        self.section(one.title, sentences, legend, self.figures(one.drawings), *shown)
        self.files |= one.files

    def figures(self, drawings: Sequence[Drawing], keep: bool = True) -> str:
        """The figures side by side, numbered on from the last ones; their files lie beside the page unless `keep` is
        false."""
        first = len(self.drawn) + 1
        self.drawn += drawings
        with styled():
            if keep:
                self.files |= {
                    f"{self.folder}/{d.name}.{suffix}": content
                    for d in drawings
                    for suffix, content in to_files(d.draw(True)).items()
                }
            shown = [figure(d, first + i) for i, d in enumerate(drawings)]
        return f'<div class="grid">{"".join(shown)}</div>' if shown else ""

    def html(self) -> str:
        """The whole page."""
        template = Template(
            resources.files("fedconcord.insight.report").joinpath("page.html").read_text(encoding="utf-8")
        )
        return template.substitute(
            title=esc(f"{self.heading} · fedconcord"),
            heading=esc(self.heading),
            job=esc(self.job),
            body=re.sub(r"(\d) %", "\\1\u00a0%", "\n".join(self.parts)),  # no line break before a number's unit
            footer=f"Written by fedconcord. {self.footer}",
        )

    def write(self, path: Path) -> Path:
        """Write the files beside the page, then the page itself; its path.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            for name, content in self.files.items():
                (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
                files.write_bytes(path.parent / name, content.encode() if isinstance(content, str) else content)
            files.write_text(path, self.html())
        except OSError as error:
            raise UserError(f"cannot write the report to {path.parent}: {error.strerror or error}") from None
        return path


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
    caption = f"<figcaption>{esc(d.caption)}</figcaption>" if d.caption else ""
    return f"<figure{kind}><div>{svg}</div>{caption}</figure>"


def note(text: str) -> str:
    """Text in small letters, as below a table."""
    return f'<p class="note">{esc(text)}</p>'


def paragraphs(sentences: Sequence[str]) -> str:
    """Sentences of HTML, a paragraph each."""
    return "".join(f"<p>{sentence}</p>" for sentence in sentences)


def details(title: str, body: str) -> str:
    """What is folded until somebody asks for it; both are HTML."""
    return f"<details><summary>{title}</summary>{body}</details>"


def with_code(text: str) -> str:
    """Text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", esc(text))


def code_block(text: str) -> str:
    """A command or settings as they are typed. Long lines wrap, but not within the name of an option."""
    return "<pre>" + re.sub(r"(?<!\S)(--[\w-]+)", r'<span class="option">\1</span>', esc(text)) + "</pre>"


def in_words(sentences: Sequence[str], warnings: Sequence[str]) -> str:
    """'In words', and what to be wary of; the sentences are HTML, the warnings text."""
    parts = '<section class="words"><h2>In words</h2>' + paragraphs(sentences) + "</section>"
    if warnings:
        items = "".join(f"<li>{with_code(w)}</li>" for w in warnings)
        parts += f'\n<section class="warn"><h2>Note</h2><ul>{items}</ul></section>'
    return parts


def table(t: Table, indices: Sequence[int]) -> str:
    """A table with its caption; `indices` give each row the key of its method. Columns that are rarely asked for stand
    in a second table, folded."""
    count = len(t.header)
    parts = _columns(t, indices, range(1, count if t.shown is None else t.shown))
    if t.shown is not None and t.shown < count:
        folded = range(t.shown, count)
        names = esc(", ".join(t.header[j] for j in folded))
        parts += details(f"More columns: {names}", _columns(t, indices, folded))
    return parts + note(t.caption)


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


def pairs(rows: Sequence[tuple[str, ...]], head: Sequence[str], caption: str = "") -> str:
    """A plain table: the first cell of a row names it."""
    top = "".join(f'<th scope="col">{esc(h)}</th>' for h in head)
    cells = ["".join(f"<td>{_whole_words(c)}</td>" for c in r[1:]) for r in rows]
    body = "".join(f'<tr><th scope="row">{_whole_words(r[0])}</th>{c}</tr>' for r, c in zip(rows, cells, strict=True))
    whole = f'<div class="table"><table class="left"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    return whole + (note(caption) if caption else "")


def terms(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with their values."""
    return "<dl>" + "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in pairs) + "</dl>"


def _marker(kind: str, x: float, y: float, r: float) -> str:
    """The path of a matplotlib marker around a point, as figures draw it."""
    marker = MarkerStyle(kind)
    path = marker.get_path().transformed(marker.get_transform())  # half a unit around 0, y upward
    outline = np.asarray(path.to_polygons()[0])
    return "M" + "L".join(f"{x + 2 * r * dx:.1f} {y - 2 * r * dy:.1f}" for dx, dy in outline) + "Z"


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
    return re.sub(r"([,(])(?=\S)", r"\1<wbr>", esc(name)) if len(name) >= LONG else esc(name)


def _whole_words(text: str) -> str:
    """A cell that breaks between words; a word that is too long for most columns may also break within."""
    return "".join(
        f'<span class="long">{_breakable(word)}</span>' if len(word) >= LONG else esc(word)
        for word in re.split(r"(\s+)", text)
    )


def _cell(text: str) -> str:
    """What stands in brackets at the end of a cell goes below it, small."""
    parts = re.fullmatch(r"(.*?) ([(\[].*[)\]])", text)
    return f"{esc(parts[1])}<br><small>{esc(parts[2])}</small>" if parts else esc(text)
