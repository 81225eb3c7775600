"""The package's table of the arena, and its page.

    python docs/generate/arena_table.py [ARENA]

keeps what an arena came to (ARENA/arena.json, without its times, which are of one machine) as part of the table that
`fedconcord arena` puts new methods beside: its federations replace those of the same names, the others stay. It
writes docs/arena-table.md with its figures from that table.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

from fedconcord.insight.report.figures.style import styled, to_files
from fedconcord.support import files
from fedconcord_papers.arena import kept, page
from fedconcord_papers.arena.federations import Role, chosen
from fedconcord_papers.arena.kept import Kept

ROOT = Path(__file__).parents[2]
VALUES = ROOT / "src" / "fedconcord_papers" / "arena" / kept.VALUES
PAGE = ROOT / "docs" / "arena-table.md"
FIGURES = "arena"  # below docs
LEFT_OUT = ("slower", "ratio", "is_kept")  # of a method: times, and what follows from the rest
SHARED = ("format", "machine", "budget", "seeds", "tuning_seeds", "methods")  # by all federations of a table


def values_of(arena: Path, before: str | None = None) -> str:
    """values.json of an arena, beside the federations of a table that it has not; a line a federation and method."""
    path = arena / page.RESULTS
    if not path.exists():
        sys.exit(f"there is no {path}; give the folder of an arena that has ended")
    whole: dict[str, Any] = json.loads(path.read_text())
    for one in whole["federations"]:
        one["methods"] = [{k: v for k, v in m.items() if k not in LEFT_OUT} for m in one["methods"]]
    if before is not None:
        whole = _joined(json.loads(before), whole)
    federations = whole.pop("federations")
    head = json.dumps(whole)[:-1]
    bodies = []
    for one in federations:
        methods = ",\n  ".join(json.dumps(method) for method in one.pop("methods"))
        bodies.append(f' {json.dumps(one)[:-1]}, "methods": [\n  {methods}]}}')
    return f'{head}, "federations": [\n' + ",\n".join(bodies) + "]}\n"


def _joined(table: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A table with the federations of another arena, in the package's order."""
    if others := [key for key in SHARED if table[key] != more[key]]:
        sys.exit(f"the arena differs from the table in {', '.join(others)}; run it as docs/arena-table.md says")
    one_by_name = {one["name"]: one for one in (*table["federations"], *more["federations"])}
    order = [one.name for one in chosen([*get_args(Role)])]
    if unknown := one_by_name.keys() - set(order):
        sys.exit(f"the table is of the package's federations, and {min(unknown)!r} is none; leave it out of the arena")
    federations = sorted(one_by_name.values(), key=lambda one: order.index(one["name"]))
    names = ", ".join(one["name"] for one in more["federations"])
    return {**table, "version": f"{table['version']}, and {more['version']} ({names})", "federations": federations}


def text_of(table: Kept) -> str:
    """The page."""
    results = [*table.results.values()]
    seeds = ", ".join(map(str, table.seeds))
    tables, entries = page.tables_of(results), list[str]()
    for each in tables:
        names = [one.federation.name for one in each.results]
        entries += [each.role] if len(names) == len(chosen([each.role])) else names
    parts = [
        "# The standing table of the arena",
        f"    fedconcord arena --federations {shlex.quote(','.join(entries))} --out arena\n"
        "    python docs/generate/arena_table.py arena",
        f"made these tables: {len(page.labels_of(results))} methods on {len(results)} federations, "
        f"{table.budget} trials each, seeds {seeds}; fedconcord {table.version} on {table.machine}. The package has "
        "their values, and "
        "[`fedconcord arena --methods mine:factory`](arena.md#a-method-of-your-own-beside-the-table) puts a method "
        "beside them. [What is measured, and why so](arena.md#what-is-measured-and-why-so). Times are left out, which "
        "are of one machine: [what a method costs](cost.md).",
    ]
    for each in tables:
        names = [f"{FIGURES}/{drawing.name}.svg" for drawing in page.drawings(each, page.labels_of(results))]
        parts += page.as_markdown(each, names)
    if notes := page.warnings(results):
        parts += ["## Note", "\n".join(f"* {item}" for item in notes)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    if arguments:
        files.write_text(VALUES, values_of(Path(arguments[0]), VALUES.read_text() if VALUES.exists() else None))
    table = kept.read(VALUES.read_text())
    results = [*table.results.values()]
    with styled():
        for each in page.tables_of(results):
            for drawing in page.drawings(each, page.labels_of(results)):
                content = to_files(drawing.draw(True))["svg"]
                files.write_bytes(PAGE.parent / FIGURES / f"{drawing.name}.svg", content)
    files.write_text(PAGE, text_of(table))


if __name__ == "__main__":
    main(sys.argv[1:])
