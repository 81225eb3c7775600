"""Runs that are to be done: their folders, those that are resumed, and what is told before they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedconcord.execution.job import Row
from fedconcord.execution.run import lock, readme
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.folder import read_description, refuse_taken
from fedconcord.federation.objectives.losses import DEFAULT_LOSS
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.study.runs.events import Entry, Event, Finished, Stage, Watch
from fedconcord.study.runs.execution import execute
from fedconcord.study.runs.pool import Stages, packed
from fedconcord.study.runs.records import GROWS, MAY_CHANGE, not_done, refuse_other, resumed, versions_of, why_evaluated
from fedconcord.study.runs.training import prepare, threads
from fedconcord.study.settings import judging, problem
from fedconcord.study.settings.contents import kind_of
from fedconcord.study.settings.job import advise, team_of
from fedconcord.study.settings.judging import check_ranked, held, judged
from fedconcord.study.settings.methods import runs
from fedconcord.study.settings.parts import part
from fedconcord.study.settings.privacy import privacy_note
from fedconcord.study.settings.problem import dataset_of, first_problem, folder_name, forget_problem, metrics_note
from fedconcord.study.settings.resolve import check_distinct, resolve_compare, resolve_run
from fedconcord.study.settings.settings import NATURAL, Config
from fedconcord.study.settings.sources import Source, from_nested
from fedconcord.support import files, process, sums
from fedconcord.support.errors import UserError
from fedconcord.support.readers import read_json

FORMAT = 1


class Comparison(NamedTuple):
    """A comparison that is to be done, or completed."""

    folder: Path
    entries: list[Entry]  # methods of one seed side by side
    jobs: int  # runs that go on at once


# -- folders -------------------------------------------------------------------------------------------------------


def plan_run(*sources: Source) -> Entry:
    """A new run in a new folder, which is made when the run starts."""
    config, reason = held(resolve_run(*sources))
    advise(config)
    folder = new_folder(config, config.method or "run")
    return Entry(config.model_copy(update={"out": None}), folder, validation_reason=reason)


def plan_resumed_run(folder: Path, *changes: Source) -> Entry:
    """The run of a folder, to be continued.

    Raises:
        UserError: the folder holds no run, or a change is more than how long and where it computes.
    """
    if not (folder / "run.json").exists() and (folder / "compare.json").exists():
        raise UserError(f"{folder} holds a comparison; continue it with fedconcord compare --resume {folder}")
    saved = read_description(folder)
    _, config = resumed(saved.get("config", {}), changes, folder, resolve_run)
    entry = Entry(config, folder, True, saved.get("evaluation", {}).get("validation_why"))
    refuse_other(entry)
    return entry


def plan_comparison(jobs: int | None, *sources: Source) -> Comparison:
    """A new comparison, whose settings are written into its folder.

    Raises:
        UserError: a setting is wrong or a run cannot start, before anything is written.
    """
    config, validation_reason = held(resolve_compare(*sources))
    check_ranked(config)
    jobs = _jobs(1 if jobs is None else jobs, config)
    if jobs > 1 and config.engine.threads is None:  # they share the cores; saved, as threads can move last bits
        engine = config.engine.model_copy(update={"threads": max(1, process.cores() // jobs)})
        config = config.model_copy(update={"engine": engine})
    folder = new_folder(config, "compare")
    config, reason = judged(config.model_copy(update={"out": None}))
    evaluation = judging.evaluation(config, first_problem(config), reason)
    if validation_reason is not None:
        evaluation["validation_why"] = validation_reason
    planned = Comparison(folder, _entries(config, folder, validation_reason), jobs)
    _try_start(planned.entries, jobs)
    with alone(planned):
        team_of(config).tell(lambda: refuse_taken(folder))
        _save(planned, config, evaluation)
    return planned


def plan_resumed_comparison(
    folder: Path, jobs: int | None, *changes: Source, say: Callable[[str], None] = lambda line: None
) -> Comparison:
    """The comparison of a folder, to be completed: all its runs, with those of the methods, seeds and baselines that
    the changes add; `say` is told which.

    Raises:
        UserError: the folder holds no comparison, or a change is more than additions, how long and where it computes.
    """
    saved = read_comparison(folder)
    may_change = {*MAY_CHANGE, *GROWS, "method", "seed"}
    before, config = resumed(saved["config"], changes, folder, resolve_compare, may_change)
    config, added = _grown(before, config, folder)
    jobs = _jobs(saved["jobs"] if jobs is None else jobs, config)
    evaluation = saved.get("evaluation", {})
    entries = [entry._replace(resume=True) for entry in _entries(config, folder, evaluation.get("validation_why"))]
    for entry in entries:
        refuse_other(entry)
    folders = {entry.folder for entry in _entries(before, folder, None)}
    if new := [entry for entry in entries if entry.folder not in folders]:
        _try_start(new, jobs)
    if added:
        say(f"added to {folder}: {added}")
    planned = Comparison(folder, entries, jobs)
    with alone(planned):
        _save(planned, config, evaluation)
    return planned


def plan_more(
    folder: Path,
    jobs: int | None,
    nested: Mapping[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int],
    keep: Literal["all", "model", "tables"],
) -> Comparison:
    """A comparison in its folder: a new one with these settings, or the one that is there, which these methods
    (canonical texts) and seeds are added to.

    Args:
        keep: of its runs, when they have ended.

    Raises:
        UserError: as `plan_comparison` and `plan_resumed_comparison`.
    """
    if not (folder / "compare.json").exists():
        new = {**nested, "methods": list(methods), "seeds": list(seeds), "out": str(folder)}
        planned = plan_comparison(jobs, from_nested(new, str(folder)))
    else:
        stored = read_comparison(folder)["config"]
        lists = (("methods", methods), ("seeds", seeds))
        more = {key: [*dict.fromkeys([*stored[key], *values])] for key, values in lists}
        planned = plan_resumed_comparison(folder, jobs, from_nested(more, str(folder)))
    return planned._replace(entries=[entry._replace(keep=keep) for entry in planned.entries])


def read_comparison(folder: Path) -> dict[str, Any]:
    """compare.json of a folder, with `config` and `jobs`.

    Raises:
        UserError: the folder holds no comparison, or the file is damaged.
    """
    path, way = folder / "compare.json", "restore it or start the comparison again"
    try:
        saved = read_json(path, way)
        return {**saved, "config": dict(saved["config"]), "jobs": int(saved["jobs"])}
    except FileNotFoundError:
        if (folder / "run.json").exists():
            raise UserError(f"{folder} holds one run; continue it with fedconcord run --resume {folder}") from None
        raise UserError(
            f"{folder} holds no comparison (no compare.json); give the folder that fedconcord compare wrote"
        ) from None
    except (KeyError, TypeError) as broken:
        raise UserError(f"cannot read {path} ({broken}); {way}") from None


def _grown(before: Config, config: Config, folder: Path) -> tuple[Config, str]:
    """The settings with lists that only grow, and in words what they grow by.

    Raises:
        UserError: a list would lose something, two names are one folder's, or baselines have nothing to be judged on.
    """
    lists, added = {}, []
    for key in GROWS:
        old, listed = (list(getattr(one, key, None) or []) for one in (before, config))
        new = [name for name in listed if name not in old]
        if set(listed) < set(old):
            raise UserError(
                f"{key} {','.join(map(str, listed))} would leave out some of {folder}, which has "
                f"{','.join(map(str, old))}; a comparison only grows: name what to add, or start anew without --resume"
            )
        if new and key == "baselines" and before.validation is None:
            raise UserError(
                f"baselines are judged on samples that nothing trains on, and {folder} set none apart; start anew, "
                f"as in fedconcord compare --baselines {','.join(new)}"
            )
        if new:
            added.append(f"{key} {', '.join(map(str, new))}")
        if old or new:
            lists[key] = [*old, *new]
    config = config.model_copy(update=lists)
    check_distinct(config)
    return config, " and ".join(added)


def _entries(config: Config, folder: Path, validation_reason: str | None) -> list[Entry]:
    places = ((one, folder / files.folder_name(one.label or "") / f"seed-{one.seed}") for one in runs(config))
    return [Entry(one, place, validation_reason=validation_reason) for one, place in places]


def run(entry: Entry, watch: Watch, clock: Clock | None = None) -> Finished:
    """Do one run, in this process; `clock` has what it took until now. Its end is told however it comes.

    Raises:
        UserError: it cannot start.
        KeyboardInterrupt: by a second Ctrl-C, or by one before its first round.
    """
    watch.begin(entry.folder)
    watch.stage(Stage([entry], entry.folder))

    def on_start() -> None:
        watch.note(notes([entry]))
        watch.note([ahead([entry], entry.folder)])
        watch.event(Event("started"))

    def on_row(row: Row) -> None:
        if row.round == 0:
            watch.note(filter(None, map(why_evaluated, [entry.folder])))
        watch.event(Event("row", row=row))

    try:
        outcome = execute(entry, on_row, clock, on_start)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        watch.event(Event("cut", result=not_done(entry, status, str(error))))
        raise
    watch.event(Event("ended", result=outcome))
    return outcome


def comparison(planned: Comparison) -> Stages[list[Finished]]:
    """A comparison as a study: one stage of all its runs. The caller holds its lock (`alone`)."""
    return (yield Stage(planned.entries, planned.folder))


def alone(planned: Comparison) -> AbstractContextManager[None]:
    """Hold the lock of the comparison's folder; each of its runs holds that of its own."""
    return lock.held(planned.folder, team_of(planned.entries[0].config))


def _save(planned: Comparison, config: Config, evaluation: Mapping[str, object]) -> None:
    """compare.json, written by the first of several processes."""
    if team_of(config).rank != 0:
        return
    content = {"format": FORMAT, "config": config.as_dict(), "jobs": planned.jobs, "evaluation": evaluation}
    sums.write(planned.folder, {"compare.json": files.as_json(content)})
    readme.write(planned.folder, readme.of_comparison())


def new_folder(config: Config, what: str) -> Path:
    """The folder asked for, if it is free, else a numbered one below runs/; one choice for all processes."""

    def choose() -> str:
        if config.out is None:
            return str(files.free_folder(Path("runs"), f"{folder_name(config.data)}-{what}"))
        folder = Path(config.out).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UserError(f"out {folder} is a file; give a folder")
        if folder.is_dir() and not lock.is_free(folder):
            way = f"continue what it holds with --resume {folder}, or give another --out"
            raise UserError(f"the folder {folder} is not empty; {way}")
        return str(folder)

    return Path(team_of(config).tell(choose))


def _jobs(jobs: int, config: Config) -> int:
    if jobs < 1:
        raise UserError(f"jobs must be an integer >= 1, given {jobs}")
    if jobs > 1 and config.engine.name == "distributed":
        raise UserError(f"the distributed engine does one run after another, given jobs {jobs}; leave jobs at 1")
    jobs = min(jobs, len(runs(config)))
    if jobs > 1:
        packed([config])
    return jobs


def _try_start(entries: Sequence[Entry], jobs: int) -> None:
    """Build the runs of the first seed once, so that what no run could do is said before anything is written."""
    for entry in entries:
        if entry.config.seed == entries[0].config.seed:
            with threads(entry.config.engine.threads):
                prepare(entry.config, entry.folder)
                advise(entry.config)
    if jobs > 1:  # the workers have their own
        forget_problem()


def notes(entries: Sequence[Entry]) -> Iterator[str]:
    """What was guessed of data of the user's own, or left out of them, and whether clients set samples apart."""
    first = entries[0]
    yield from problem.notes(first.config)
    if not first.resume:  # a run that is resumed keeps its metrics
        yield from metrics_note(first.config)
    else:
        yield from dict.fromkeys(filter(None, map(versions_of, entries)))
    if first.validation_reason is not None and not first.resume:
        yield first.validation_reason
    yield from _objective(entries)
    for entry in entries:
        if entry.config.seed == first.config.seed and (note := privacy_note(entry.config)) is not None:
            yield note


def _objective(planned: Sequence[Entry]) -> list[str]:
    """What is minimised, where clients of the user's own differ in size."""
    first = planned[0].config
    if first.partition != NATURAL or kind_of(first.data) != "file":
        return []
    dataset = dataset_of(first.data, first.data_dir, first.seed or 0, first.input)
    sizes = [len(samples) for samples in dataset.natural or ()]
    loss = part("loss", first.loss or DEFAULT_LOSS[dataset.target])
    unit = "sample" if loss.counts is None else "token"
    ours = [one.config for one in planned if one.config.seed == first.seed and one.config.method not in BASELINES]
    if not ours or len(set(sizes)) < 2:
        return []
    counted = {config.label: config.algorithm.get("weights") for config in ours}
    alike = [str(label) for label, kind in counted.items() if kind is None]
    some = f"clients have {min(sizes):,} to {max(sizes):,} training samples"
    if all(kind in (None, "uniform") for kind in counted.values()):
        way = "" if len(alike) == len(counted) else f"; --objective samples counts every {unit} alike"
        return [f"{some}, and every client counts alike in what is minimised{way}"]
    but = f", but every client alike with {', '.join(alike)}, as published" if alike else ""
    way = "--objective clients counts every client alike"
    return [f"{some}, and every {unit} counts alike in what is minimised{but}; {way}"]


def ahead(planned: Sequence[Entry], folder: Path, jobs: int = 1) -> str:
    """What is going to be done, and where it will be."""
    first = planned[0].config
    what = f"{first.label}, seed {first.seed}" if len(planned) == 1 else f"{len(planned)} runs"
    rounds = f"to round {first.rounds}" if planned[0].resume else f"{first.rounds} rounds{' each' * (len(planned) > 1)}"
    at_once = f", {jobs} at once" if jobs > 1 else ""
    return f"{what}: {rounds}{at_once}, into {folder}; Ctrl-C leaves what is done there, and --resume goes on"
