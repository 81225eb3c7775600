"""Options that commands share, and the settings that they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedconcord.study.options import STAGES, Stage
from fedconcord.study.options.table import OPTIONS
from fedconcord.support.errors import UserError, closest

if TYPE_CHECKING:  # torch takes seconds to import, and --help needs none of it
    from fedconcord.study.settings.sources import Source

Command = Callable[..., None]
Given = Mapping[str, Any]
"""The settings of a command line by the name of their option, with `config` and `set`; None where not given."""


def option(help: str, metavar: str, *names: str, hidden: bool = False) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, hidden=hidden, show_default=False)


def setting(name: str, hidden: bool = False) -> Any:
    """The option of a setting, as the schema states it."""
    stated = next(option for option in OPTIONS if option.name == name)
    flag = f"--{name.replace('_', '-')}"
    return option(stated.about, stated.metavar, flag, hidden=hidden)


Resume = Annotated[str | None, option("Continue what this folder holds, with its settings.", "DIR")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import modules that the folder names, which runs code of whoever made it.")
]
Grow = Annotated[str | None, option("Continue the comparison in this folder; --methods and --seeds add to it.", "DIR")]
ConfigFile = Annotated[str | None, option("TOML file with settings; `list settings` shows every key.", "FILE")]
Set = Annotated[list[str] | None, option("Set any setting, as in --set local.clip=5; may be repeated.", "KEY=VALUE")]
Jobs = Annotated[str | None, option("Number of runs at the same time, each in its own process. [1]", "N")]


def takes_settings(
    stage: Stage, hidden: Sequence[str] = (), without: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Give a command every option of the schema up to a stage, --config and --set, as its first argument, a `Given`.

    Args:
        hidden: options that are understood, and not shown.
        without: options that the command does not have.
    """
    stages = STAGES[: STAGES.index(stage) + 1]
    names = [option.name for option in OPTIONS if option.stage in stages and option.name not in without]

    def dress(command: Command) -> Command:
        _, *others = inspect.signature(command, eval_str=True).parameters.values()
        types: dict[str, Any] = {name: Annotated[str | None, setting(name, name in hidden)] for name in names}
        types |= {p.name: p.annotation for p in others} | {"config": ConfigFile, "set": Set}
        defaults = {p.name: p.default for p in others}

        def called(**values: Any) -> None:
            settings = {name: values.pop(name) for name in (*names, "config", "set")}
            command(settings, **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, keyword, default=defaults.get(name), annotation=kind)
                for name, kind in types.items()
            ]
        )
        called.__annotations__, called.__name__, called.__doc__ = types, command.__name__, command.__doc__
        return called

    return dress


def sources_of(values: Given) -> list[Source]:
    """The settings file and the options of a command; wrong keys and values are refused here, without torch."""
    from fedconcord.study.settings.sources import from_file, from_options, merge, shaped
    from fedconcord.support import grammar, imports

    options = {
        option.key: (
            f"--{option.name.replace('_', '-')}",
            value if option.literal else grammar.scalar(value),
        )
        for option in OPTIONS
        if (value := values.get(option.name)) is not None
    }
    file = [] if values["config"] is None else [from_file(Path(values["config"]))]
    sources = [*file, from_options(options, values["set"] or ())]
    shaped(*merge(sources))
    imports.trust(*(source.values for source in sources))
    return sources


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError(f"{option} must be one of {', '.join(choices)}, given {value!r}{closest(value, choices)}")
