"""data: publishers' files fetched; a partition drawn and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from fedconcord.interface.cli.base import app, console, importing, say
from fedconcord.interface.cli.options import Given, option, setting, sources_of, takes_settings
from fedconcord.support.errors import UserError

app_data = typer.Typer(
    name="data",
    help="Fetch data sets, and show which client holds what.",
    rich_markup_mode=None,
    invoke_without_command=True,
)
app.add_typer(app_data)


@app_data.callback()
def root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app_data.command()
@takes_settings("data")
def describe(
    options: Given,
    out: Annotated[str | None, option("Folder for the figure and the tables. [runs/partition-<n>]", "DIR")] = None,
) -> None:
    """Draw a partition and measure what each client holds."""
    sources = sources_of(options)
    with importing():
        from fedconcord.federation.partitions.describe import describe as measure
        from fedconcord.federation.partitions.describe import summary
        from fedconcord.insight.report.figures.heatmap import write_description
        from fedconcord.study.settings.problem import divided, metrics_note, notes
        from fedconcord.study.settings.resolve import resolve_run
        from fedconcord.study.statistics.load import data_name
        from fedconcord.support import files

    resolved = resolve_run(*sources)
    folder = files.free_folder(Path("runs"), "partition", out)
    description = measure(*divided(resolved))
    data = data_name(resolved.data)
    title = f"{data}, {resolved.partition}, {len(description.sizes)} clients, seed {resolved.seed}"
    page = write_description(folder, description, title)
    for sentence in (*notes(resolved), *metrics_note(resolved)):
        say(sentence)
    say(title)
    lines = summary(description)
    wide = max(len(quantity) for quantity, _ in lines)
    for quantity, value in lines:
        say(f"  {quantity:{wide}}  {value}")
    say(f"figure and tables: {page}")


@app_data.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of data sets; --list shows all.", metavar="[NAME...]")
    ] = None,
    data_dir: Annotated[str | None, setting("data_dir")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List all data sets, and whether each is in the folder.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Fetch again what is in the folder already.")] = False,
    mirror: Annotated[
        str | None, option("URL of a copy of the publisher's files, which must have the same checksums.", "URL")
    ] = None,
) -> None:
    """Fetch data sets from their publishers. They are verified, and kept where runs look for them."""
    from fedconcord.federation.data.fetch import PUBLISHED
    from fedconcord.federation.data.fetch import fetch as fetch_one
    from fedconcord.federation.data.published import data_folder

    folder = data_folder(data_dir)
    if list_:
        for name, published in PUBLISHED.items():
            is_there = all((folder / path).is_file() for download in published.downloads for path in download.files)
            say(f"{name}: {'there' if is_there else 'not there'}, in {folder}")
            for download in published.downloads:
                say(f"  {download.urls[0]} ({download.checksum or 'no checksum'})")
                if download.note:
                    say(f"    {download.note}")
        return
    if not names:
        raise UserError(f"data fetch needs a name: {', '.join(PUBLISHED)}; --list says more")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, got: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=got, total=total)

        for name in names:
            paths = fetch_one(name, folder, again=again, mirror=mirror, progress=show, say=say)
            say(f"{name}: in {paths[0].parent}; use it with --data {name}")
