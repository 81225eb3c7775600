"""What the command does, as functions: `run` one method, `compare` several, in folders that resume.

    import fedconcord

    result = fedconcord.run(method="fedavg", data="digits", rounds=20)
    table = fedconcord.compare(["fedavg", "scaffold"], data="digits", seeds=[0, 1], target=0.9)
    print(table.report)

Arguments that are left out take the value of the settings file, else the default that `fedconcord list settings` shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedconcord import settings as settings_module
from fedconcord.basis.errors import UserError, closest
from fedconcord.engines import distributed
from fedconcord.jobs import Row
from fedconcord.options.arguments import listed
from fedconcord.options.table import OPTIONS, CompareOptions, RunOptions
from fedconcord.runs.execution import execute
from fedconcord.runs.outcome import Compared, Finished, Progress
from fedconcord.runs.plan import plan_comparison, plan_resumed_comparison, plan_resumed_run, plan_run, writing
from fedconcord.runs.pool import execute_all
from fedconcord.settings import Source

if TYPE_CHECKING:
    from fedconcord.tuning import Tuned

KEYS = {option.name: option.key for option in OPTIONS}  # of the settings that arguments stand for

# -- the two jobs --------------------------------------------------------------------------------------------------


@listed(RunOptions)
def run(
    method: str | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    on_row: Callable[[Row], None] | None = None,
    **options: Unpack[RunOptions],
) -> Finished:
    """Train one method and return what came of it; everything is in `.folder`.

    Args:
        config: a TOML file of settings.
        settings: any other key, dotted: {"algorithm.rho": 0.1, "local.weight_decay": 1e-4}.
        resume: a folder to continue to the same result bit for bit; its settings are kept.
        on_row: sees every round as it ends.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    sources = [*_file(config), _source(run, {"method": method, **options}, settings)]
    planned = plan_resumed_run(Path(resume), *sources) if resume else plan_run(*sources)
    return execute(planned, on_row)


@listed(CompareOptions)
def compare(
    methods: Sequence[str] | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[CompareOptions],
) -> Compared:
    """Train several methods with several seeds, side by side on the same clients, batches and start; write the report.

    Each run has its own folder, OUT/<method>/seed-<seed>. A run that fails is reported and the others go on.

    Args:
        methods: "fedprox(mu=0.1)" sets a parameter; "fedavg(local.lr=0.05, server=momentum(0.9))" a local setting or
            a part for this method alone.
        config: a TOML file of settings.
        settings: any other key, dotted.
        resume: the folder of a comparison to complete; finished runs stay, others go on from their checkpoints.
        jobs: runs at once, each in a process of its own; 1 if not given.
        progress: sees every run begin, every round and every end.
        options: settings with a short name, described in `CompareOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or the folder is taken.
    """
    sources = [*_file(config), _source(compare, {"methods": methods, **options}, settings)]
    if resume:
        folder, planned, jobs = plan_resumed_comparison(Path(resume), jobs, *sources)
    else:
        folder, planned, jobs = plan_comparison(jobs, *sources)
    with writing(folder, planned):
        return finish_comparison(folder, execute_all(planned, jobs, progress))


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
    jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[CompareOptions],
) -> Tuned:
    """Tune methods with equal budgets of rounds, then compare the winners with seeds that tuning has not seen.

    Trials are paired by seed and judged on samples that clients set apart, or by the rounds to a target there. Half of
    them go on after a quarter and after half of the rounds. The result depends neither on `jobs` nor on interruptions.

    Args:
        methods: "fedprox(mu=0.1)" fixes a parameter; what is left and states a range is looked for, with local.lr.
        budget: trials of each method; 16 if not given.
        search: other ranges, as in "mu=log(0.001,1)" or "server_momentum=linear(0,0.9)".
        grid: "fedadmm" or "fednova", a paper's, or "points(local.lr=[0.1,0.3])", in place of ranges.
        final_seeds: of the final comparison; the next three if not given.
        config: a TOML file of settings.
        settings: any other key, dotted.
        resume: the folder of a search to complete.
        jobs: runs at once, each in a process of its own.
        progress: gets a line a method and rung.
        options: settings with a short name, described in `CompareOptions`; a target is one of the validation metric.

    Raises:
        UserError: a setting is wrong, data are missing, the folder is taken, or no trial ended well.
        KeyboardInterrupt: by Ctrl-C; `resume` goes on.
    """
    from fedconcord import tuning  # matplotlib and Optuna: nothing else needs both

    ranges = [search] if isinstance(search, str) else list(search)
    asked = tuning.Asked(budget, ranges, grid, settings_module.prepare("seeds", final_seeds))
    sources = [*_file(config), _source(tune, {"methods": methods, **options}, settings)]
    planned = (
        tuning.plan_resumed_tuning(Path(resume), asked, *sources) if resume else tuning.plan_tuning(asked, *sources)
    )
    return tuning.tuned(planned, jobs, tuning.Lines(progress or (lambda line: None)))


def _file(config: str | Path | None) -> list[Source]:
    return [] if config is None else [settings_module.from_file(Path(config))]


def _source(call: Callable[..., object], given: Mapping[str, object], settings: Mapping[str, Any] | None) -> Source:
    """The arguments of a call that are settings, and those that it has by dotted key."""
    named = {_key(call, name): value for name, value in given.items()}
    source = settings_module.from_options(
        {key: ("argument", str(value) if isinstance(value, Path) else value) for key, value in named.items()}
    )
    more = settings_module.from_nested(settings or {}, "settings")
    return Source({**source.values, **more.values}, {**source.origin, **more.origin})


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
        out: where to write it; the first folder if not given.

    Raises:
        UserError: a path holds no run, or the runs do not belong together.
    """
    from fedconcord import report  # matplotlib: a run by itself draws nothing

    found = [Path(path) for path in paths]
    if not found:
        raise UserError("no result folder was given; give one or more folders that hold runs")
    page: Path = report.write_report(found, Path(out) if out is not None else found[0])
    return page
