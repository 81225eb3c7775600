"""list: what there is, with all parameters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedconcord.interface.cli import base
from fedconcord.interface.cli.base import app, console, say
from fedconcord.support import files
from fedconcord.support.errors import UserError, unknown
from fedconcord.support.imports import from_entry_point

if TYPE_CHECKING:
    from fedconcord.support.factories import Search

TOPICS = (
    *("methods", "data", "models", "partitions", "skew", "sampling", "work", "batches"),
    *(
        "availability",
        "dropout",
        "devices",
        "trees",
        "clocks",
        "oracles",
        "optimisers",
        "terms",
        "lr",
        "lr_schedule",
        "server",
        "upload",
        "clipping",
    ),
    *("aggregate", "hostile"),
    *("tasks", "labels", "regularisers", "personalise", "losses", "metrics", "adapters"),
    *("baselines", "trackers", "natural", "recipes", "settings"),
)
PLUGINS = "fedconcord.methods"  # as in method.algorithms.plugins, which imports torch
Parameter = tuple[str, str, str, str]  # name, default, values, meaning


@app.command(name="list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(TOPICS[:-1])} or {TOPICS[-1]}.", metavar="[WHAT]"),
    ] = None,
) -> None:
    """Show methods, data, models and so on, with all parameters."""
    if what is not None and what not in TOPICS:
        raise unknown("topic", what, TOPICS)
    listing = _listing()
    for topic in TOPICS if what is None else [what]:
        if topic == "settings":
            _show_settings(listing["settings"])
            continue
        _show(f"[bold]{topic}[/bold]")
        if topic == "methods":
            _show_groups(listing["groups"], listing["columns"], listing["legend"])
        for entry in listing["entries"].get(topic, ()):  # of a package that may not be installed
            _show_entry(*entry)


def _listing() -> dict[str, Any]:
    """Everything that `list` shows, as plain data, kept.

    It is kept in the user's cache, for torch alone takes a second to import, until a file of the package changes;
    with plug-ins, whose files are anywhere, it is made anew each time.
    """
    if entry_points(group=PLUGINS):
        return make_listing()
    path = files.user_cache() / "list.json"
    key = _fingerprint()
    with suppress(OSError, ValueError, TypeError, KeyError):
        cache = json.loads(path.read_text(encoding="utf-8"))
        if cache["key"] == key:
            return dict(cache["listing"])
    listing = make_listing()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"key": key, "listing": listing})
    return listing


def _fingerprint() -> str:
    """It changes with every file of the package, and of the packages that fill a topic."""
    packages = {"fedconcord", *(entry.module.partition(".")[0] for entry in base.added(base.TOPICS))}
    specs = [spec for name in sorted(packages) if (spec := find_spec(name)) is not None]
    places = [Path(place) for spec in specs for place in spec.submodule_search_locations or ()]
    stats = [(str(path), path.stat()) for place in places for path in sorted(place.rglob("*.py"))]
    return hashlib.sha256(repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats]).encode()).hexdigest()


def make_listing() -> dict[str, Any]:
    """Everything that `list` shows, as plain data, made anew."""
    from fedconcord.federation.objectives.metrics import METRICS, meaning
    from fedconcord.insight.methods import catalogue
    from fedconcord.interface.tracking import TRACKERS
    from fedconcord.method.algorithms.plugins import available
    from fedconcord.study.settings.parts import REGISTRIES

    groups, methods = catalogue.table(), available()
    registries: dict[str, Mapping[str, Any]] = {"trackers": TRACKERS}
    for registry in REGISTRIES.values():  # two may share a topic
        registries[registry.topic] = {**registries.get(registry.topic, {}), **registry.things}
    special = ("methods", "metrics")
    entries = {
        topic: [_entry(name, things) for name in things] for topic, things in registries.items() if topic not in special
    }
    entries["methods"] = [_entry(costs.name, methods) for group in groups for costs in group.methods]
    entries["metrics"] = [
        (name, meaning(name), f"For {' and '.join(m.targets)}; {'more' if m.higher else 'less'} is better.", [])
        for name, m in METRICS.items()
    ]
    entries |= {entry.name: from_entry_point(entry)() for entry in base.added(base.TOPICS)}
    return {
        "groups": [(group.title, [catalogue.cells(costs) for costs in group.methods]) for group in groups],
        "columns": catalogue.COLUMNS,
        "legend": f"{catalogue.LEGEND}. {_terms_words()}",
        "entries": entries,
        "settings": _settings(),
    }


def _terms_words() -> str:
    from fedconcord.method.wrappers.terms import KNOWN_AS

    words = ", ".join(f"{paper} --term {term}" for paper, term in KNOWN_AS.items())
    return f"Terms of the clients' loss go with every method (list terms): fedavg with one is {words}"


def _settings() -> list[Parameter]:
    from fedconcord.study.settings.sources import default_text, keys, searched, values_text

    ranges = {key: _tuned(searched().get(key)) for key in keys()}
    return [
        (key, default_text(schema), values_text(schema) + ranges[key], schema["description"])
        for key, schema in keys().items()
    ]


def _entry(name: str, registry: Mapping[str, Callable[..., Any]]) -> tuple[str, str, str, list[Parameter]]:
    """(name, meaning, details, parameters)."""
    from fedconcord.support import errors, factories, grammar

    try:
        factory = registry[name]
    except UserError as broken:  # another package's
        return name, errors.sentence(broken), "", []
    rows = []
    for option in factories.options(factory):
        default = "needed" if option.required else grammar.text(option.default)
        values = option.values + _tuned(factories.search_of(option.annotation))
        rows.append((option.name, default, values, option.meaning))
    return name, *factories.describe(factory), rows


def _tuned(place: Search | None) -> str:
    """Where `tune` looks for a parameter."""
    return "" if place is None else f"; tuned in {place}"


def _show(*renderables: Any) -> None:
    """Print without the spaces at the ends of lines that tables are filled up with."""
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _parameters(rows: Sequence[Parameter], first: str) -> Padding:
    """Values and meaning share a column, so that 80 columns will do."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    table.add_column(first, overflow="fold", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=16)
    table.add_column("meaning (values)", overflow="fold")
    for name, default, values, meaning in rows:
        range = "" if values in ("text", "table") else f" [dim]({escape(values)})[/dim]"
        table.add_row(escape(name), escape(default), escape(meaning) + range)
    return Padding(table, (0, 0, 0, 4), expand=False)


def _show_groups(groups: Sequence[tuple[str, Sequence[Sequence[str]]]], columns: Sequence[str], legend: str) -> None:
    """Methods by mechanism with their costs; the columns of all groups stand below each other."""
    every = [columns, *(cells for _, rows in groups for cells in rows)]
    widths = [max(len(cells[k]) for cells in every) for k in range(len(columns))]
    _show(Padding(f"[dim]{escape(legend)}[/dim]", (0, 0, 0, 2)), "")
    for title, rows in groups:
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        for k, column in enumerate(columns):
            table.add_column(column, justify="right" if k else "left", min_width=widths[k], no_wrap=True)
        for cells in rows:
            table.add_row(*map(escape, cells))
        _show(Padding(f"[bold]{escape(title)}[/bold]", (0, 0, 0, 2)), Padding(table, (0, 0, 0, 4), expand=False), "")


def _show_entry(name: str, meaning: str, details: str, rows: Sequence[Parameter]) -> None:
    _show(Padding(f"[bold cyan]{escape(name)}[/bold cyan]  {escape(meaning)}", (0, 0, 0, 2), expand=False))
    if details:
        _show(Padding(f"[dim]{escape(details)}[/dim]", (0, 0, 0, 4), expand=False))
    if rows:
        _show(_parameters(rows, "parameter"))
    _show("")


def _show_settings(rows: Sequence[Parameter]) -> None:
    _show("[bold]settings[/bold]  keys of a TOML file, of --set and of settings= in Python", _parameters(rows, "key"))
