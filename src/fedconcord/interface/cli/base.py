"""The application, with commands and topics of `list` that other packages add by entry points, and how it speaks.

Results go to stdout, complaints to stderr. Of processes that torchrun started the first one speaks; the others say
only why they fail. Another package is imported when its command is used.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import fedconcord
from fedconcord.support.errors import UserError, sentence
from fedconcord.support.imports import from_entry_point

COMMANDS = "fedconcord.commands"  # name of a command = "module:app", an app of typer that has this command alone
TOPICS = "fedconcord.topics"  # name of a topic = "module:function", which returns the topic's entries

typer.core.HAS_RICH = False  # else help has "\[required]", escaped for a markup that is off in every command

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


@functools.cache
def added(group: str) -> EntryPoints:
    """The entry points of a group, looked for once a process: it reads the metadata of every installed package."""
    return entry_points(group=group)


class Commands(TyperGroup):
    """The library's own commands, and those of other packages."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(dict.fromkeys([*super().list_commands(ctx), *(entry.name for entry in added(COMMANDS))]))

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        ours = super().get_command(ctx, cmd_name)
        theirs = () if ours is not None else added(COMMANDS).select(name=cmd_name)
        return next(iter(map(_command, theirs)), ours)


def _command(entry: EntryPoint) -> Any:
    """A command of another package; of a broken one a command that says so, since all others have to stay listed."""
    try:
        return typer.main.get_command(from_entry_point(entry))
    except UserError as error:
        broken, why = typer.Typer(add_completion=False, rich_markup_mode=None), error

        @broken.command(name=entry.name, help=f"Not available: {sentence(why)}.", context_settings=ANYTHING)
        def refuse() -> None:
            raise why

        return typer.main.get_command(broken)


app = typer.Typer(
    name="fedconcord",
    cls=Commands,
    help="Federated optimisation with unequal clients: run one method, or compare several on the same clients.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
RANK = os.environ.get("RANK", "0")  # torchrun sets it
PROGRAM = (
    f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE', '1')} -m fedconcord"
    if "RANK" in os.environ
    else "fedconcord"
)
DIVERGED = 3  # exit code
CODES = "2 a mistake, or nothing could run; 130 interrupted, and resumable"  # that run and compare have in common
FIRST = """\
fedconcord: many clients whose data and speed differ train one model. Begin with one of these:

  fedconcord compare --methods fedavg,scaffold --data digits --clients 20 --cohort 5 --rounds 30
      compares two methods on data that the package brings, and writes a page, in some seconds
  fedconcord data describe --data my.csv --label-column LABEL --client-column SITE
      shows which client holds what in a table of your own
  fedconcord advise --data my.csv --label-column LABEL --client-column SITE
      names the methods to try on it first; tune then finds their settings

  fedconcord --help             shows every command, and COMMAND --help its options
  fedconcord list methods       shows every method; so do list data, list models, list settings"""
console = Console(highlight=False, soft_wrap=False, quiet=RANK != "0")


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fedconcord {fedconcord.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(FIRST)


@contextmanager
def importing() -> Iterator[None]:
    """Around the import of torch: the collector would walk its objects again and again while they are made, and once
    more at the end of the process, for 0.7 s in all."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # no later collection looks at them
        gc.enable()


def say(line: str) -> None:
    """A line on stdout that no terminal width breaks."""
    if RANK == "0":
        print(line, flush=True)


def say_columns(rows: Sequence[Mapping[str, str]]) -> None:
    """A line a row below the names of its cells, as wide as they need."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def complain(line: str) -> None:
    if RANK == "0":
        print(line, file=sys.stderr, flush=True)


def fail(sentence: str) -> None:
    """Say why this process ends."""
    who = "" if RANK == "0" else f"rank {RANK}: "
    print(f"{who}error: {sentence}", file=sys.stderr, flush=True)
