"""advise, diagnose."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedconcord.basis.errors import UserError
from fedconcord.cli.base import app, console, importing, say
from fedconcord.cli.options import Given, Trust, option, sources_of, takes_settings
from fedconcord.cli.progress import SAY_EVERY, Left


@app.command()
@takes_settings("run", without=("method", "methods", "server", "seeds", "out"))
def advise(
    options: Given,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Advise for clients that keep nothing between rounds.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Advise for a server that learns the sum of the clients' updates alone.")
    ] = False,
    uplink: Annotated[
        str | None,
        option("Number of bytes that a client may send in a round, or slow, which is one model.", "BYTES|slow"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Name the methods to tune first on a federation, and why. Nothing is trained."""
    sources = sources_of(options)
    with importing():
        from fedconcord import advice
        from fedconcord.settings.own import notes

    wishes = advice.Wishes(stateless, private, _uplink(uplink))
    config = advice.federation_of(*sources)
    if not json_:
        for sentence in notes(config):
            say(sentence)
    advised, path = advice.advise(config, wishes), options["config"]
    file = None
    if path is not None:
        with suppress(UserError):  # a file that is no federation by itself: the next command says all of it
            file = advice.File(path, advice.federation_of(sources[0]))
    for line in [json.dumps(advice.as_json(advised, file), indent=2)] if json_ else advice.lines_of(advised, file):
        say(line)


def _uplink(value: str | None) -> int | Literal["slow"] | None:
    if value is None:
        return None
    if value == "slow":
        return "slow"
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"--uplink must be slow or a number of bytes >= 1, given {value!r}")
    return int(value)


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
        from fedconcord.diagnosis import subject as subjects
        from fedconcord.diagnosis.diagnosis_page import diagnosed
        from fedconcord.runs import folder as folders

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
