"""arena: methods tuned alike on many federations."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedconcord.interface.cli.base import CODES, importing, say, say_columns
from fedconcord.interface.cli.options import option
from fedconcord.interface.cli.progress import Show
from fedconcord.interface.cli.train import MOST
from fedconcord.support import process
from fedconcord.support.grammar import count

OUT = "runs/arena"
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=f"Exit codes: 0 done; {CODES}.")
def arena(
    methods: Annotated[
        str | None, option("Methods with their parameters; fedavg is always added. [nine methods, controls]", "LIST")
    ] = None,
    federations: Annotated[
        str | None, option("Federations: all, choose, hold, natural, natural_hold, names, or TOML files. [all]", "LIST")
    ] = None,
    budget: Annotated[str | None, option("Number of trials of each method in a federation. [8]", "N")] = None,
    seeds: Annotated[str | None, option("Seeds of the final results. [0,1,2]", "LIST")] = None,
    jobs: Annotated[
        str | None,
        option(f"Number of runs at the same time, each in its own process. [the cores, at most {MOST}]", "N"),
    ] = None,
    out: Annotated[str | None, option(f"Folder for the arena. [{OUT}]", "DIR")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take one federation of each role and a few rounds, which tests the code.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the federations and their rounds, and run nothing.")
    ] = False,
) -> None:
    """Tune methods with equal budgets on many federations. The page has rounds and bytes to a target, ranks, failures
    and time; methods of the package's own table that are not named stand beside them. When it is run again, it goes on
    where it was, and adds new methods, federations and seeds."""
    with importing():
        from fedconcord.study.settings.sources import prepare, seed_list
        from fedconcord_papers import functions
        from fedconcord_papers.arena import dry, page, plan

    spec = plan.request(
        prepare("methods", methods),
        prepare("methods", federations),
        None if budget is None else count("--budget", budget),
        None if seeds is None else seed_list("--seeds", seeds),
        min(process.cores(), MOST) if jobs is None else count("--jobs", jobs),
        Path(out or OUT),
        quick,
    )
    if dry_run:
        say_columns(list(dry.rows(spec)))
        return
    with Show(f"{spec.command} --out {shlex.quote(str(spec.out))}", has_bar_per_run=False) as show:
        pages = functions.arena_of(spec, show)
    for table in pages.tables:
        say(f"{table.role}: {len(table.results)} federation{'s' * (len(table.results) > 1)}")
        for cells in filter(None, (page.standings(table), page.against(table))):
            say_columns([dict(zip(cells.header, row, strict=True)) for row in cells.rows])
    if any(s.is_kept for table in pages.tables for s in table.standings):
        say("* of the package's table, and not run here")
    say(f"report: {pages.html} and {pages.markdown}")
