"""README.txt of a folder of results: what it holds, and the commands that go on from it.

It names no path, so that it stays true of a folder that was moved, and the same run writes the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from fedconcord.support import files

NAME = "README.txt"
HEAD = "{what}, by fedconcord. Commands that go on from here, with DIR for this folder:\n\n"
TAIL = (
    "\nWhere data or modules were given by a path, start them in the folder in which this was started.\n"
    "Modules of your own are imported only where you name them again, or with --trust.\n"
)
MODEL = (
    ("fedconcord predict DIR INPUT", "what the model says of new samples"),
    ("fedconcord export DIR", "the model as a program"),
)
REPORT = ("fedconcord report DIR", "figures and tables as a page, report.html")
ON = "goes on if it was stopped"


def of_run(model: bool) -> str:
    """Of one run; `model`: whether it has one that can be used outside of it."""
    return _text(
        "A run",
        REPORT,
        ("fedconcord diagnose DIR", "what made it hard, and what to change"),
        *(MODEL if model else ()),
        ("fedconcord run --resume DIR", f"{ON}; --rounds N goes on to round N"),
    )


def of_sites(model: bool) -> str:
    """Of a run at real sites; `model`: as of `of_run`."""
    on = ("fedconcord flower try --resume DIR --sites FILES", f"{ON}, if this was a trial; sites are the same")
    return _text("A run at real sites", REPORT, *(MODEL if model else ()), on)


def of_comparison() -> str:
    """Of methods compared."""
    return _text(
        "A comparison; each METHOD/seed-N is a run",
        REPORT,
        ("fedconcord compare --resume DIR", f"{ON}; --methods and --seeds add to it"),
    )


def of_search() -> str:
    """Of methods tuned."""
    return _text(
        "Methods tuned; the page is report.html, and final/ a comparison of the best",
        ("fedconcord compare --config DIR/best.toml", "the best settings of each method again"),
        ("fedconcord compare --resume DIR/final --seeds N,N", "more seeds in the comparison"),
        ("fedconcord tune --resume DIR", ON),
    )


def write(folder: Path, text: str) -> None:
    """Put it into a folder."""
    files.write_text(folder / NAME, text)


def _text(what: str, *commands: tuple[str, str]) -> str:
    wide = max(len(command) for command, _ in commands)
    return HEAD.format(what=what) + "".join(f"  {command:{wide}}  {about}\n" for command, about in commands) + TAIL
