"""The command `fedconcord`: options in, folders and a report out. A mistake is one sentence and exit code 2."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import fedconcord
from fedconcord import files
from fedconcord.errors import UserError, closest, unknown

if TYPE_CHECKING:  # torch takes seconds to import, and --help needs none of it
    from fedconcord.api import Finished, Planned
    from fedconcord.config import Source
    from fedconcord.training import Row

app = typer.Typer(
    name="fedconcord",
    help="Federated optimisation with unequal clients: run one method, or compare several on the same clients.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console(highlight=False, soft_wrap=False)

TEXTS = frozenset(  # options that are text as they stand; others may be numbers
    ("method", "methods", "seeds", "data", "data_dir", "partition", "model", "out", "device", "engine", "dtype")
) | {"sampling", "oracle", "server", "upload"}
TOPICS = (
    *("methods", "data", "models", "partitions", "sampling", "work", "oracles", "server", "upload"),
    *("tasks", "labels", "regularisers", "recipes", "settings"),
)
AUDIT_OPTIONS = ("client", "round", "iterations", "optimiser", "attack_lr", "labels", "out")
PLUGINS = "fedconcord.methods"  # as in algorithms.plugins, which imports torch
Parameter = tuple[str, str, str, str]  # name, default, values, meaning
SAY_EVERY = 10.0  # seconds between lines of progress where no bar can be drawn


def _option(help: str, metavar: str, *names: str, hidden: bool = False) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, hidden=hidden, show_default=False)


Data = Annotated[str | None, _option("Data set or problem; `list data` shows all. [digits]", "NAME")]
DataDir = Annotated[str | None, _option("Folder of data files. [$FEDCONCORD_DATA, else the user's cache]", "DIR")]
Partition = Annotated[str | None, _option("Who holds which samples, as in shards(2). [dirichlet(0.1)]", "NAME")]
Model = Annotated[str | None, _option("Model. [2nn]", "NAME")]
Clients = Annotated[str | None, _option("Clients in all. [50]", "N")]
CohortOption = Annotated[str | None, _option("Clients in a round. [10]", "N")]
Rounds = Annotated[str | None, _option("Communication rounds. [100]", "N")]
Epochs = Annotated[str | None, _option("Local epochs: 3, or uniform(1,5). [1]", "WORK")]
Steps = Annotated[str | None, _option("Local steps, instead of epochs.", "WORK")]
BatchSize = Annotated[str | None, _option("Samples a local step, or full. [10]", "N")]
LR = Annotated[str | None, _option("Local step size. [0.1]", "NUMBER", "--lr")]
Momentum = Annotated[str | None, _option("Momentum of local steps. [0]", "NUMBER")]
Oracle = Annotated[str | None, _option("Gradient of local steps: full, sam(0.1) or svrg. [minibatch]", "NAME")]
Sampling = Annotated[str | None, _option("Who takes part, as in bernoulli(0.1). [uniform]", "NAME")]
Server = Annotated[str | None, _option("Server optimiser, as in momentum(0.9). [none]", "NAME")]
Upload = Annotated[str | None, _option("Compression of messages, as in quantise(8). [none]", "NAME")]
EvalEvery = Annotated[str | None, _option("Rounds between evaluations. [1]", "N")]
CheckpointEvery = Annotated[str | None, _option("Seconds between checkpoints. [30]", "SECONDS")]
Target = Annotated[str | None, _option("Test accuracy whose first round is reported, as in 0.9.", "NUMBER")]
Out = Annotated[str | None, _option("Folder of the results. [runs/<data>-<method>-<n>]", "DIR")]
Resume = Annotated[str | None, _option("Continue this folder, with its settings.", "DIR")]
Device = Annotated[str | None, _option("cpu, cuda or auto. [cpu]", "NAME")]
EngineOption = Annotated[str | None, _option("stacked or serial; results do not depend on it. [stacked]", "NAME")]
Dtype = Annotated[str | None, _option("float32 or float64. [float32]", "NAME")]
ConfigFile = Annotated[str | None, _option("Settings from a TOML file; `list settings` shows every key.", "FILE")]
Set = Annotated[list[str] | None, _option("Any setting, as in --set local.clip=5; repeatable.", "KEY=VALUE")]
Method = Annotated[str | None, _option("The method, with parameters: fedprox(mu=0.1). [fedavg]", "NAME")]
Methods = Annotated[str | None, _option("Methods, as in fedavg,fedprox(mu=0.1),scaffold(local.lr=0.05).", "LIST")]
Seed = Annotated[str | None, _option("Seed of all randomness. [0]", "N")]
Seeds = Annotated[str | None, _option("Seeds, as in 0,1,2. [0]", "LIST")]
OneMethod = Annotated[str | None, _option("", "NAME", "--method", hidden=True)]
ManyMethods = Annotated[str | None, _option("", "LIST", "--methods", hidden=True)]
OneSeed = Annotated[str | None, _option("", "N", "--seed", hidden=True)]
ManySeeds = Annotated[str | None, _option("", "LIST", "--seeds", hidden=True)]
Jobs = Annotated[str | None, _option("Runs at once, each in its own process. [1]", "N")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedconcord {fedconcord.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    method: Method = None,
    data: Data = None,
    data_dir: DataDir = None,
    partition: Partition = None,
    model: Model = None,
    clients: Clients = None,
    cohort: CohortOption = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: LR = None,
    momentum: Momentum = None,
    oracle: Oracle = None,
    sampling: Sampling = None,
    server: Server = None,
    upload: Upload = None,
    seed: Seed = None,
    target: Target = None,
    eval_every: EvalEvery = None,
    checkpoint_every: CheckpointEvery = None,
    out: Out = None,
    resume: Resume = None,
    device: Device = None,
    engine: EngineOption = None,
    dtype: Dtype = None,
    config: ConfigFile = None,
    set: Set = None,
    methods: ManyMethods = None,
    seeds: ManySeeds = None,
) -> None:
    """Train one method."""
    sources = _sources(locals())
    from fedconcord import api

    planned = api.plan_resumed_run(Path(resume), *sources) if resume else api.plan_run(*sources)
    again = f"fedconcord run --resume {shlex.quote(str(planned.folder))}"
    with _Show([planned]) as show:
        show(0, None)
        try:
            result = api.execute(planned, lambda row: show(0, row))
        except KeyboardInterrupt:  # the second Ctrl-C, or one before the first round
            raise _interrupted(planned.folder, again) from None
        show(0, result)
    if result.status == "interrupted":
        raise _interrupted(planned.folder, again)
    if result.status == "diverged":
        _say(f"diverged: a metric is no longer finite after round {result.rounds}; a smaller --lr may help")
    _say(f"results: {planned.folder}")


@app.command()
def compare(
    methods: Methods = None,
    data: Data = None,
    data_dir: DataDir = None,
    partition: Partition = None,
    model: Model = None,
    clients: Clients = None,
    cohort: CohortOption = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: LR = None,
    momentum: Momentum = None,
    oracle: Oracle = None,
    sampling: Sampling = None,
    server: Server = None,
    upload: Upload = None,
    seeds: Seeds = None,
    target: Target = None,
    eval_every: EvalEvery = None,
    checkpoint_every: CheckpointEvery = None,
    jobs: Jobs = None,
    out: Out = None,
    resume: Resume = None,
    device: Device = None,
    engine: EngineOption = None,
    dtype: Dtype = None,
    config: ConfigFile = None,
    set: Set = None,
    method: OneMethod = None,
    seed: OneSeed = None,
) -> None:
    """Compare methods on the same clients; write the report."""
    sources = _sources(locals())
    from fedconcord import api

    at_once = None if jobs is None else _count("--jobs", jobs)
    if resume:
        folder, planned, at_once = api.plan_resumed_comparison(Path(resume), at_once, *sources)
    else:
        folder, planned, at_once = api.plan_comparison(at_once, *sources)
    again = f"fedconcord compare --resume {shlex.quote(str(folder))}"
    with _Show(planned) as show:
        try:
            results = api.execute_all(planned, at_once, show)
        except KeyboardInterrupt:
            raise _interrupted(folder, again) from None
    if any(result.status == "interrupted" for result in results):
        raise _interrupted(folder, again)
    failed = [result for result in results if result.status == "failed"]
    if len(failed) == len(results):
        raise UserError(f"every run failed, the first because: {failed[0].error}")
    compared = api.finish_comparison(folder, results)
    _say_summary(folder)
    for result in failed:
        _complain(f"{result.label}, seed {result.seed} failed: {result.error}; {again} tries it again")
    _say(f"report: {compared.report}")
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[list[str], typer.Argument(help="Folders of runs or of comparisons.", metavar="PATH...")],
    out: Annotated[str | None, _option("Folder of the report. [the first PATH]", "DIR")] = None,
) -> None:
    """Write the report of runs, finished or not."""
    from fedconcord.report import write_report  # not `api`, which imports torch

    page = write_report([Path(path) for path in paths], Path(out or paths[0]))
    _say_summary(*map(Path, paths))
    _say(f"report: {page}")


@app.command()
def reproduce(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe; `list recipes` shows all.", metavar="RECIPE")],
    out: Annotated[str | None, _option("Folder of figures and tables. [runs/<recipe>]", "DIR")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small form, in about a minute.")] = False,
) -> None:
    """Run an experiment of a paper; its claim and numbers beside ours."""
    from fedconcord.recipes import RECIPES

    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    this, folder = RECIPES[recipe], Path(out or f"runs/{recipe}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"the folder {folder} is not empty; give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    _say(f"{this.source}: {this.claim}")
    this.run(folder, quick, _say)
    _say(f"results: {folder}")


@app.command()
def audit(
    methods: Methods = None,
    data: Data = None,
    data_dir: DataDir = None,
    partition: Partition = None,
    model: Model = None,
    clients: Clients = None,
    cohort: CohortOption = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: LR = None,
    upload: Upload = None,
    seed: Seed = None,
    dtype: Dtype = None,
    config: ConfigFile = None,
    set: Set = None,
    client: Annotated[str | None, _option("Client whose message is attacked. [first of that round]", "ID")] = None,
    round: Annotated[str, _option("Round whose message is attacked, from 1. [5]", "N")] = "5",
    iterations: Annotated[str, _option("Iterations of the attack. [100]", "N")] = "100",
    optimiser: Annotated[str, _option("How dummy samples are fitted: lbfgs or gd. [lbfgs]", "NAME")] = "lbfgs",
    attack_lr: Annotated[str | None, _option("Step size of gd. [searched]", "NUMBER")] = None,
    labels: Annotated[str, _option("Whether the attacker knows the labels: known or inferred. [known]", "NAME")] = (
        "known"
    ),
    out: Annotated[str | None, _option("Folder of the findings. [runs/audit-<n>]", "DIR")] = None,
    method: OneMethod = None,
) -> None:
    """Attack what your own configuration sends, to see what it leaks."""
    given = dict(locals())
    sources = _sources({name: given[name] for name in given if name not in AUDIT_OPTIONS})
    from fedconcord import audit as auditor
    from fedconcord import config as settings
    from fedconcord import spec

    _choice("--optimiser", optimiser, ("lbfgs", "gd"))
    _choice("--labels", labels, ("known", "inferred"))
    step = None if attack_lr is None else spec.scalar(attack_lr)
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | float) or not step > 0):
        raise UserError(f"--attack-lr must be a number > 0, given {attack_lr!r}")
    if client is not None and not client.isdecimal():
        raise UserError(f"--client must be an integer >= 0, given {client!r}")
    resolved = settings.resolve_compare(*sources)
    if resolved.seeds is not None and len(resolved.seeds) > 1:
        raise UserError(f"an audit takes one seed, given {len(resolved.seeds)}; give --seed")
    jobs = {one.label or "": settings.build(one) for one in resolved.runs()}
    folder = Path(out) if out else spec.free_folder(Path("runs"), "audit")
    attack = auditor.Attack(_count("--iterations", iterations), cast(Any, optimiser), step, cast(Any, labels))
    chosen = None if client is None else int(client)
    auditor.audit_jobs(jobs, folder, client=chosen, round=_count("--round", round), attack=attack, say=_say)
    _say(f"audit: {folder / 'audit.md'}")


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
        for entry in listing["entries"][topic]:
            _show_entry(*entry)


# -- sources and sentences -----------------------------------------------------------------------------------------


def _sources(given: Mapping[str, Any]) -> list[Source]:
    """The settings file and the options of a command, by its local variables."""
    from fedconcord import config, spec
    from fedconcord.api import NAMED

    options = {
        NAMED.get(name, name): (
            f"--{name.replace('_', '-')}",
            spec.scalar(value) if isinstance(value, str) and name not in TEXTS else value,
        )
        for name, value in given.items()
        if name not in ("config", "set", "resume", "jobs")
    }
    file = [] if given["config"] is None else [config.from_file(Path(given["config"]))]
    return [*file, config.from_options(options, given["set"] or ())]


def _choice(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise UserError(f"{option} must be one of {', '.join(choices)}, given {given!r}{closest(given, choices)}")


def _count(option: str, given: str) -> int:
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"{option} must be an integer >= 1, given {given!r}")
    return int(given)


def _say(line: str) -> None:
    """A line on stdout that no terminal width breaks."""
    print(line, flush=True)


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _interrupted(folder: Path, again: str) -> typer.Exit:
    """Say what is left and how to go on."""
    if folder.exists():
        _complain(f"interrupted: {folder} is usable as it is; continue with: {again}")
    else:
        _complain("interrupted before the first round; nothing was written")
    return typer.Exit(130)


# -- progress ------------------------------------------------------------------------------------------------------


def _latest(metrics: Mapping[str, float]) -> str:
    """The one metric that a person follows."""
    if "test_accuracy" in metrics:
        return f"accuracy {100 * metrics['test_accuracy']:.1f} %"
    name = next((name for name in ("distance", "test_loss", "loss", *metrics) if name in metrics), None)
    return f"{name} {metrics[name]:.4g}" if name else ""


class _Show:
    """Live progress, called as `api.Progress`: a bar a run on a terminal, plain lines elsewhere."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self.planned = planned
        self.bars: Progress | None = None
        if console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[latest]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console,
                expand=True,
            )
        self.tasks: dict[int, TaskID] = {}
        self.ended = 0
        self.said = time.monotonic()

    def __enter__(self) -> _Show:
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars:
            self.bars.stop()

    def name(self, number: int) -> str:
        config = self.planned[number].config
        return f"{config.label}, seed {config.seed}"

    def __call__(self, number: int, event: Row | Finished | None) -> None:
        from fedconcord.training import Row

        if event is None:
            if self.bars:
                total = self.planned[number].config.rounds
                self.tasks[number] = self.bars.add_task(self.name(number), total=total, latest="")
        elif isinstance(event, Row):
            self._row(number, event)
        else:
            self._end(number, event)

    def _row(self, number: int, row: Row) -> None:
        latest = _latest(row.metrics) if row.metrics else None
        if self.bars:
            self.bars.update(self.tasks[number], completed=row.round)
            if latest is not None:
                self.bars.update(self.tasks[number], latest=latest)
        elif latest is not None and time.monotonic() - self.said > SAY_EVERY:
            self.said = time.monotonic()
            rounds = self.planned[number].config.rounds
            _say(f"{self.name(number)}: round {row.round} of {rounds}, {latest}")

    def _end(self, number: int, result: Finished) -> None:
        if result.status == "interrupted" and number not in self.tasks and self.bars:
            return
        self.ended += 1
        count = f"[{self.ended}/{len(self.planned)}] " if len(self.planned) > 1 else ""
        outcome = (
            f"failed: {result.error}"
            if result.status == "failed"
            else f"{result.status}, {result.rounds} rounds, {_latest(result.metrics)}".rstrip(", ")
        )
        line = f"{count}{self.name(number)}: {outcome}"
        if self.bars:
            if number in self.tasks:
                self.bars.remove_task(self.tasks[number])
            self.bars.console.print(line, markup=False, soft_wrap=True)
        else:
            _say(line)


def _say_summary(*folders: Path) -> None:
    """The table of the comparison: final metric and rounds to the target, best first."""
    from fedconcord.report.load import load_runs
    from fedconcord.report.summary import summarise
    from fedconcord.report.tables import metric_cell, reach_cell, seeds_cell, target_words

    summary = summarise(load_runs(folders))
    percent = ", %" if summary.primary.percent else ""
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold")
    for title in ("seeds", f"final {summary.primary.title}{percent}", "rounds to target"):
        table.add_column(title, justify="right")
    for row in summary.rows:
        cells = (row.name, seeds_cell(row), metric_cell(summary.primary, row.final), reach_cell(row.reach, "round"))
        table.add_row(*map(escape, cells))
    console.print(table)
    if math.isfinite(summary.target):
        _say(target_words(summary))


# -- what there is to list -----------------------------------------------------------------------------------------


def _listing() -> dict[str, Any]:
    """Everything that `list` shows, as plain data.

    It is kept in the user's cache, for torch alone takes a second to import, until a file of the package changes;
    with plug-ins, whose files are anywhere, it is made anew each time.
    """
    if entry_points(group=PLUGINS):
        return _make_listing()
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedconcord" / "list.json"
    key = _fingerprint()
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return dict(kept["listing"])
    listing = _make_listing()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"key": key, "listing": listing})
    return listing


def _fingerprint() -> str:
    source = Path(__file__).parent
    stats = [(str(path.relative_to(source)), path.stat()) for path in sorted(source.rglob("*.py"))]
    return hashlib.sha256(repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats]).encode()).hexdigest()


def _make_listing() -> dict[str, Any]:
    from fedconcord import catalogue, config, spec
    from fedconcord.algorithms import plugins
    from fedconcord.data import DATASETS
    from fedconcord.heterogeneity.labels import LABELS
    from fedconcord.heterogeneity.partitions import PARTITIONS
    from fedconcord.heterogeneity.sampling import SAMPLERS
    from fedconcord.heterogeneity.work import WORK
    from fedconcord.models import MODELS
    from fedconcord.oracles import ORACLES
    from fedconcord.problems import PROBLEMS
    from fedconcord.recipes import RECIPES
    from fedconcord.regularisers import REGULARISERS
    from fedconcord.server import OPTIMIZERS
    from fedconcord.uploads import COMPRESSORS

    groups, methods = catalogue.table(), plugins.available()
    registries: dict[str, Mapping[str, Callable[..., Any]]] = {
        "data": {**DATASETS, **PROBLEMS},
        "models": MODELS,
        "partitions": PARTITIONS,
        "sampling": SAMPLERS,
        "work": WORK,
        "oracles": ORACLES,
        "server": OPTIMIZERS,
        "upload": COMPRESSORS,
        "regularisers": REGULARISERS,
        "tasks": config.TASKS,
        "labels": LABELS,
    }
    entries = {topic: [_entry(name, registry) for name in registry] for topic, registry in registries.items()}
    entries["methods"] = [_entry(facts.name, methods) for group in groups for facts in group.methods]
    entries["recipes"] = [
        (name, recipe.claim, f"{recipe.source}. Minutes on two cores, full and quick: {recipe.minutes}.", [])
        for name, recipe in RECIPES.items()
    ]
    chosen = {
        "method": "fedavg",
        "seed": 0,
        "seeds": [0],
        "partition": config.DEFAULT_PARTITION,
        "model": config.DEFAULT_MODEL,
    }
    settings = []
    for key, schema in config.keys().items():
        values = spec.must_be(schema).removeprefix("a ").removeprefix("an ").removesuffix(" or none")
        default = chosen.get(key, schema.get("default"))
        shown = "" if default in (None, {}) else default if isinstance(default, str) else spec.text(default)
        settings.append((key, shown, values, schema.get("description", "")))
    return {
        "groups": [(group.title, [catalogue.cells(facts) for facts in group.methods]) for group in groups],
        "columns": catalogue.COLUMNS,
        "legend": catalogue.LEGEND,
        "entries": entries,
        "settings": settings,
    }


def _entry(name: str, registry: Mapping[str, Callable[..., Any]]) -> tuple[str, str, str, list[Parameter]]:
    """(name, meaning, details, parameters)."""
    from fedconcord import spec

    try:
        factory = registry[name]
    except UserError as broken:  # another package's
        return name, spec.sentence(broken), "", []
    rows = [
        (
            option.name,
            "needed" if option.required else spec.text(option.default),
            f"{option.kind} {option.range}".strip(),
            option.meaning,
        )
        for option in spec.options(factory)
    ]
    return name, *spec.describe(factory), rows


# -- lists ---------------------------------------------------------------------------------------------------------


def _show(*renderables: Any) -> None:
    """Print without the spaces at the ends of lines that tables are filled up with."""
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    _say("\n".join(line.rstrip() for line in captured.get().splitlines()))


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


# -- the program ---------------------------------------------------------------------------------------------------


def _usage(error: Any) -> str:
    """typer's complaint about the command line as one sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "fedconcord"
    name = getattr(error, "option_name", None)
    text = " ".join(error.format_message().split()).rstrip(".")
    if name is not None and text.startswith("No such option") and context is not None:
        known = [option for parameter in context.command.params if not parameter.hidden for option in parameter.opts]
        text = f"unknown option {name}{closest(name, known)}"
    elif text.startswith("No such command") and context is not None:
        commands = context.command.list_commands(context)
        given = text.split("'")[1]
        text = f"unknown command {given!r}{closest(given, commands)}"
    return f"{text[0].lower()}{text[1:]}; `{path} --help` shows what there is"


def call(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 1 (a run failed), 2 (a mistake), 130 (interrupted)."""
    try:
        code = app(args=list(arguments), prog_name="fedconcord", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (UserError, OSError) as error:
        from fedconcord.spec import sentence

        _complain(f"error: {sentence(error)}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted before the first round; nothing was written")
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _complain(f"error: {_usage(error)}")
        return 2


def main() -> None:
    """The entry point of the command `fedconcord`."""
    if threading.current_thread() is threading.main_thread():  # a scheduler's SIGTERM is as gentle as Ctrl-C
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    warnings.showwarning = lambda message, *where, **more: _complain(f"warning: {message}")
    sys.exit(call(sys.argv[1:]))
