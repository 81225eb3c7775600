"""referee: what somebody else's implementation computes."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedconcord.interface.cli.base import importing, say
from fedconcord.interface.cli.options import check_choice, option
from fedconcord.support import files
from fedconcord.support.errors import UserError, reason
from fedconcord.support.grammar import count, scalar

LONG = 1500  # rounds to a method's limit

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def referee(
    method: Annotated[str, typer.Argument(help="The method that it should be, as in 'scaffold(option=1)'.")],
    command: Annotated[str | None, option("Program that reads the spec on stdin.", "COMMAND")] = None,
    functions: Annotated[str | None, option("Two Python functions.", "FILE:CLIENT,SERVER")] = None,
    aggregator: Annotated[
        str | None, option("A function of moves alone; clients are the referee's.", "FILE:RULE")
    ] = None,
    optimiser: Annotated[str | None, option("A local optimiser of torch.optim's shape.", "FILE:CLASS")] = None,
    flower: Annotated[
        str | None, option("A Flower strategy; clients are the ClientApp's or the referee's.", "FILE:STRATEGY[,APP]")
    ] = None,
    mine: Annotated[str | None, option("A method of your own, as `run` takes it.", "MODULE:FACTORY", "--own")] = None,
    trajectory: Annotated[str | None, option("A recorded trajectory, .npz or .json.", "FILE")] = None,
    write_spec: Annotated[str | None, option("Write the problem and schedule, and judge nothing.", "FILE")] = None,
    spec: Annotated[str | None, option("Take problem and schedule from this file.", "FILE")] = None,
    problem: Annotated[str, option("Which problem: quadratic, logistic or both. [both]", "NAME")] = "both",
    rounds: Annotated[str, option("Number of rounds. [12]", "N")] = "12",
    momentum: Annotated[str, option("Momentum of the local steps. [0]", "NUMBER")] = "0",
    tolerance: Annotated[str, option("Largest relative departure that is equal. [1e-9]", "NUMBER")] = "1e-9",
    limit: Annotated[str, option("Seconds that it may take for a problem. [60]", "SECONDS")] = "60",
    python: Annotated[str | None, option("Interpreter for functions and strategies. [this one]", "PROGRAM")] = None,
    page: Annotated[str | None, option("Write the verdicts as one HTML page.", "FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the verdicts as JSON.")] = False,
) -> None:
    """Say what an implementation of a method computes.

    It is the paper's method, a known variant, the method with a known mistake, or something else. Exit code 0: equal to
    the paper's method; 1: anything else; 2: a mistake in the input, or it failed.
    """
    ways = {"--command": command, "--functions": functions, "--aggregator": aggregator, "--flower": flower}
    ways |= {"--optimiser": optimiser}
    ways |= {"--own": mine, "--trajectory": trajectory, "--write-spec": write_spec}
    ways_named = [name for name, value in ways.items() if value is not None]
    if len(ways_named) != 1:
        raise UserError(f"give one of {', '.join(ways)}, given {' and '.join(ways_named) or 'none'}")
    check_choice("--problem", problem, ("both", "quadratic", "logistic"))
    if python is not None and functions is aggregator is flower is optimiser is None:
        raise UserError(
            "--python is of --functions, --aggregator, --optimiser and --flower; write it into --command, or leave "
            "it out"
        )
    if spec is not None and (problem, rounds, momentum) != ("both", "12", "0"):
        raise UserError("--spec has problem, rounds and momentum in it; leave --problem, --rounds and --momentum out")
    most, seconds = number("--tolerance", tolerance), number("--limit", limit)
    beta = 0.0 if momentum == "0" else number("--momentum", momentum, 1.0)
    with importing():
        from fedconcord_referee import adapters, verdict
        from fedconcord_referee import page as pages
        from fedconcord_referee import spec as specs
        from fedconcord_referee import trajectory as trajectories

    if spec is None:
        kinds = specs.KINDS if problem == "both" and trajectory is None and write_spec is None else (problem,)
        kinds = ("quadratic",) if kinds == ("both",) else kinds
        all_specs = [specs.make(method, kind, count("--rounds", rounds), beta) for kind in kinds]
    else:
        all_specs = [specs.as_asked(specs.read(Path(spec)), method, spec)]
    if write_spec is not None:
        specs.write(all_specs[0], Path(write_spec))
        say(f"spec: {write_spec}")
        return
    if command is not None:
        adapter = adapters.command(command, seconds)
    elif functions is not None:
        adapter = adapters.functions(functions, seconds, python or sys.executable)
    elif mine is not None:
        adapter = adapters.own(mine)
    elif aggregator is not None:
        adapter = adapters.aggregator(aggregator, seconds, python or sys.executable)
    elif optimiser is not None:
        adapter = adapters.optimiser(optimiser, seconds, python or sys.executable)
    elif flower is not None:
        adapter = adapters.flower(flower, seconds, python or sys.executable)
    else:
        adapter = lambda one: trajectories.read(Path(str(trajectory)), one)  # noqa: E731
    results = []
    for one in all_specs:
        got = adapter(one)
        result = verdict.judge(one, got, most, lambda line: print(line, file=sys.stderr))
        if result.kind != "equal" and trajectory is None and spec is None:
            long = specs.make(method, one.kind, LONG, beta)
            with suppress(UserError):  # too slow for so many rounds, or beyond numbers: the verdict stands without
                result = verdict.settled(long, result, adapter(long))
        results.append((one, result, got))
        if not as_json:
            for line in verdict.sentences(one, result, most):
                say(line)
        if result.kind != "equal":
            break
    if as_json:
        say(json.dumps([verdict.plain(one, result, most) for one, result, _ in results], indent=1))
    if page is not None:
        try:
            files.write_text(Path(page), pages.written(results, most))
        except OSError as error:
            raise UserError(f"cannot write {page}: {reason(error)}; give a file in a folder that is there") from error
    if any(result.kind != "equal" for _, result, _ in results):
        raise typer.Exit(1)


def number(name: str, text: str, below: float = float("inf")) -> float:
    """An option's number > 0."""
    value = scalar(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        raise UserError(
            f"{name} must be a number > 0{'' if below == float('inf') else f' and < {below:g}'}, given {text!r}"
        )
    return float(value)
