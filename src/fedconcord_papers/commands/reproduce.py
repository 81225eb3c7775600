"""reproduce: the papers' experiments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedconcord.interface.cli.base import CODES, PROGRAM, complain, console, importing, say, say_columns
from fedconcord.interface.cli.options import Jobs, option
from fedconcord.interface.cli.progress import Show
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import count

if TYPE_CHECKING:
    from fedconcord_papers.recipes.recipe import Recipe, SizeName
    from fedconcord_papers.recipes.run import RecipeSpec

OUT = "runs/papers"
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=f"Exit codes: 0 done; 1 a recipe of all could not run; {CODES}.")
def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe, or all; `list recipes` shows them.", metavar="RECIPE")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small form, in about a minute, which tests the code.")
    ] = False,
    desk: Annotated[
        bool, typer.Option("--desk", help="Run a form for two cores, in 90 minutes at most (the default).")
    ] = False,
    paper: Annotated[bool, typer.Option("--paper", help="Run the size of the paper.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs and their sizes, and run nothing.")] = False,
    seeds: Annotated[str | None, option("Seeds in place of those of the size, as in 0,1,2,3,4.", "LIST")] = None,
    cells: Annotated[str | None, option("Names of the federations to run, where not all are wanted.", "LIST")] = None,
    jobs: Jobs = None,
    device: Annotated[
        str | None, option("Device of the runs of a comparison: cpu, cuda or auto. [cpu]", "NAME")
    ] = None,
    out: Annotated[str | None, option(f"Folder for all recipes, OUT/RECIPE/SIZE. [{OUT}]", "DIR")] = None,
    queue: Annotated[
        bool,
        typer.Option("--queue", help="With all --paper: the most valuable first, and what is left, with its hours."),
    ] = False,
    until: Annotated[
        str | None, option("Local time at which the queue stops; it goes on when it is started again.", "HH:MM")
    ] = None,
    values: Annotated[
        str | None,
        option("Folder of values by recipe and size, as docs/papers/values: go on with them, and add to them.", "DIR"),
    ] = None,
    verdicts: Annotated[bool, typer.Option("--verdicts", help="Show the verdicts so far.")] = False,
    pages: Annotated[str | None, option("Folder for a page about each recipe, and their index.", "DIR")] = None,
    report: Annotated[
        str | None,
        option("The pages, of --pages too, in one file: a PDF, or an archive with all values.", "FILE.pdf|zip"),
    ] = None,
) -> None:
    """Run the experiment of a paper. Its claim and numbers stand beside ours. When it is run again, it goes on where
    it was."""
    folder = Path(out or OUT)
    with importing():
        from fedconcord_papers.recipes import RECIPES
    if verdicts or pages is not None or report is not None:
        if recipe is not None:
            raise UserError(f"--verdicts, --pages and --report are of all recipes, given {recipe!r}; leave it out")
        if queue or until is not None or values is not None or dry_run:
            raise UserError(
                "--verdicts, --pages and --report run nothing; leave --queue, --until, --values and --dry-run out"
            )
        if report is None:
            _show_found(folder, RECIPES, pages)
            return
        from fedconcord_papers.recipes.publication import write_publication

        write_publication(Path(report), folder, RECIPES, None if pages is None else Path(pages))
        say(f"report: {report}")
        return
    if recipe is None:
        raise UserError("reproduce needs the name of a recipe, or all; fedconcord list recipes shows them")
    size = _size(quick, desk, paper)
    at_once = 1 if jobs is None else count("--jobs", jobs)
    if recipe == "all" and (seeds is not None or cells is not None):
        raise UserError("--seeds and --cells are of one recipe, given all; name it")
    from fedconcord.study.settings.sources import seed_list
    from fedconcord_papers.recipes.whole import request

    seed_numbers = None if seeds is None else seed_list("--seeds", seeds)
    some = None if cells is None else [cell.strip() for cell in cells.split(",")]
    values_folder = None if values is None else Path(values)
    if queue:
        if recipe != "all" or size != "paper":
            raise UserError("--queue is of all recipes at their papers' size; write reproduce all --paper --queue")
        _queue(folder, at_once, device, values_folder, until, dry_run)
        return
    if until is not None:
        raise UserError("--until is the time at which a queue stops; give --queue too")
    missed = []
    for name in RECIPES if recipe == "all" else [recipe]:
        try:
            spec = request(name, size, folder, at_once, seed_numbers, some, device, values_folder)
            _one(spec, folder, dry_run, f"all --{size}" if recipe == "all" else None)
        except UserError as error:
            if recipe != "all":
                raise
            missed.append(name)
            complain(f"{name}: {error}")
    if recipe == "all" and not dry_run:
        _show_found(folder, RECIPES, None)
    if missed:
        raise typer.Exit(1)


def _size(quick: bool, desk: bool, paper: bool) -> SizeName:
    if quick + desk + paper > 1:
        raise UserError("give one of --quick, --desk and --paper")
    return "quick" if quick else "paper" if paper else "desk"


def _queue(folder: Path, jobs: int, device: str | None, values: Path | None, until: str | None, dry_run: bool) -> None:
    """The items in order, what is left of them before and after."""
    from fedconcord_papers.recipes import queue

    def show() -> None:
        there = list(queue.line(folder, jobs, device, values))
        hours = sum(one.hours or 0.0 for one in there)
        say_columns([one.row for one in there])
        done = sum(not one.runs for one in there)
        say(f"{done} of {len(there)} items are done; the others may take {hours:.1f} hours, where they were counted")

    now = datetime.now()
    at = None if until is None else queue.next_time(until, now)
    show()
    if dry_run:
        return
    if at is not None:
        say(f"it stops at {at:%Y-%m-%d %H:%M}")
    missed = []
    with queue.ended_by(None if at is None else (at - now).total_seconds()) as is_over:
        try:
            for one in queue.line(folder, jobs, device, values):
                name = one.item.recipe
                if not one.runs:
                    continue
                if one.item.needs_gpu and not queue.has_gpu():
                    say(f"{name} needs a GPU, and this machine has none; left out")
                    continue
                try:
                    _one(one.spec, folder, False, "all --paper --queue")
                except UserError as error:
                    missed.append(name)
                    complain(f"{name}: {error}")
        except (KeyboardInterrupt, typer.Exit):
            if not is_over.is_set():
                show()
                raise
            say(f"stopped at {until}, as --until says; the same command goes on")
    show()
    if missed:
        raise typer.Exit(1)


def _one(spec: RecipeSpec, folder: Path, dry_run: bool, of_all: str | None) -> None:
    from fedconcord_papers.recipes.pages import counted
    from fedconcord_papers.recipes.whole import reproduced

    recipe = spec.recipe
    say(f"{recipe.name}, {recipe.source}: {recipe.claim}")
    if dry_run:
        _show_jobs(spec)
        return
    for sentence in _before(spec):
        say(sentence)
    stated = {"jobs": spec.jobs > 1 and spec.jobs, "values": spec.values, "out": str(folder) != OUT and folder}
    where = (f" --{name} {shlex.quote(str(value))}" for name, value in stated.items() if value)
    again = spec.command if of_all is None else f"{PROGRAM} reproduce {of_all}"
    with Show(f"{again}{''.join(where)}", has_bar_per_run=True) as show:
        judged = reproduced(spec, show)
    for claim, finding in zip(recipe.claims, judged.findings, strict=True):
        say(f"  {claim.says}: {finding.verdict}" + (f" ({finding.why})" if finding.why else ""))
    say(f"{recipe.name}: {counted(judged)}; {judged.page}")


def _before(spec: RecipeSpec) -> list[str]:
    """What a person should know before it starts."""
    from fedconcord_papers.recipes.evidence import in_short

    apart = in_short(spec.recipe, spec.size_name)
    lines = [f"size {spec.size_name}{f', in place of the paper: {apart}' if apart else ': as in the paper'}"]
    if spec.size_name == "quick":
        lines.append("it tests the code, and no claim")
    if spec.size.minutes is not None:
        lines.append(f"it took {spec.size.minutes:g} minutes on two cores")
    lines.append(f"results: {spec.out}")
    return lines


def _show_jobs(spec: RecipeSpec) -> None:
    from fedconcord_papers.recipes import dry

    say_columns([{k: "" if v is None else str(v) for k, v in row.items()} for row in dry.rows(spec)])


def _show_found(folder: Path, recipes: Mapping[str, Recipe], to: str | None) -> None:
    from fedconcord_papers.recipes import pages
    from fedconcord_papers.recipes.evidence import COUNTED, gather

    if to is not None:
        say(f"pages: {pages.write_pages(folder, recipes, Path(to))}")
        return
    judged = [one for one in gather(folder, recipes).values() if one.sizes]
    if not judged:
        raise UserError(f"{folder} holds no recipe that was done; run one first, or give its --out")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "recipe", "sizes", *COUNTED):
        table.add_column(column, overflow="fold")
    for one in judged:
        counts = [str(one.counts[name] or "") for name in COUNTED]
        table.add_row(one.recipe.id, one.recipe.name, ", ".join(one.sizes), *counts)
    console.print(table)
    say(f"{len(judged)} of {len(recipes)} recipes were run")
