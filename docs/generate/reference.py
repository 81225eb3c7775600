"""The reference that the package says itself: commands from their help, settings from the schema, names by registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import typer

from fedconcord.interface.cli.base import app
from fedconcord.interface.cli.listing import TOPICS, make_listing
from fedconcord.interface.cli.main import call  # whose import makes the commands
from fedconcord.study.options.table import OPTIONS
from marks import code, plain, table

COMMAND: Any = typer.main.get_command(app)  # with those of other packages
EXITS = " ".join((call.__doc__ or "").split("\n\n")[1].replace("(docs/results.md)", "").split())


def pages() -> dict[str, Callable[[], str]]:
    """Path below docs -> what writes the page."""
    each: dict[str, Callable[[], str]] = {f"reference/commands/{name}.md": partial(page, name) for name in commands()}
    return {"reference/command.md": index, "reference/settings.md": settings, "reference/names.md": names} | each


# -- commands --------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """The commands, as `fedconcord --help` has them."""
    return list(COMMAND.list_commands(typer.Context(COMMAND)))


def command(name: str) -> Any:
    return COMMAND.get_command(typer.Context(COMMAND), name)


def index() -> str:
    """All commands, a line each."""
    rows = [(f"[`{name}`](commands/{name}.md)", plain(_first(command(name)))) for name in commands()]
    parts = ["# The command", plain(COMMAND.help or ""), table(("`fedconcord`", ""), rows), "## Exit codes"]
    parts.append(f"{plain(EXITS)} [What a run leaves behind](../results.md#exit-codes) says more.")
    return "\n\n".join(parts) + "\n"


def _first(command: Any) -> str:
    return (command.help or "").partition("\n\n")[0].replace("\n", " ")


def page(name: str) -> str:
    """A command with its options, or a group with its commands."""
    shown = command(name)
    parts = [f"# fedconcord {name}", *_about(f"fedconcord {name}", shown)]
    for inner, one in getattr(shown, "commands", {}).items():
        parts += [f"## fedconcord {name} {inner}", *_about(f"fedconcord {name} {inner}", one)]
    return "\n\n".join(parts) + "\n"


def _about(path: str, command: Any) -> list[str]:
    """Help, usage, arguments and options."""
    context = typer.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [*(plain(" ".join(text.split())) for text in (command.help or "").split("\n\n")), f"```text\n{usage}\n```"]
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    keys = {f"--{option.name.replace('_', '-')}": option.key for option in OPTIONS}
    rows = [(*_written(parameter), _meaning(parameter, keys)) for parameter in shown]
    return [*parts, table(("option", "value", "meaning"), rows)] if rows else parts


def _written(parameter: Any) -> tuple[str, str]:
    """(how it is written, its value)."""
    if parameter.param_type_name == "argument":
        return code(parameter.metavar or parameter.name.upper()), ""
    value = "" if parameter.is_flag else parameter.metavar or parameter.type.name.upper()
    return ", ".join(map(code, parameter.opts)), code(value)


def _meaning(parameter: Any, keys: dict[str, str]) -> str:
    key = next((keys[option] for option in parameter.opts if option in keys), None)
    about = plain(" ".join((parameter.help or "").split()))
    return about if key is None else f"{about} Setting [`{key}`](../settings.md#{_section(key).lower()})."


# -- settings and names ----------------------------------------------------------------------------------------------


@cache
def _listing() -> dict[str, Any]:
    return make_listing()


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else "Job"


def settings() -> str:
    """Every key of a settings file, by table."""
    short = {option.key: code(f"--{option.name.replace('_', '-')}") for option in OPTIONS}
    by: dict[str, list[tuple[str, ...]]] = {}
    for key, default, values, meaning in _listing()["settings"]:
        row = (code(key), short.get(key, ""), code(default), plain(values), plain(meaning))
        by.setdefault(_section(key), []).append(row)
    parts = [
        "# Settings",
        "Keys of a TOML file (`--config`), of `--set key=value` and of `settings={...}` in Python. Keys with an option "
        "have an argument of the same name in `fedconcord.run` and the others. A later source wins: defaults, file, "
        "options, `--set`. `fedconcord list settings` prints the same.",
    ]
    for section, rows in by.items():
        parts += [f"## {section}", table(("key", "option", "default", "values", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def names() -> str:
    """Everything that goes by a name, but the methods, which have pages of their own."""
    parts = [
        "# Names",
        "What settings name, with parameters: `--partition 'dirichlet(0.1)'`. `fedconcord list TOPIC` prints the same; "
        "methods have [pages of their own](../methods/index.md).",
    ]
    for topic in TOPICS:
        if topic in ("methods", "settings"):
            continue
        parts.append(f"## {topic}")
        for name, meaning, details, rows in _listing()["entries"][topic]:
            parts.append(f"**`{name}`** {plain(' '.join([meaning, details]).strip())}")
            if rows:
                cells = [
                    (code(key), code(default), plain(values), plain(about)) for key, default, values, about in rows
                ]
                parts.append(table(("parameter", "default", "values", "meaning"), cells))
    return "\n\n".join(parts) + "\n"
