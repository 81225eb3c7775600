"""tune: methods tuned side by side, and the winners compared."""

from __future__ import annotations

from typing import Annotated

import typer

from fedconcord.basis import process
from fedconcord.basis.grammar import count
from fedconcord.cli.base import CODES, app, complain, importing, say
from fedconcord.cli.options import Given, Resume, Trust, option, sources_of, takes_settings
from fedconcord.cli.progress import Show, say_summary

MOST = 8  # processes, where nothing is said


@app.command(epilog=f"Exit codes: 0 done; 1 a run of the final comparison failed; {CODES}.")
@takes_settings("run", hidden=("method", "seed"))
def tune(
    given: Given,
    budget: Annotated[
        str | None, option("Number of trials of each method; all methods get the same rounds. [16]", "N")
    ] = None,
    search: Annotated[
        list[str] | None,
        option("Set another range, as in --search mu=log(0.001,1) or linear(0,1); may be repeated.", "KEY=RANGE"),
    ] = None,
    grid: Annotated[
        str | None,
        option("Grid in place of ranges: a paper's, fedadmm or fednova, or points(local.lr=[0.1,0.3]).", "GRID"),
    ] = None,
    final_seeds: Annotated[
        str | None, option("Seeds of the final comparison, which tuning does not use. [the next three]", "LIST")
    ] = None,
    jobs: Annotated[
        str | None,
        option(f"Number of runs at the same time, each in its own process. [the cores, at most {MOST}]", "N"),
    ] = None,
    resume: Resume = None,
    trust: Trust = False,
) -> None:
    """Tune methods with equal budgets, and compare the winners. Tuning uses the seeds 0 and 1 unless others are given;
    the comparison uses new ones."""
    at_once = min(process.cores(), MOST) if jobs is None else count("--jobs", jobs)
    trials = None if budget is None else count("--budget", budget)
    sources = sources_of(given)
    with importing():
        from fedconcord import api
        from fedconcord.settings.sources import prepare
        from fedconcord.tuning import SearchSpec

    spec = SearchSpec(trials, search or (), grid, prepare("seeds", final_seeds))
    with Show("tune", has_bar_per_run=False) as show:
        done = api.tune_request(api.requested(sources, resume, trust, show), spec, at_once)
    say_summary(done.folder / "final")
    for method in done.methods:
        for remark in method.remarks:
            (complain if method.best is None else say)(f"{method.method}: {remark}")
    say(f"settings: {done.folder / 'best.toml'}, and a file a method beside it")
    say(f"report: {done.report}")
    if any(result.status == "failed" for result in done.runs):
        raise typer.Exit(1)
