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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedconcord import settings as settings_module
from fedconcord.basis import imports
from fedconcord.basis.errors import UserError, closest
from fedconcord.core import Algorithm
from fedconcord.engines import distributed
from fedconcord.options.arguments import listed
from fedconcord.options.table import OPTIONS, CompareOptions, RunOptions
from fedconcord.runs import folder as folders
from fedconcord.runs.callbacks import Callback, followed, telling
from fedconcord.runs.execution import execute
from fedconcord.runs.outcome import Compared, Finished
from fedconcord.runs.plan import plan_comparison, plan_resumed_comparison, plan_resumed_run, plan_run, writing
from fedconcord.runs.pool import execute_all
from fedconcord.settings import Source
from fedconcord.tracking import check, trackers

if TYPE_CHECKING:
    from fedconcord.tuning import Tuned

if TYPE_CHECKING:
    from fedconcord.diagnosis.page import Diagnosed

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
    if trust:
        folders.trust(resume)
    sources = sources_of(run, config, {"method": method, **options}, settings)
    check(sources)
    planned = plan_resumed_run(Path(resume), *sources) if resume else plan_run(*sources)
    tell = telling([planned], planned.folder, [*callbacks, *trackers(planned.config.track)])
    return followed(planned, tell, lambda: execute(planned, lambda row: tell(0, row)))


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
    if trust:
        folders.trust(resume)
    sources = sources_of(compare, config, {"methods": methods, **options}, settings)
    check(sources)
    if resume:
        folder, planned, jobs = plan_resumed_comparison(Path(resume), jobs, *sources)
    else:
        folder, planned, jobs = plan_comparison(jobs, *sources)
    tell = telling(planned, folder, [*callbacks, *trackers(planned[0].config.track)])
    with writing(folder, planned):
        return finish_comparison(folder, execute_all(planned, jobs, tell))


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
    from fedconcord import tuning  # matplotlib and Optuna: nothing else needs both

    ranges = [search] if isinstance(search, str) else list(search)
    asked = tuning.Asked(budget, ranges, grid, settings_module.prepare("seeds", final_seeds))
    if trust:
        folders.trust(resume)
    sources = sources_of(tune, config, {"methods": methods, **options}, settings)
    check(sources)
    planned = (
        tuning.plan_resumed_tuning(Path(resume), asked, *sources) if resume else tuning.plan_tuning(asked, *sources)
    )
    watch = tuning.Lines(progress or (lambda line: None))
    return tuning.tuned(planned, jobs, watch, [*callbacks, *trackers(planned.config.track)])


def sources_of(
    call: Callable[..., object],
    config: str | Path | None,
    given: Mapping[str, object],
    settings: Mapping[str, Any] | None,
) -> list[Source]:
    """The settings file of a call, and over it the arguments that are settings and those by dotted key."""
    file = [] if config is None else [settings_module.from_file(Path(config))]
    named = {_key(call, name): value for name, value in given.items()}
    source = settings_module.from_options(
        {key: ("argument", str(value) if isinstance(value, Path) else value) for key, value in named.items()}
    )
    more = settings_module.from_nested(settings or {}, "settings")
    texts = {key: settings_module.named(key, value) for key, value in {**source.values, **more.values}.items()}
    held = tuple(one for _, objects in texts.values() for one in objects)
    own = Source({key: text for key, (text, _) in texts.items()}, {**source.origin, **more.origin}, held)
    imports.trust(*(one.values for one in (*file, own)))
    return [*file, own]


def _key(call: Callable[..., object], name: str) -> str:
    """The key of an argument.

    Raises:
        UserError: the function has no such argument.
    """
    known = inspect.signature(call).parameters
    if name in known:
        return KEYS[name]
    every = settings_module.keys()
    longer = [key for key in every if key.rpartition(".")[2] == name and name not in KEYS]
    way = f"; write settings={{{longer[0]!r}: ...}}" if longer else closest(name, known)
    raise UserError(f"{call.__name__} has no argument {name!r}{way}")


@listed(RunOptions)
def diagnose(
    method: str | None = None,
    *,
    folder: str | Path | None = None,
    trust: bool = False,
    at: Sequence[int] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Diagnosed:
    """Look at chosen rounds of a run, or of settings that are trained for it, and write what makes them hard.

    Args:
        folder: of a run, which is trained again to the same bits; `out` alone may then be given besides.
        trust: import the modules that the folder names, which runs code of who made it.
        at: rounds to look at; the start, a quarter, half and the end if none.
        config: a TOML file of settings.
        settings: any other key, dotted.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: the folder holds no run, a setting is wrong, or a round lies beyond the last.
    """
    from fedconcord.diagnosis import page, subject  # matplotlib: a run by itself draws nothing

    if trust:
        folders.trust(folder)
    sources = sources_of(diagnose, config, {"method": method, **options}, settings)
    seen = subject.of_settings(sources, at) if folder is None else subject.of_run(Path(folder), at, *sources)
    out = options.get("out")
    return page.diagnosed(seen, subject.folder_of(seen, None if out is None else str(out)))


# -- reports -------------------------------------------------------------------------------------------------------


def finish_comparison(folder: Path, runs: list[Finished]) -> Compared:
    """Write the report of a comparison, unless it was interrupted or no run has anything to show.

    Of several processes only rank 0 writes it.
    """
    done = [result for result in runs if result.status in ("complete", "diverged")]
    if not done or any(result.status == "interrupted" for result in runs) or distributed.rank() != 0:
        return Compared(folder, runs, None)
    return Compared(folder, runs, write_report([folder], folder))


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of all runs in or below some folders and return the path of its page.

    Args:
        out: where to write it; if not given the first folder, of several data sets a new one below runs/.

    Raises:
        UserError: a path holds no run, or the runs do not belong together.
    """
    from fedconcord import report  # matplotlib: a run by itself draws nothing

    found = [Path(path) for path in paths]
    if not found:
        raise UserError("no result folder was given; give one or more folders that hold runs")
    page: Path = report.write_report(found, None if out is None else Path(out))
    return page
