"""run, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedconcord.basis.errors import UserError
from fedconcord.basis.wanted import count
from fedconcord.cli.base import CODES, DIVERGED, RANK, app, complain, importing, say
from fedconcord.cli.options import Given, Grow, Jobs, Resume, Trust, option, sources_of, takes_settings
from fedconcord.cli.progress import Show, interrupted, resumed, say_summary

if TYPE_CHECKING:  # torch takes seconds to import
    from fedconcord.jobs import Row
    from fedconcord.runs.outcome import Finished


@app.command(epilog=f"Exit codes: 0 done; 1 another process was lost; {CODES}; {DIVERGED} the run diverged.")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines",))
def run(given: Given, resume: Resume = None, trust: Trust = False) -> None:
    """Train one method."""
    sources = sources_of(given)
    with importing():
        from fedconcord.runs import callbacks, clock, execution, outcome, plan
        from fedconcord.runs import folder as folders
        from fedconcord.tracking import check, trackers

    if trust:
        folders.trust(resume)
    check(sources)
    spent = clock.of_process()
    spent.lap("start")
    planned = plan.plan_resumed_run(Path(resume), *sources) if resume else plan.plan_run(*sources)
    again = resumed("run", planned.folder)
    tell = callbacks.telling([planned], planned.folder, trackers(planned.config.track))
    with Show([planned]) as show:

        def begin() -> None:
            for sentence in (*plan.notes([planned]), plan.ahead([planned], planned.folder)):
                say(sentence)
            show(0, None)

        def see(row: Row) -> None:
            if row.round == 0 and (why := outcome.why_evaluated(planned.folder)) is not None:
                say(why)
            show(0, row)
            tell(0, row)

        try:
            result = callbacks.followed(planned, tell, lambda: execution.execute(planned, see, spent, begin))
        except KeyboardInterrupt:  # the second Ctrl-C, or one before the first round
            raise interrupted(planned.folder, again) from None
        show(0, result)
    if result.status == "interrupted":
        raise interrupted(planned.folder, again)
    if (stopped := outcome.stopped(result.folder)) is not None:
        say(stopped)
    if result.status == "diverged":
        say(f"diverged: a metric is no longer finite after round {result.rounds}; a smaller --lr may help")
    for told in (outcome.refused(result.folder), outcome.wire(result.folder), outcome.privacy(result.folder)):
        if told is not None:
            say(told)
    say(spent.sentence())
    say(f"results: {planned.folder}")
    if result.status == "diverged":
        raise typer.Exit(DIVERGED)


@app.command(epilog=f"Exit codes: 0 done; 1 some runs failed; {CODES}; {DIVERGED} every run diverged or failed.")
@takes_settings("run", hidden=("method", "seed"))
def compare(given: Given, jobs: Jobs = None, resume: Grow = None, trust: Trust = False) -> None:
    """Compare methods on the same clients; write the report."""
    sources = sources_of(given)
    at_once = None if jobs is None else count("--jobs", jobs)
    with importing():
        from fedconcord.api import finish_comparison
        from fedconcord.runs import callbacks, outcome, plan, pool
        from fedconcord.runs import folder as folders
        from fedconcord.tracking import check, trackers

    if trust:
        folders.trust(resume)
    check(sources)
    if resume:
        folder, planned, at_once = plan.plan_resumed_comparison(Path(resume), at_once, *sources, say=say)
    else:
        folder, planned, at_once = plan.plan_comparison(at_once, *sources)
    for sentence in plan.notes(planned):
        say(sentence)
    say(plan.ahead(planned, folder, at_once))
    again = resumed("compare", folder)
    tell = callbacks.telling(planned, folder, trackers(planned[0].config.track))
    with plan.writing(folder, planned):
        if RANK == "0" and (judged := plan.why_evaluated(folder)) is not None:  # which the first process wrote
            say(judged)
        with Show(planned) as show:

            def both(number: int, event: Row | Finished | None) -> None:
                show(number, event)
                tell(number, event)

            try:
                results = pool.execute_all(planned, at_once, both)
            except KeyboardInterrupt:
                raise interrupted(folder, again) from None
        if any(result.status == "interrupted" for result in results):
            raise interrupted(folder, again)
        failed = [result for result in results if result.status == "failed"]
        if len(failed) == len(results):
            raise UserError(f"every run failed, the first because: {failed[0].error}")
        compared = finish_comparison(folder, results)
        if compared.report is not None:  # else another process writes it
            say_summary(folder)
            for result in results:
                if result.status != "failed" and (refused := outcome.refused(result.folder)) is not None:
                    say(f"{result.label}, seed {result.seed}: {refused}")
            for result in failed:
                complain(f"{result.label}, seed {result.seed} failed: {result.error}; {again} tries it again")
            say(f"report: {compared.report}")
    if all(result.status in ("diverged", "failed") for result in results):
        complain("diverged: no run of the comparison ended with finite metrics; a smaller --lr may help")
        raise typer.Exit(DIVERGED)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[list[str], typer.Argument(help="Folders of runs or of comparisons.", metavar="PATH...")],
    out: Annotated[
        str | None, option("Folder of the report. [the first PATH; of several data sets a new one below runs/]", "DIR")
    ] = None,
) -> None:
    """Write the report of runs, finished or not."""
    from fedconcord.report import write_report  # not `api`, which imports torch

    page = write_report([Path(path) for path in paths], Path(out) if out else None)
    say_summary(*map(Path, paths))
    say(f"report: {page}")
