"""Commands, and topics of `list`, that other packages add by entry points. A package is imported when they are used."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from fedconcord.basis.errors import UserError, sentence

COMMANDS = "fedconcord.commands"  # name of a command = "module:app", an app of typer that has this command alone
TOPICS = "fedconcord.topics"  # name of a topic = "module:function", which returns the topic's entries

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


@functools.cache
def added(group: str) -> EntryPoints:
    """The entry points of a group, looked for once a process: it reads the metadata of every installed package."""
    return entry_points(group=group)


def load(entry: EntryPoint) -> Any:
    """What an entry point names.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever somebody else's module raises when imported
        package = entry.dist.name if entry.dist is not None else "(unknown)"
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"cannot load {entry.name!r} of package {package} (entry point {entry.value}): {why}; repair or uninstall "
            "that package"
        ) from error


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
        return typer.main.get_command(load(entry))
    except UserError as error:
        broken, why = typer.Typer(add_completion=False, rich_markup_mode=None), error

        @broken.command(name=entry.name, help=f"Not available: {sentence(why)}.", context_settings=ANYTHING)
        def refuse() -> None:
            raise why

        return typer.main.get_command(broken)
