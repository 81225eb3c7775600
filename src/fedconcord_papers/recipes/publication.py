"""The pages about the papers in one file: a PDF for readers, or an archive with all values for a repository that gives
a DOI. Both hold what `write_pages` writes, and the same values give the same bytes."""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import fedconcord
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_papers.recipes import printed
from fedconcord_papers.recipes.evidence import standing
from fedconcord_papers.recipes.pages import INDEX, INTRODUCTION, write_pages
from fedconcord_papers.recipes.recipe import Recipe
from fedconcord_papers.recipes.values import read

KINDS = (".pdf", ".zip")
TITLE = INTRODUCTION.partition("\n")[0].removeprefix("# ")
ROOT, SUMS = "fedconcord-papers", "SHA256SUMS"  # the folder in the archive, and a file in it
UNDATED = datetime(1980, 1, 1, tzinfo=UTC)  # the earliest that an archive can say
README = """\
# {title}

Pages and figures of five papers' experiments from {number} files of values{dated}, by fedconcord {version}.

* `papers/README.md`: what was run, how it is judged, what came of it, and the command of each recipe.
* `papers/values/NAME-SIZE.json`: every value by cell, measure, method and seed; what was asked and searched; hours,
  machine and version of every stretch of work. `fedconcord reproduce NAME --paper --values papers/values` goes on.
* `SHA256SUMS`: `sha256sum --check SHA256SUMS` finds what is damaged.

## How to cite

{authors}{year}: *{title}*. Version {version}.

Add the DOI of this archive, and cite the papers that `papers/README.md` names. `CITATION.cff` says the same to
machines. Licence: {license}.
"""
CITATION = """\
cff-version: 1.2.0
message: "Cite these values as below, with the DOI of their archive, and the paper of each experiment."
title: "{title}"
type: dataset
version: "{version}"
{released}license: {license}
authors:
  - name: "{authors}"
"""


def write_publication(path: Path, out: Path, recipes: Mapping[str, Recipe], folder: Path | None = None) -> None:
    """Write FILE.pdf or FILE.zip of what was done below `out`, and of what a folder of pages has besides, which is
    brought up to date; without one the pages are made for this file alone.

    Raises:
        UserError: the file's ending is another, there are no values, or the package for PDF is not installed.
    """
    if path.suffix not in KINDS:
        raise UserError(f"a report is a PDF or an archive, given {path}; name it FILE{' or FILE'.join(KINDS)}")
    if path.suffix == ".pdf" and find_spec("fpdf") is None:
        raise UserError("a report as PDF needs the package fpdf2: pip install 'fedconcord[pdf]'")
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) if folder is None else folder
        write_pages(out, recipes, pages)
        newest = max((spell["began"] for one in standing(pages, recipes) for spell in read(one).log), default="")
        date = datetime.fromisoformat(newest).replace(tzinfo=UTC) if newest else None
        content = _pdf(pages, recipes, date) if path.suffix == ".pdf" else _archive(pages, recipes, date)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content)


def _pdf(pages: Path, recipes: Mapping[str, Recipe], date: datetime | None) -> bytes:
    """The index with a line about its origin, then the page of every recipe."""
    index, *others = ((pages / name).read_text(encoding="utf-8") for name in (INDEX, *(f"{one}.md" for one in recipes)))
    number = len(standing(pages, recipes))
    origin = f"Written by fedconcord {fedconcord.__version__} from {number} files of values{_dated(date)}."
    return printed.pdf([index.replace("\n\n", f"\n\n{origin}\n\n", 1), *others], pages, date or UNDATED)


def _dated(date: datetime | None) -> str:
    return "" if date is None else f", the newest of {date:%Y-%m-%d}"


def _archive(pages: Path, recipes: Mapping[str, Recipe], date: datetime | None) -> bytes:
    """Pages, figures and values with how to cite them, and a checksum of each."""
    about = metadata("fedconcord")
    words = {
        "title": TITLE,
        "version": fedconcord.__version__,
        "authors": about["Author"],
        "license": about["License-Expression"],
        "number": len(standing(pages, recipes)),
        "dated": _dated(date),
        "year": "" if date is None else f" ({date.year})",
        "released": "" if date is None else f"date-released: {date:%Y-%m-%d}\n",
    }
    paths = [*pages.glob("*.md"), *pages.glob("*.png"), *standing(pages, recipes)]
    contents = {f"papers/{path.relative_to(pages).as_posix()}": path.read_bytes() for path in sorted(paths)}
    contents |= {INDEX: README.format(**words).encode(), "CITATION.cff": CITATION.format(**words).encode()}
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(contents.items())]
    contents[SUMS] = "".join(sums).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(f"{ROOT}/{name}", (date or UNDATED).timetuple()[:6])
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
