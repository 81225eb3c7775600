"""What the command does, as functions: `run` one method, `compare` several, in folders that resume.

    import fedconcord

    result = fedconcord.run(method="fedavg", data="digits", rounds=20)
    table = fedconcord.compare(["fedavg", "scaffold"], data="digits", seeds=[0, 1], target=0.9)
    print(table.report)

Arguments that are left out take the value of the settings file, else the default that `fedconcord list settings` shows.
Methods, models, data, partitions, losses and metrics may be objects in place of names: docs/own-method.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Unpack, get_type_hints

from fedconcord.execution.engines import distributed
from fedconcord.execution.run import folder as folders
from fedconcord.execution.run.clock import Clock
from fedconcord.interface.tracking import check, trackers
from fedconcord.method.contract import Algorithm
from fedconcord.study.options.table import OPTIONS, CompareOptions, RunOptions
from fedconcord.study.runs import plan
from fedconcord.study.runs.events import Callback, Callbacks, Compared, Finished, Lines, Watch
from fedconcord.study.runs.pool import InterruptedStudyError, carry_out
from fedconcord.study.runs.records import why_evaluated
from fedconcord.study.settings.objects import named
from fedconcord.study.settings.sources import Source, from_file, from_nested, from_options, keys, prepare
from fedconcord.support import imports
from fedconcord.support.errors import UserError, closest

if TYPE_CHECKING:
    from fedconcord.insight.advice import Advice
    from fedconcord.study.search import SearchSpec, Tuned

Function = TypeVar("Function", bound=Callable[..., Any])


def listed(takes: type, without: Container[str] = ()) -> Callable[[Function], Function]:
    """Show each option of a function with `**options: Unpack[takes]` in its signature and docstring, before Raises.

    Args:
        without: options that the function does not have.
    """

    def dress(function: Function) -> Function:
        signature = inspect.signature(function)
        types = {name: kind for name, kind in get_type_hints(takes).items() if name not in without}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        first, others = [p for p in parameters if p.kind is not keyword], [p for p in parameters if p.kind is keyword]
        keywords = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in types.items()]
        function.__signature__ = signature.replace(parameters=[*first, *keywords, *others])  # type: ignore[attr-defined]
        names = {*types, *(p.name for p in first)}
        lines = "".join(f"    {o.name}: {o.about}\n" for o in OPTIONS if o.name in names)
        head, mark, tail = inspect.cleandoc(function.__doc__ or "").partition("Raises:")
        function.__doc__ = f"{head}Options:\n{lines}\n{mark}{tail}\n"
        return function

    return dress


KEYS = {option.name: option.key for option in OPTIONS}  # of the settings that arguments stand for

# -- the two jobs --------------------------------------------------------------------------------------------------


@listed(RunOptions)
def run(
    method: str | Algorithm | Callable[..., Algorithm] | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RunOptions],
) -> Finished:
    """Train one method and return what came of it; everything is in `.folder`.

    Args:
        method: a name with its parameters, "fedprox(mu=0.1)" or "package.module:factory"; or an `Algorithm`, or a
            function that makes one.
        config: a TOML file of settings.
        settings: any other key, dotted: {"algorithm.rho": 0.1, "local.weight_decay": 1e-4}.
        resume: a folder to continue to the same result bit for bit; its settings are kept, and what it was given as
            objects is given again.
        trust: import the modules that the folder names, which runs code of who made it.
        callbacks: are told of the start, of every round and of the end, as `fedconcord.TensorBoard()` is.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    sources = sources_of(run, config, {"method": method, **options}, settings)
    return run_request(requested(sources, resume, trust, callbacks=callbacks))


class Request(NamedTuple):
    """What a study is asked for with, by a function or by a command."""

    sources: Sequence[Source]  # of settings
    resume: Path | None  # the folder to go on with
    watch: Watch
    callbacks: Sequence[Callback]

    def watches(self, track: Sequence[str]) -> Watch:
        """The watch, with the callbacks and trackers behind it."""
        return Callbacks(self.watch, [*self.callbacks, *trackers(track)])


def requested(
    sources: Sequence[Source],
    resume: str | Path | None,
    trust: bool,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Request:
    """A request that may be carried out.

    Raises:
        UserError: there is no folder to trust, a tracker cannot work, or callbacks are no list.
    """
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks must be a list such as [fedconcord.TensorBoard()], given {callbacks!r}")
    if trust:
        folders.trust(resume)
    check(sources)
    return Request(sources, Path(resume) if resume else None, watch or Watch(), callbacks)


def run_request(request: Request, clock: Clock | None = None) -> Finished:
    """`run`; `clock` has what it took until now."""
    folder, sources = request.resume, request.sources
    entry = plan.plan_run(*sources) if folder is None else plan.plan_resumed_run(folder, *sources)
    return plan.run(entry, request.watches(entry.config.track), clock)


@listed(CompareOptions)
def compare(
    methods: Sequence[str | Algorithm | Callable[..., Algorithm]] | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    jobs: int | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[CompareOptions],
) -> Compared:
    """Train several methods with several seeds, side by side on the same clients, batches and start; write the report.

    Each run has its own folder, OUT/<method>/seed-<seed>. A run that fails is reported and the others go on.

    Args:
        methods: "fedprox(mu=0.1)" sets a parameter; "fedavg(local.lr=0.05, server=momentum(0.9))" a local setting or
            a part for this method alone; an `Algorithm` or a function that makes one serves as well.
        config: a TOML file of settings.
        settings: any other key, dotted.
        resume: the folder of a comparison to complete; finished runs stay, others go on from their checkpoints.
            Methods and seeds that are given are added to those that it has.
        trust: import the modules that the folder names, which runs code of who made it.
        jobs: runs at once, each in a process of its own, which objects are sent to; 1 if not given.
        callbacks: are told of every run: its start, every round and its end, in this process.
        options: settings with a short name, described in `CompareOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    sources = sources_of(compare, config, {"methods": methods, **options}, settings)
    return compare_request(requested(sources, resume, trust, callbacks=callbacks), jobs)


def compare_request(request: Request, jobs: int | None) -> Compared:
    """`compare`."""
    watch = request.watch
    if request.resume is None:
        planned = plan.plan_comparison(jobs, *request.sources)
    else:
        say = lambda line: watch.note([line])  # noqa: E731
        planned = plan.plan_resumed_comparison(request.resume, jobs, *request.sources, say=say)
    folder, entries, jobs = planned
    watch.begin(folder)
    watch.note(plan.notes(entries))
    watch.note([plan.ahead(entries, folder, jobs)])
    if distributed.rank() == 0:  # which wrote it
        watch.note(filter(None, map(why_evaluated, [folder])))
    with plan.alone(planned):
        try:
            runs = carry_out(plan.comparison(planned), jobs, request.watches(entries[0].config.track))
        except InterruptedStudyError as interrupted:
            return Compared(folder, interrupted.runs, None)
        has_results = any(result.status in ("complete", "diverged") for result in runs)
        writes = has_results and distributed.rank() == 0  # of several processes the first one
        return Compared(folder, runs, write_report([folder], folder) if writes else None)


@listed(CompareOptions)
def tune(
    methods: Sequence[str] | None = None,
    *,
    budget: int | None = None,
    search: str | Sequence[str] = (),
    grid: str | None = None,
    final_seeds: int | Sequence[int] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[CompareOptions],
) -> Tuned:
    """Tune methods with equal budgets of rounds, then compare the winners with seeds that tuning has not seen.

    Trials are paired by seed and judged by where they end on samples that clients set apart; with a target, of those
    that end alike the soonest there is taken. Half of them go on after a quarter and after half of the rounds. The
    result depends neither on `jobs` nor on interruptions.

    Args:
        methods: "fedprox(mu=0.1)" fixes a parameter; what is left and states a range is looked for, with local.lr.
        budget: trials of each method; 16 if not given.
        search: other ranges, as in "mu=log(0.001,1)" or "server_momentum=linear(0,0.9)".
        grid: "fedadmm" or "fednova", a paper's, or "points(local.lr=[0.1,0.3])", in place of ranges.
        final_seeds: of the final comparison; the next three if not given.
        config: a TOML file of settings.
        settings: any other key, dotted.
        resume: the folder of a search to complete.
        trust: import the modules that the folder names, which runs code of who made it.
        jobs: runs at once, each in a process of its own.
        progress: gets a line a method and rung.
        callbacks: are told of every run of the final comparison, as the trackers of `track` are.
        options: settings with a short name, described in `CompareOptions`; `seeds`, of the trials, are 0 and 1 if not
            given, and a target is one of the validation metric.

    Raises:
        UserError: a setting is wrong, data are missing, the folder is taken, or no trial ended well.
        KeyboardInterrupt: by Ctrl-C; `resume` goes on.
    """
    from fedconcord.study.search.plan import SearchSpec

    sources = sources_of(tune, config, {"methods": methods, **options}, settings)
    ranges = [search] if isinstance(search, str) else list(search)
    spec = SearchSpec(budget, ranges, grid, prepare("seeds", final_seeds))
    watch = Lines(progress or (lambda line: None))
    return tune_request(requested(sources, resume, trust, watch, callbacks), spec, jobs)


def tune_request(request: Request, spec: SearchSpec, jobs: int) -> Tuned:
    """`tune`."""
    from fedconcord.insight.report.search_page import write_all
    from fedconcord.study import search as tuning  # matplotlib and Optuna: nothing else needs both

    if request.resume is None:
        planned = tuning.plan_tuning(spec, *request.sources)
    else:
        planned = tuning.plan_resumed_tuning(request.resume, spec, *request.sources)
    request.watch.begin(planned.folder)
    request.watch.note(tuning.sentences(planned))
    watch = request.watches(planned.config.track)
    return carry_out(tuning.tuned(planned, jobs, watch.say, write_all), jobs, watch)


@listed(RunOptions, without=("server", "out"))
def advise(
    *,
    stateless: bool = False,
    private: bool = False,
    uplink: int | Literal["slow"] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Advice:
    """Name the methods to tune first on a federation, and why; nothing is trained, and nothing written.

    Its text is what the command says; `.named` has the methods with their ranges and costs, best first, `.against` the
    methods that are not advised and why, `.facts` what was seen.

    Args:
        stateless: clients keep nothing between rounds.
        private: the server learns the sum of one update a client, and nothing else.
        uplink: bytes that a client may send in a round; "slow": one model.
        config: a TOML file of settings.
        settings: any other key, dotted.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or no method meets the wishes.
    """
    from fedconcord.insight import advice

    sources = sources_of(advise, config, options, settings)
    return advice.advise(advice.federation_of(*sources), advice.Wishes(stateless, private, uplink))


def sources_of(
    call: Callable[..., object],
    config: str | Path | None,
    arguments: Mapping[str, object],
    settings: Mapping[str, Any] | None,
) -> list[Source]:
    """The settings file of a call, and over it the arguments that are settings and those by dotted key."""
    file = [] if config is None else [from_file(Path(config))]
    by_key = {_key(call, name): value for name, value in arguments.items()}
    source = from_options(
        {key: ("argument", str(value) if isinstance(value, Path) else value) for key, value in by_key.items()}
    )
    more = from_nested(settings or {}, "settings")
    texts = {key: named(key, value) for key, value in {**source.values, **more.values}.items()}
    things = tuple(one for _, objects in texts.values() for one in objects)
    from_call = Source({key: text for key, (text, _) in texts.items()}, {**source.origin, **more.origin}, things)
    imports.trust(*(one.values for one in (*file, from_call)))
    return [*file, from_call]


def _key(call: Callable[..., object], name: str) -> str:
    """The key of an argument.

    Raises:
        UserError: the function has no such argument.
    """
    parameters = inspect.signature(call).parameters
    if name in parameters:
        return KEYS[name]
    every = keys()
    longer = [key for key in every if key.rpartition(".")[2] == name and name not in KEYS]
    way = f"; write settings={{{longer[0]!r}: ...}}" if longer else closest(name, parameters)
    raise UserError(f"{call.__name__} has no argument {name!r}{way}")


# -- reports -------------------------------------------------------------------------------------------------------


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of all runs in or below some folders and return the path of its page.

    Args:
        out: where to write it; if not given the first folder, of several data sets a new one below runs/.

    Raises:
        UserError: a path holds no run, or the runs do not belong together.
    """
    from fedconcord.insight import report  # matplotlib: a run by itself draws nothing

    run_folders = [Path(path) for path in paths]
    if not run_folders:
        raise UserError("no result folder was given; give one or more folders that hold runs")
    page: Path = report.write_report(run_folders, None if out is None else Path(out))
    return page
