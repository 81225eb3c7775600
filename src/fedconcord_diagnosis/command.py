"""diagnose: what makes a federation hard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedconcord.interface.cli.base import console, importing, say
from fedconcord.interface.cli.options import Given, Trust, option, sources_of, takes_settings
from fedconcord.interface.cli.progress import SAY_EVERY, Left
from fedconcord.support.errors import UserError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_settings("run", hidden=("methods", "seeds"))
def diagnose(
    options: Given,
    run: Annotated[
        str | None,
        typer.Argument(help="Folder of a run to train again; without it, the settings are trained.", metavar="[RUN]"),
    ] = None,
    at: Annotated[str | None, option("Rounds to diagnose. [the start, a quarter, half and the end]", "N,N,...")] = None,
    trust: Trust = False,
) -> None:
    """Show why a federation is hard, and what a method does about it."""
    if run is not None and options["config"] is not None:
        raise UserError(f"RUN {run} and --config {options['config']} are two jobs; give one of them")
    rounds = None if at is None else _rounds(at)
    sources = sources_of(options)
    with importing():
        from fedconcord.execution.run import folder as folders
        from fedconcord_diagnosis import subject as subjects
        from fedconcord_diagnosis.diagnosis_page import diagnosed

    if trust:
        folders.trust(run)
    subject = subjects.of_settings(sources, rounds) if run is None else subjects.of_run(Path(run), rounds, *sources)
    for sentence in subjects.notes(subject):
        say(sentence)
    folder, last = subjects.folder_of(subject, options["out"]), subject.rounds[-1]
    say(f"the page goes into {folder}")
    with console.status("") as status:
        left, last_said = Left(last), time.monotonic()

        def see(t: int) -> None:
            nonlocal last_said
            left.see(0, t)
            words = f"round {t} of {last}{left.words()}"
            status.update(words)
            if not console.is_terminal and time.monotonic() - last_said > SAY_EVERY:
                last_said = time.monotonic()
                say(f"diagnose: {words}")

        result = diagnosed(subject, folder, see)
    for sentence in result.verdict:
        say(f"- {sentence}")
    if result.same_model is not None:
        end = "at" if result.same_model else "NOT at"
        other = (
            "" if result.same_model else f": it was computed otherwise ({result.why_other}), which moves last digits"
        )
        say(f"the rounds trained again end {end} the run's own model, bit for bit{other}")
    say(f"diagnosis: {result.page}")


def _rounds(at: str) -> list[int]:
    parts = [part.strip() for part in at.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"--at must list rounds >= 0, such as 0,10,20, given {at!r}")
    return [int(part) for part in parts]
