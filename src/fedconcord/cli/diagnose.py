"""diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedconcord.basis.errors import UserError
from fedconcord.cli.base import app, console, importing, say
from fedconcord.cli.options import Given, option, sources_of, takes_settings


@app.command()
@takes_settings("run", hidden=("methods", "seeds"))
def diagnose(
    given: Given,
    run: Annotated[
        str | None, typer.Argument(help="Folder of a run; without, the settings are trained.", metavar="[RUN]")
    ] = None,
    at: Annotated[str | None, option("Rounds to look at. [the start, a quarter, half and the end]", "N,N,...")] = None,
) -> None:
    """See what makes a federation hard, and what a method does about it."""
    if run is not None and given["config"] is not None:
        raise UserError(f"RUN {run} and --config {given['config']} are two jobs; give one of them")
    rounds = None if at is None else _rounds(at)
    with importing():
        from fedconcord.diagnosis import page
        from fedconcord.diagnosis import subject as subjects
        from fedconcord.diagnosis.course import diagnose as look_at
        from fedconcord.diagnosis.findings import findings, verdict
        from fedconcord.runs.plan import threads

    sources = sources_of(given)
    subject = subjects.of_settings(sources, rounds) if run is None else subjects.of_run(Path(run), rounds, *sources)
    say(f"{subject.title}: {subjects.cost(subject)}")
    folder = subjects.folder_of(subject, given["out"])
    with threads(subject.config.engine.threads), console.status("round 0") as status:
        found = look_at(
            subject.job, subject.rounds, subject.state, lambda t: status.update(f"round {t} of {subject.rounds[-1]}")
        )
    same = subjects.same_model(subject, found.state)
    written = page.write(folder, subject, found, same)
    for sentence in verdict(findings(subject.job, found)):
        say(f"- {sentence}")
    if same is not None:
        say(f"the rounds trained again end {'at' if same else 'NOT at'} the run's own model, bit for bit")
    say(f"diagnosis: {written}")


def _rounds(at: str) -> list[int]:
    parts = [part.strip() for part in at.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"--at must list rounds >= 0, such as 0,10,20, given {at!r}")
    return [int(part) for part in parts]
