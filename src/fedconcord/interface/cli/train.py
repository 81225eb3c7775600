"""run, compare, tune, report; export, predict: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fedconcord.interface.cli.base import CODES, DIVERGED, app, complain, importing, say
from fedconcord.interface.cli.options import (
    Given,
    Grow,
    Jobs,
    Resume,
    Trust,
    check_choice,
    option,
    sources_of,
    takes_settings,
)
from fedconcord.interface.cli.progress import Show, refuse_interrupted, resuming, say_summary
from fedconcord.support import process
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import count

Force = Annotated[bool, typer.Option("--force", help="Go on even if the run diverged or its weights are not finite.")]
Client = Annotated[
    str | None,
    option("Client whose model is taken, by name or number, where a run ends with a model per client.", "NAME"),
]
Run = Annotated[str, typer.Argument(help="Folder of a run.", metavar="RUN")]


@app.command()
def export(
    run: Run,
    format: Annotated[str, option("torch (torch.export), onnx, or peft, an adapter. [torch]", "NAME")] = "torch",
    out: Annotated[str | None, option("File, or folder of peft. [RUN/model.pt2, .onnx or adapter]", "FILE")] = None,
    force: Force = False,
    client: Client = None,
    trust: Trust = False,
) -> None:
    """Write the model of a run as a program, or as an adapter."""
    check_choice("--format", format, ("torch", "onnx", "peft"))
    from fedconcord.interface.trained import program

    path = program.export(Path(run), cast(program.Kind, format), out, force, client=client, trust=trust)
    say(f"adapter: {path}" if format == "peft" else f"model: {path} (described in {path.name}.json)")


@app.command()
def predict(
    run: Run,
    input: Annotated[
        str, typer.Argument(help="Raw inputs: .npy, .npz, .csv, .parquet or a folder of images.", metavar="INPUT")
    ],
    out: Annotated[str, option("File for the predictions. [predictions.csv]", "FILE")] = "predictions.csv",
    threshold: Annotated[
        float | None,
        option(
            "Probability from which the second of two classes, or a label, is predicted. [the more probable; 0.5]", "P"
        ),
    ] = None,
    force: Force = False,
    client: Client = None,
    trust: Trust = False,
) -> None:
    """Write what the model of a run predicts for new samples."""
    from fedconcord.interface.trained.predict import predict as made

    path = made(Path(run), Path(input), out, force, threshold=threshold, client=client, trust=trust)
    say(f"predictions: {path}")


@app.command(epilog=f"Exit codes: 0 done; 1 another process was lost; {CODES}; {DIVERGED} the run diverged.")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines",))
def run(options: Given, resume: Resume = None, trust: Trust = False) -> None:
    """Train one method."""
    sources = sources_of(options)
    with importing():
        from fedconcord.execution.run import clock
        from fedconcord.interface import api
        from fedconcord.study.runs import records

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
def compare(options: Given, jobs: Jobs = None, resume: Grow = None, trust: Trust = False) -> None:
    """Compare methods on the same clients, and write the report."""
    sources = sources_of(options)
    at_once = None if jobs is None else count("--jobs", jobs)
    with importing():
        from fedconcord.interface import api
        from fedconcord.study.runs import records

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
    from fedconcord.insight.report import write_report  # not `api`, which imports torch

    page = write_report([Path(path) for path in paths], Path(out) if out else None)
    say_summary(*map(Path, paths))
    say(f"report: {page}")


MOST = 8  # processes, where nothing is said


@app.command(epilog=f"Exit codes: 0 done; 1 a run of the final comparison failed; {CODES}.")
@takes_settings("run", hidden=("method", "seed"))
def tune(
    options: Given,
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
    sources = sources_of(options)
    with importing():
        from fedconcord.interface import api
        from fedconcord.study.search import SearchSpec
        from fedconcord.study.settings.sources import prepare

    spec = SearchSpec(trials, search or (), grid, prepare("seeds", final_seeds))
    with Show("tune", has_bar_per_run=False) as show:
        result = api.tune_request(api.requested(sources, resume, trust, show), spec, at_once)
    say_summary(result.folder / "final")
    for method in result.methods:
        for remark in method.remarks:
            (complain if method.best is None else say)(f"{method.method}: {remark}")
    say(f"settings: {result.folder / 'best.toml'}, and a file a method beside it")
    say(f"report: {result.report}")
    if any(one.status == "failed" for one in result.runs):
        raise typer.Exit(1)
