"""flower: a job on real sites, by Flower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedconcord.execution.run.interrupts import heeded
from fedconcord.interface.cli.base import DIVERGED, complain, console, fail, importing, say
from fedconcord.interface.cli.options import Given, Trust, option, sources_of, takes_settings
from fedconcord.interface.cli.progress import latest_metric
from fedconcord.support.errors import LostError, UserError
from fedconcord_flower import maintenance
from fedconcord_flower.maintenance import Keys
from fedconcord_flower.watch import Watch

if TYPE_CHECKING:  # torch takes seconds to import
    from fedconcord_flower.trial import Member

app = typer.Typer(
    name="flower",
    help="Run a job on real sites over Flower. Try it here first, write its app, start server and sites.",
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
)
app.add_typer(maintenance.app)
SITES = "Sites' files, separated by commas; a site is named as its file."
Sites = Annotated[str | None, option(SITES, "FILE,...")]
LATER = "Sites' files whose SuperNodes start after round 1, separated by commas; --sites has the others."
Wait = Annotated[float, option("Seconds to wait for the answer of a site. [600]", "SECONDS")]
Limit = Annotated[float, option("Seconds to wait until all sites are there. [600]", "SECONDS")]
Tree = Annotated[str, option("Edge servers, each with the sites or edge servers right below it.", "NAME=SITE+SITE,...")]
Rules = Annotated[str, option("File of the policy of the site, by `fedconcord flower policy`.", "FILE")]
Port = Annotated[int, option("Port of the server. [8443]", "PORT")]


@app.callback()
def root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("try")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines", "out"))
def try_(
    given: Given,
    sites: Sites = None,
    later: Annotated[str | None, option(LATER, "FILE,...")] = None,
    out: Annotated[str | None, option("Folder for the results. [runs/flower-<n>]", "DIR")] = None,
    resume: Annotated[str | None, option("Continue what this folder holds, with its settings.", "DIR")] = None,
    trust: Trust = False,
    wait: Wait = 600.0,
    limit: Limit = 600.0,
    policy: Rules = "",
    tree: Tree = "",
) -> None:
    """Run a job on this machine as it would run on real sites. It has a server, a process per site, TLS and keys."""
    with importing():
        from fedconcord.execution.run.folder import refuse_taken
        from fedconcord.insight.report import write_report
        from fedconcord.support.files import free_folder
        from fedconcord_flower import keys, trial
        from fedconcord_flower.app import edges_of
        from fedconcord_sites.edges import homes_of
        from fedconcord_sites.form import source_of
        from fedconcord_sites.policy import USUAL, read

    edges = edges_of(tree)
    rules = Path(policy) if policy else None
    folder = Path(resume or out or free_folder(Path("runs"), "flower"))
    place = folder.with_name(f"{folder.name}.flower")
    settings = _settings(given, None if resume is None else trial.job_of(place), trust)
    members = _members(sites, settings, given["clients"] is not None)
    if later is not None:
        if sites is None:
            raise UserError("--later names files of sites that come later; give the files of the others by --sites")
        members += [one._replace(later=True) for one in _members(later, settings, False)]
    names = [one.name for one in members]
    keys.check_names([*names, *edges])
    homes_of(edges, names, source_of(settings))
    if resume is None:
        refuse_taken(folder)
        with TemporaryDirectory() as checked:
            _refuse(trial.differences(settings, members, Path(checked), read(rules) if rules else USUAL, edges))
    plan = trial.Trial(settings, members, folder, place, limit, wait, resume is not None, rules, edges)
    say(
        f"{len(members)} sites, a server and a worker start on this machine, for {_rounds(settings)} rounds; "
        f"results go into {folder}, logs and what sites remember into {place}; Ctrl-C ends all of them"
    )
    with Watch(_rounds(settings)) as watch:
        try:
            with heeded():
                result = trial.run(plan, watch)
        except KeyboardInterrupt:
            complain(f"interrupted: continue with: fedconcord flower try --resume {folder}, and the same sites")
            raise typer.Exit(130) from None
        except LostError as lost:
            if not (folder / "run.json").exists():
                raise
            raise LostError(f"{lost}; --resume {folder} goes on from the last round") from None
    say(f"{result.label}: {result.status}, {result.rounds} rounds, {latest_metric(result.metrics)}".rstrip(", "))
    say(f"results: {folder}; sites' state and logs: {place}")
    if any(name.startswith("test_") for name in result.metrics):  # none where a site's noise is its own
        say(f"report: {write_report([folder])}")
    if result.status == "diverged":
        raise typer.Exit(DIVERGED)


@app.command("check")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines", "out"))
def check_(given: Given, sites: Sites = None) -> None:
    """Show the files of sites side by side. Compare what all make of a job."""
    with importing():
        from fedconcord_flower import trial

    settings = _settings(given)
    members = _members(sites, settings, given["clients"] is not None)
    overview = trial.side_by_side(settings, members)
    if overview.names:
        table = Table(box=None, pad_edge=False)
        for title in ("", *overview.names):
            table.add_column(escape(title), overflow="fold")
        for row in overview.rows:
            table.add_row(*map(escape, row))
        console.print(table)
    for sentence in overview.doubts:
        say(sentence)
    with TemporaryDirectory() as place:
        _refuse(trial.differences(settings, members, Path(place)))
    doubtful = (
        f"; {len(overview.doubts)} thing{'s' * (len(overview.doubts) != 1)} above may be wrong"
        if overview.doubts
        else ""
    )
    say(f"{len(members)} sites can begin this job{doubtful}")


@app.command()
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines", "out"))
def new(
    given: Given,
    folder: Annotated[str, typer.Argument(help="The new app's folder.", metavar="DIR")],
    sites: Annotated[str, option("Names of the sites, separated by commas.", "NAME,...")],
    later: Annotated[
        str, option("Sites that may join after round 0, with their numbers of rows.", "NAME=ROWS,...")
    ] = "",
    out: Annotated[str, option("Folder of the results, at the server. [results]", "DIR")] = "results",
    wait: Wait = 600.0,
    tree: Tree = "",
) -> None:
    """Write a Flower app, for `flwr run` on a team's own SuperLink."""
    with importing():
        from fedconcord_flower.app import Order, edges_of, later_of, write_app, write_operation
        from fedconcord_flower.keys import check_names
        from fedconcord_sites import policy
        from fedconcord_sites.edges import homes_of
        from fedconcord_sites.form import source_of

    names = [name.strip() for name in sites.split(",") if name.strip()]
    settings, edges = _settings(given), edges_of(tree)
    check_names([*names, *edges])
    homes_of(edges, names, source_of(settings))
    write_app(Path(folder), settings, Order(names, out, wait, False, "", later_of(later, names), edges))
    policy.write(Path(folder) / "site.toml", settings, None, len(names))
    write_operation(Path(folder) / "operate", names)
    say(f"app: {folder}; {folder}/README.md says what the server and each site start, site.toml what a site answers")
    say(f"services, health checks, log rotation, proxy, firewall and containers for administrators: {folder}/operate")


@app.command("policy")
@takes_settings("run", hidden=("methods", "seeds"), without=("baselines", "out"))
def policy_(
    job: Given,
    file: Annotated[str, typer.Argument(help="The new policy's file.", metavar="FILE")],
    site: Annotated[str, option("The site's file of samples, whose columns the policy then lists.", "FILE")] = "",
) -> None:
    """Write the policy of a site that approves one job, with comments. Its owner reads it and changes it."""
    with importing():
        from fedconcord_sites import policy

    if Path(file).exists():
        raise UserError(f"{file} is there already; name a new file for the policy")
    policy.write(Path(file), _settings(job), Path(site) if site else None)
    say(f"policy: {file}; read it, change it, and start the site with --policy {file}")


@app.command()
def server(
    keys: Keys = "keys",
    host: Annotated[str, option("Address to listen at. [0.0.0.0]", "HOST")] = "0.0.0.0",
    port: Port = 8443,
    operators: Annotated[str, option("Networks that may submit runs, beside this machine.", "NETWORK,...")] = "",
) -> None:
    """Run the server of a team, Flower's SuperLink. It lets in the sites whose NAME.pub are in the folder of keys."""
    from fedconcord_flower import standing

    _until_stopped(lambda tell: standing.server(Path(keys), host, port, operators, tell))


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="The site's name, as its key is registered.", metavar="NAME")],
    data: Annotated[str, option("The site's file of samples.", "FILE")] = "",
    server: Annotated[str, option("The server's address.", "HOST:PORT")] = "",
    keys: Keys = "keys",
    folder: Annotated[str, option("Folder for what the site remembers between rounds. [site-NAME]", "DIR")] = "",
    policy: Rules = "",
    preview: Annotated[str, option("Start nothing: show what the job of this file would have sent.", "FILE")] = "",
    edge: Annotated[str, option("In place of --data: the folder that an edge server's app attends.", "DIR")] = "",
) -> None:
    """Run a site, Flower's SuperNode. It needs ca.crt and NAME.key in the folder of keys."""
    place = Path(folder or f"site-{name}")
    rules = Path(policy) if policy else None
    if bool(data) == bool(edge) or (edge and (policy or preview)):
        raise UserError("a site has --data (--policy, --preview) and an edge server has --edge alone; give one of them")
    if preview:
        _preview(Path(preview), Path(data), name, rules)
        return
    from fedconcord_flower import standing

    if not server:
        raise UserError("--server is missing: it names the server's address, as in server.example.org:8443")
    samples, meeting = (Path(one) if one else None for one in (data, edge))
    _until_stopped(lambda tell: standing.site(name, server, samples, Path(keys), place, tell, rules, meeting))


@app.command()
def ledger(
    folder: Annotated[str, typer.Argument(help="Folder of what the site remembers, its --folder.", metavar="DIR")],
    contains: Annotated[str, option("A last line's hash of before, which must still be there.", "HASH")] = "",
) -> None:
    """Print what a site was asked and what left it. Verify that no line was changed; sum the privacy spent."""
    from fedconcord_sites.ledger import NAME, Ledger, epsilon_of, shown

    places = [Path(folder) / NAME, Path(folder) / "state" / NAME]
    path = next((one for one in places if one.exists()), None)
    if path is None:
        raise UserError(f"{folder} has no {NAME}; name the folder of a site, as --folder of flower site")
    book = Ledger(path)
    lines = book.lines()
    for line in lines:
        typer.echo(shown(line))
    if contains and not any(one.startswith(contains) for one in book.hashes):
        raise UserError(f"{path} has no line of the hash {contains}: its end was cut off, or it is another ledger")
    for file in {line["file"]: line["path"] for line in lines}:
        mine = [line for line in lines if line["file"] == file]
        if (epsilon := epsilon_of(mine)) > 0:
            say(f"{mine[-1]['path']} (SHA-256 {file[:12]}): epsilon {epsilon:.4g} over all runs, of their units")
    say(f"{len(lines)} lines, none changed; the last has the hash {book.head}")


def _preview(job: Path, data: Path, name: str, rules: Path | None) -> None:
    """Say what a job would have a site send."""
    with importing():
        from fedconcord.study.settings.resolve import as_toml
        from fedconcord.study.settings.sources import from_file
        from fedconcord.support import imports
        from fedconcord_flower.preview import preview
        from fedconcord_sites.policy import USUAL, read

    text = as_toml(from_file(job))
    imports.check(text, "module")
    answers, why = preview(text, data, name, read(rules) if rules else USUAL)
    for one in answers:
        say(f"{one.question} -> {one.kind}, at most {one.most} in a run, {one.bytes:,} bytes")
        for line in one.leaves:
            say(f"    {line}")
        say(f"  tells: {one.tells}")
    if why is not None:
        raise UserError(f"the job would end here: {why}")
    say("nothing was sent: copies of this site stood for the others; `fedconcord flower ledger` prints what was sent")


def _until_stopped(go: Callable[[Callable[[Mapping[str, Any]], None]], None]) -> None:
    """Run what runs until Ctrl-C, and say what it tells."""

    def tell(event: Mapping[str, Any]) -> None:
        if "say" in event:
            say(event["say"])
        elif event.get("sites"):
            say("; ".join(f"{name} {state}" for name, state in event["sites"].items()))

    try:
        with heeded():
            go(tell)
    except KeyboardInterrupt:
        say("stopped")


def _settings(given: Given, before: Path | None = None, trust: bool = False) -> str:
    """The settings of the command, over those of a file from before, as a file that server and sites read."""
    with importing():
        from fedconcord.study.settings.resolve import as_toml
        from fedconcord.study.settings.sources import from_file
        from fedconcord.support import imports
        from fedconcord_sites.form import source_of

    text = as_toml(*([] if before is None else [from_file(before)]), *sources_of(given))
    if trust:
        imports.trust(text)
    imports.check(text, "module")  # the apps follow what is in it
    source_of(text)
    return text


def _rounds(text: str) -> int:
    from fedconcord.study.settings.settings import Config
    from fedconcord_sites.form import source_of

    return int(source_of(text).values.get("rounds", Config.model_fields["rounds"].default))


def _members(sites: str | None, text: str, clients: bool) -> list[Member]:
    """The sites: a file each, or the clients of the data that the job names."""
    from fedconcord.study.settings.resolve import resolve_run
    from fedconcord_flower.trial import Member
    from fedconcord_sites.form import source_of

    if sites is None:
        there = resolve_run(source_of(text)).clients
        return [Member(f"site-{number}", None) for number in range(1, there + 1)]
    if clients:
        raise UserError("--sites and --clients exclude each other: a file is a site; give one of them")
    paths = [Path(part.strip()) for part in sites.split(",") if part.strip()]
    for path in paths:
        if not path.exists():
            raise UserError(f"--sites: there is no file {path}")
    return [Member(path.stem, path) for path in paths]


def _refuse(differences: Sequence[str]) -> None:
    for sentence in differences:
        fail(sentence)
    if differences:
        raise typer.Exit(2)
