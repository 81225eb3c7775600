"""advise."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Literal

import typer

from fedconcord.interface.cli.base import app, importing, say
from fedconcord.interface.cli.options import Given, option, sources_of, takes_settings
from fedconcord.support.errors import UserError


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
        from fedconcord.insight import advice
        from fedconcord.study.settings.problem import notes

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
