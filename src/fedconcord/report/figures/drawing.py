"""A figure of the report, and its forms: SVG, PNG and PDF files, an element of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """A figure of the report. `draw(True)` has its own legend, for a file; `draw(False)` leaves that to the page."""

    name: str
    alt: str
    caption: str
    wide: bool
    draw: Callable[[bool], Figure]


def _laid_out(fig: Figure) -> Figure:
    """The figure with its layout found once; every save after it would find the same one again, slowly."""
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    return fig


METADATA: dict[str, dict[str, Any]] = {  # without dates: the same figure is the same bytes
    "svg": {"Date": None, "Creator": "fedconcord"},
    "png": {"Software": "fedconcord"},
    "pdf": {"CreationDate": None, "Creator": "fedconcord", "Producer": None},
}


def to_files(fig: Figure) -> dict[str, bytes]:
    """A figure by the suffix of its file: svg with text as outlines, png, pdf; each looks the same anywhere."""
    files = {}
    _laid_out(fig)
    for suffix, metadata in METADATA.items():
        buffer = io.BytesIO()
        fig.savefig(buffer, format=suffix, dpi=160, metadata=metadata)
        files[suffix] = buffer.getvalue()
    return files


def to_inline(fig: Figure, prefix: str, alt: str) -> str:
    """An <svg> element for the page: text stays text in the page's font, ids are the figure's own."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        _laid_out(fig).savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: inherit", svg)
    svg = re.sub(r"(font: [^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", svg)
    tag, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', tag)
    assert box is not None
    label = alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return f'<svg {box[0]} role="img" aria-label="{label}">{rest.strip()}'
