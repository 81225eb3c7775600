"""Markdown as `pages` writes it, on paper: headings, paragraphs, bold, italics, code, tables and figures as PDF."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpdf import FPDF

TEXT, TABLE, HEADINGS = 9.5, 7.0, {1: 16.0, 2: 12.0}  # points
LEFT_OPEN = 3.0  # beside the text of a cell, millimetres
WIDEST_WISH = 160.0  # of a column; longer text wraps
LONGEST = 2000  # characters of a cell; what is longer goes on in another row, as no row may be higher than a page
FIGURE_HEIGHT = 120.0
LINK, ITALIC, PIPE = r"\[([^][]+)\]\([^()]+\)", r"(?<![*\w])\*([^*\s](?:[^*]*[^*\s])?)\*(?![*\w])", r"(?<!\\)\|"


def pdf(texts: Sequence[str], folder: Path, date: datetime) -> bytes:
    """Markdown texts one after the other, each a chapter on a new page, with figures of a folder; the first text's
    heading is the document's title, and `date` that of its making."""
    from fpdf import FPDF

    document: FPDF = type("Numbered", (FPDF,), {"footer": _footer})(orientation="landscape", format="A4")
    document.set_creation_date(date)
    document.set_title(texts[0].partition("\n")[0].removeprefix("# "))
    document.set_auto_page_break(True, margin=15)
    for text in texts:
        document.add_page()
        for block in re.split(r"\n\n+", text.strip("\n")):
            _block(document, block, folder)
    return bytes(document.output())


def _footer(document: FPDF) -> None:
    """The number of a page below it."""
    document.set_y(-10)
    document.set_font("Helvetica", size=TABLE)
    document.cell(0, 5, f"{document.page_no()} of {{nb}}", align="R")


def _block(document: FPDF, block: str, folder: Path) -> None:
    """What stands between two empty lines."""
    write = partial(document.multi_cell, 0, align="L", new_x="LMARGIN", new_y="NEXT")
    figure, heading = re.fullmatch(r"!\[(.*)\]\((.*)\)", block), re.fullmatch(r"(#+) (.*)", block)
    if figure:
        document.image(folder / figure[2], h=FIGURE_HEIGHT, w=document.epw, keep_aspect_ratio=True, alt_text=figure[1])
    elif heading:
        level, title = len(heading[1]), _plain(heading[2])
        document.ln(2)
        document.start_section(title, level - 1)
        document.set_font("Helvetica", "B", HEADINGS[level])
        write(text=title)
    elif block.startswith("|"):
        _table(document, [row for row in map(_cells, block.splitlines()) if set(row) != {"---"}])
    elif block.startswith("    "):
        document.set_font("Courier", size=TEXT - 1)
        write(text="\n".join(_plain(line.removeprefix("    ")) for line in block.splitlines()))
    else:
        document.set_font("Helvetica", size=TEXT)
        write(text=_marked(" ".join(block.splitlines())), markdown=True)
    document.ln(2.5)


def _cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(PIPE, line.strip())[1:-1]]


def _table(document: FPDF, rows: Sequence[Sequence[str]]) -> None:
    """A table; columns that do not fit beside each other come in further tables below, the first column in each."""
    rows = [part for row in rows for part in zip_longest(*(wrap(cell, LONGEST) or [""] for cell in row), fillvalue="")]
    document.set_font("Helvetica", "B", TABLE)  # the wider style
    columns = range(len(rows[0]))
    words = [[_plain(row[k].replace("**", "")) for row in rows] for k in columns]
    width = document.get_string_width
    wish = [min(max(map(width, column)), WIDEST_WISH) + LEFT_OPEN for column in words]
    least = [max(map(width, ["", *" ".join(column).split()])) + LEFT_OPEN for column in words]
    document.set_font("Helvetica", size=TABLE)
    for group in _groups(least, document.epw):
        slack = sum(wish[k] - least[k] for k in group) or 1.0
        share = min(1.0, (document.epw - sum(least[k] for k in group)) / slack)
        widths = [least[k] + max(share, 0.0) * (wish[k] - least[k]) for k in group]
        how = {"align": "L", "text_align": "L", "v_align": "T", "borders_layout": "HORIZONTAL_LINES", "markdown": True}
        how |= {"col_widths": tuple(widths), "width": min(sum(widths), document.epw), "line_height": TABLE * 0.45}
        with document.table([[_marked(row[k]) for k in group] for row in rows], **how):
            pass
        document.ln(1.5)


def _groups(least: Sequence[float], width: float) -> list[list[int]]:
    """Columns that fit beside each other, the first in every group."""
    groups = [[0]]
    for k in range(1, len(least)):
        if len(groups[-1]) > 1 and sum(least[one] for one in (*groups[-1], k)) > width:
            groups.append([0])
        groups[-1].append(k)
    return groups


def _marked(text: str) -> str:
    """Text with marks as fpdf2 has them, which takes two dashes for underlining."""
    return re.sub(ITALIC, r"__\1__", _plain(text).replace("--", "\\--"))


def _plain(text: str) -> str:
    """Text without links and marks of code, in letters that the fonts of every reader have."""
    return re.sub(LINK, r"\1", text).replace("`", "").encode("latin-1", "replace").decode("latin-1")
