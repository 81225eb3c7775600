"""audit: what messages leak."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from fedconcord.interface.cli.base import importing, say
from fedconcord.interface.cli.options import Given, check_choice, option, sources_of, takes_settings
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import count

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_settings("job", hidden=("method",), without=("seeds",))
def audit(
    given: Given,
    client: Annotated[str | None, option("Client whose message is attacked. [the first of the round]", "ID")] = None,
    round: Annotated[str, option("Round whose message is attacked, from 1. [5]", "N")] = "5",
    iterations: Annotated[str, option("Number of iterations of the attack. [100]", "N")] = "100",
    optimiser: Annotated[str, option("How dummy samples are fitted: lbfgs or gd. [lbfgs]", "NAME")] = "lbfgs",
    attack_lr: Annotated[str | None, option("Step size of gd. [found by a search]", "NUMBER")] = None,
    labels: Annotated[str, option("Whether the attacker knows the labels: known or inferred. [known]", "NAME")] = (
        "known"
    ),
    out: Annotated[str | None, option("Folder for the results. [runs/audit-<n>]", "DIR")] = None,
) -> None:
    """Attack what your configuration sends, to see what it leaks."""
    sources = sources_of(given)
    with importing():
        from fedconcord.support import grammar
        from fedconcord_papers import functions
        from fedconcord_papers.audit import Attack

    check_choice("--optimiser", optimiser, ("lbfgs", "gd"))
    check_choice("--labels", labels, ("known", "inferred"))
    step = None if attack_lr is None else grammar.scalar(attack_lr)
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | float) or not step > 0):
        raise UserError(f"--attack-lr must be a number > 0, given {attack_lr!r}")
    if client is not None and not client.isdecimal():
        raise UserError(f"--client must be an integer >= 0, given {client!r}")
    attack = Attack(count("--iterations", iterations), cast(Any, optimiser), step, cast(Any, labels))
    client_id = None if client is None else int(client)
    audited = functions.audited(sources, attack, client_id, count("--round", round), out, say)
    say(f"audit: {audited.page}")
