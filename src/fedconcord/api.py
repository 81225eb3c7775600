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
    from fedconcord.diagnosis.page import Diagnosed

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


@listed(RunOptions)
def diagnose(
    method: str | None = None,
    *,
    folder: str | Path | None = None,
    at: Sequence[int] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Diagnosed:
    """Look at chosen rounds of a run, or of settings that are trained for it, and write what makes them hard.

    Args:
        folder: of a run, which is trained again to the same bits; `out` alone may then be given besides.
        at: rounds to look at; the start, a quarter, half and the end if none.
        config: a TOML file of settings.
        settings: any other key, dotted.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: the folder holds no run, a setting is wrong, or a round lies beyond the last.
    """
    from fedconcord.diagnosis import page, subject  # matplotlib: a run by itself draws nothing

    sources = [*_file(config), _source(diagnose, {"method": method, **options}, settings)]
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
