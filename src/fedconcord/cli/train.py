"""run, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedconcord.basis.errors import UserError
from fedconcord.basis.grammar import count
from fedconcord.cli.base import CODES, DIVERGED, app, complain, importing, say
from fedconcord.cli.options import Given, Grow, Jobs, Resume, Trust, option, sources_of, takes_settings
from fedconcord.cli.progress import Show, refuse_interrupted, resuming, say_summary


@app.command(epilog=f"Exit codes: 0 done; 1 another process was lost; {CODES}; {DIVERGED} the run diverged.")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines",))
def run(given: Given, resume: Resume = None, trust: Trust = False) -> None:
    """Train one method."""
    sources = sources_of(given)
    with importing():
        from fedconcord import api
        from fedconcord.runs import clock, records

    seconds = clock.of_process()
    seconds.lap("start")
    with Show("run", has_bar_per_run=True) as show:
        result = api.run_request(api.requested(sources, resume, trust, show), seconds)
        refuse_interrupted([result])
    for sentence in records.sentences(result.folder):
        say(sentence)
    say(seconds.sentence())
    say(f"results: {result.folder}")
    if result.status == "diverged":
        raise typer.Exit(DIVERGED)


@app.command(epilog=f"Exit codes: 0 done; 1 some runs failed; {CODES}; {DIVERGED} every run diverged or failed.")
@takes_settings("run", hidden=("method", "seed"))
def compare(given: Given, jobs: Jobs = None, resume: Grow = None, trust: Trust = False) -> None:
    """Compare methods on the same clients, and write the report."""
    sources = sources_of(given)
    at_once = None if jobs is None else count("--jobs", jobs)
    with importing():
        from fedconcord import api
        from fedconcord.runs import records

    with Show("compare", has_bar_per_run=True) as show:
        compared = api.compare_request(api.requested(sources, resume, trust, show), at_once)
        refuse_interrupted(compared.runs)
    failed = [result for result in compared.runs if result.status == "failed"]
    if len(failed) == len(compared.runs):
        raise UserError(f"every run failed, the first because: {failed[0].error}")
    if compared.report is not None:  # else another process writes it
        say_summary(compared.folder)
        for result in compared.runs:
            for sentence in records.refusals(result.folder):
                say(f"{result.label}, seed {result.seed}: {sentence}")
        again = resuming("compare", compared.folder)
        for result in failed:
            complain(f"{result.label}, seed {result.seed} failed: {result.error}; {again} tries it again")
        say(f"report: {compared.report}")
    if all(result.status in ("diverged", "failed") for result in compared.runs):
        complain("diverged: no run of the comparison ended with finite metrics; a smaller --lr may help")
        raise typer.Exit(DIVERGED)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[list[str], typer.Argument(help="Folders of runs or of comparisons.", metavar="PATH...")],
    out: Annotated[
        str | None,
        option("Folder for the report. [the first PATH; for several data sets, a new one below runs/]", "DIR"),
    ] = None,
) -> None:
    """Write the report of runs, whether they are finished or not."""
    from fedconcord.report import write_report  # not `api`, which imports torch

    page = write_report([Path(path) for path in paths], Path(out) if out else None)
    say_summary(*map(Path, paths))
    say(f"report: {page}")
