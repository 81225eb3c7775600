"""Runs that are to be done: their folders, those that are resumed, and what may change then."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord import settings as settings_module
from fedconcord.algorithms.alone import BASELINES
from fedconcord.basis import files, folders, process, sums
from fedconcord.basis.errors import UserError
from fedconcord.runs import lock, readme
from fedconcord.runs.begun import Begun, begun
from fedconcord.runs.folder import read_description, refuse_taken
from fedconcord.runs.sending import packed
from fedconcord.settings import Config, Source
from fedconcord.settings.settings import NATURAL

ON_RESUME = frozenset(  # settings that a resumed job may change
    (
        *("rounds", "checkpoint.every", "eval.target", "track"),
        *("engine.name", "engine.device", "engine.threads", "engine.timeout", "engine.graphs"),
    )
)
# of a folder that was written before clients set samples apart by themselves, and before data had a say in weights
ALL = {"validation": "none", "objective": "paper"}
GROWS = ("methods", "seeds", "baselines")  # lists that a resumed comparison may add to
FORMAT = 1


class Planned(NamedTuple):
    """A run that is to be done: its resolved settings and its folder."""

    config: Config
    folder: Path
    resume: bool = False
    held: str | None = None  # why clients set samples apart, or do not, where that was left open


# -- folders -------------------------------------------------------------------------------------------------------


def plan_run(*sources: Source) -> Planned:
    """A new run in a new folder, which is made when the run starts."""
    config, why = settings_module.held(settings_module.resolve_run(*sources))
    settings_module.advise(config)
    return Planned(config.model_copy(update={"out": None}), new_folder(config, config.method or "run"), held=why)


def plan_resumed_run(folder: Path, *changes: Source) -> Planned:
    """The run of a folder, to be continued.

    Raises:
        UserError: the folder holds no run, or a change is more than how long and where it computes.
    """
    if not (folder / "run.json").exists() and (folder / "compare.json").exists():
        raise UserError(f"{folder} holds a comparison; continue it with fedconcord compare --resume {folder}")
    saved = read_description(folder)
    changes = tuple(settings_module.unchanged(source, saved.get("config", {}), folder) for source in changes)
    _allowed(changes, folder)
    before = settings_module.from_nested({**ALL, **saved.get("config", {})}, "run.json")
    config = settings_module.resolve_run(before, *changes)
    _longer(config, folder, saved)
    return Planned(config, folder, resume=True, held=saved.get("evaluation", {}).get("validation_why"))


def plan_comparison(jobs: int | None, *sources: Source) -> tuple[Path, list[Planned], int]:
    """A new comparison: its folder, its runs and how many of them go on at once.

    Raises:
        UserError: a setting is wrong or a run cannot start, before anything is written.
    """
    config, held = settings_module.held(settings_module.resolve_compare(*sources))
    jobs = _jobs(1 if jobs is None else jobs, config)
    config = _with_threads(config, jobs)
    folder = new_folder(config, "compare")
    config, why = settings_module.judged(config.model_copy(update={"out": None}))
    judging = settings_module.evaluation(config, settings_module.first_problem(config), why)
    if held is not None:
        judging["validation_why"] = held
    planned = _runs(config, folder, held)
    _try_start(planned, jobs)
    with writing(folder, planned):
        settings_module.team_of(config).tell(lambda: refuse_taken(folder))
        _save_comparison(folder, config, jobs, judging)
    return folder, planned, jobs


def plan_resumed_comparison(
    folder: Path, jobs: int | None, *changes: Source, say: Callable[[str], None] | None = None
) -> tuple[Path, list[Planned], int]:
    """What is left of a comparison: all its runs; those that are finished end at once when they are executed.

    Methods, seeds and baselines in the changes are added to what it has; `say` is told which.

    Raises:
        UserError: the folder holds no comparison, or a change is more than additions, how long and where it computes.
    """
    saved = read_comparison(folder)
    nested, before = saved["config"], saved["jobs"]
    changes = tuple(settings_module.unchanged(source, nested, folder) for source in changes)
    _allowed(changes, folder, ("method", "seed", *GROWS))
    judging = saved.get("evaluation", {})
    held = judging.get("validation_why")
    had = settings_module.resolve_compare(settings_module.from_nested({**ALL, **nested}, "compare.json"))
    config, added = _grown(had, changes, folder)
    jobs = _jobs(before if jobs is None else jobs, config)
    planned = [entry._replace(resume=True) for entry in _runs(config, folder, held)]
    new = [entry for entry in planned if entry.folder not in {old.folder for old in _runs(had, folder, held)}]
    for entry in planned:
        if (entry.folder / "run.json").exists():
            _longer(entry.config, entry.folder, read_description(entry.folder))
    if new:
        _try_start(new, jobs)
    if added and say is not None:
        say(f"added to {folder}: {added}")
    with writing(folder, planned):
        _save_comparison(folder, config, jobs, judging)
    return folder, planned, jobs


def plan_more(
    folder: Path, jobs: int | None, nested: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]
) -> tuple[Path, list[Planned], int]:
    """A comparison in its folder: a new one with these settings, or the one that is there, which these methods
    (canonical texts) and seeds are added to.

    Raises:
        UserError: as `plan_comparison` and `plan_resumed_comparison`.
    """
    if not (folder / "compare.json").exists():
        asked = {**nested, "methods": list(methods), "seeds": list(seeds), "out": str(folder)}
        return plan_comparison(jobs, settings_module.from_nested(asked, str(folder)))
    had = read_comparison(folder)["config"]
    more = {
        key: [*had[key], *(one for one in given if one not in had[key])]
        for key, given in (("methods", methods), ("seeds", seeds))
    }
    return plan_resumed_comparison(folder, jobs, settings_module.from_nested(more, str(folder)))


def read_comparison(folder: Path) -> dict[str, Any]:
    """compare.json of a folder, with `config` and `jobs`.

    Raises:
        UserError: the folder holds no comparison, or the file is damaged.
    """
    path = folder / "compare.json"
    try:
        saved: dict[str, Any] = json.loads(sums.text(path))
        return {**saved, "config": dict(saved["config"]), "jobs": int(saved["jobs"])}
    except FileNotFoundError:
        if (folder / "run.json").exists():
            raise UserError(f"{folder} holds one run; continue it with fedconcord run --resume {folder}") from None
        raise UserError(
            f"{folder} holds no comparison (no compare.json); give the folder that fedconcord compare wrote"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it or start the comparison again") from None


def _grown(had: Config, changes: Sequence[Source], folder: Path) -> tuple[Config, str]:
    """The settings of a comparison with what the changes add to its lists, and in words what that is."""
    config = settings_module.resolve_compare(settings_module.from_nested(had.as_dict(), "compare.json"), *changes)
    lists, added = {}, []
    for key in GROWS:
        old, given = (list(getattr(one, key, None) or []) for one in (had, config))
        new = [entry for entry in given if entry not in old]
        if set(given) < set(old):
            raise UserError(
                f"{key} {','.join(map(str, given))} would leave out some of {folder}, which has "
                f"{','.join(map(str, old))}; a comparison only grows: name what to add, or start anew without --resume"
            )
        if new and key == "baselines" and had.validation is None:
            raise UserError(
                f"baselines are judged on samples that nothing trains on, and {folder} set none apart; start anew, "
                f"as in fedconcord compare --baselines {','.join(new)}"
            )
        if new:
            added.append(f"{key} {', '.join(map(str, new))}")
        if old or new:
            lists[key] = [*old, *new]
    config = config.model_copy(update=lists)
    settings_module.check_distinct(config)
    return config, " and ".join(added)


def why_evaluated(folder: Path) -> str | None:
    """What counted work decided of the evaluations of a comparison, or None."""
    found: str | None = read_comparison(folder).get("evaluation", {}).get("why")
    return found


def _runs(config: Config, folder: Path, held: str | None) -> list[Planned]:
    return [
        Planned(one, folder / folders.folder_name(one.label or "") / f"seed-{one.seed}", held=held)
        for one in settings_module.runs(config)
    ]


def writing(folder: Path, planned: Sequence[Planned]) -> AbstractContextManager[None]:
    """Alone in the folder of a comparison; each of its runs is so in its own."""
    return lock.held(folder, settings_module.team_of(planned[0].config))


def _save_comparison(folder: Path, config: Config, jobs: int, judging: Mapping[str, object]) -> None:
    if settings_module.team_of(config).rank != 0:
        return
    said = {"format": FORMAT, "config": config.as_dict(), "jobs": jobs, "evaluation": judging}
    sums.write(folder / "compare.json", files.as_json(said))
    readme.write(folder, readme.of_comparison())


def new_folder(config: Config, what: str) -> Path:
    """The folder asked for, if it is free, else a numbered one below runs/; one choice for all processes."""
    return Path(settings_module.team_of(config).tell(lambda: str(_free_folder(config, what))))


def _free_folder(config: Config, what: str) -> Path:
    if config.out is None:
        data = settings_module.folder_name(config.data)
        return folders.free_folder(Path("runs"), f"{data}-{what}")
    folder = Path(config.out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out {folder} is a file; give a folder")
    if folder.is_dir() and not lock.is_free(folder):
        raise UserError(
            f"the folder {folder} is not empty; continue what it holds with --resume {folder}, or give another --out"
        )
    return folder


def _allowed(changes: Sequence[Source], folder: Path, grows: Collection[str] = ()) -> None:
    for source in changes:
        for key in source.values:
            if key not in ON_RESUME and key not in grows:
                raise UserError(
                    f"{key} ({source.origin[key]}) cannot change when {folder} is resumed, which keeps its settings; "
                    "leave it out, or start anew without --resume"
                )


def _longer(config: Config, folder: Path, saved: Mapping[str, Any]) -> None:
    done = int(saved.get("rounds_done", 0))
    if config.rounds < done:
        raise UserError(f"{folder} has done {done} rounds already, given rounds {config.rounds}; give {done} or more")


def _jobs(jobs: int, config: Config) -> int:
    if jobs < 1:
        raise UserError(f"jobs must be an integer >= 1, given {jobs}")
    if jobs > 1 and config.engine.name == "distributed":
        raise UserError(f"the distributed engine does one run after another, given jobs {jobs}; leave jobs at 1")
    jobs = min(jobs, len(settings_module.runs(config)))
    if jobs > 1:
        packed([config])
    return jobs


def _with_threads(config: Config, jobs: int) -> Config:
    """Settings in which runs that go on at once share the cores; saved, as the number of threads can move last bits."""
    if jobs == 1 or config.engine.threads is not None:
        return config
    share = max(1, process.cores() // jobs)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"threads": share})})


def _try_start(planned: Sequence[Planned], jobs: int) -> None:
    """Build the runs of the first seed once, so that what no run could do is said before anything is written."""
    for entry in planned:
        if entry.config.seed == planned[0].config.seed:
            with threads(entry.config.engine.threads):
                prepared(entry.config, entry.folder)
                settings_module.advise(entry.config)
    if jobs > 1:  # the workers have their own
        settings_module.forget_problem()


def prepared(config: Config, folder: Path) -> Begun:
    """The job of a run in its folder, where nothing is written yet.

    Raises:
        UserError: it cannot run.
    """
    job = settings_module.build(config)
    try:
        start = begun(job, folder, config.rounds)
        settings_module.refuse(job, config)
    except UserError as error:
        raise UserError(f"{config.label}: {error}") from None
    return start


def notes(planned: Sequence[Planned]) -> list[str]:
    """What was guessed of data of the user's own, or left out of them, and whether clients set samples apart."""
    first = planned[0]
    of_data = [*settings_module.notes(first.config), *(() if first.held is None or first.resume else (first.held,))]
    private = [settings_module.privacy_note(one.config) for one in planned if one.config.seed == first.config.seed]
    return [*of_data, *_objective(planned), *(said for said in private if said is not None)]


def _objective(planned: Sequence[Planned]) -> list[str]:
    """What is minimised, where clients of the user's own differ in size."""
    first = planned[0].config
    if first.partition != NATURAL or settings_module.kind_of(first.data) != "file":
        return []
    natural = settings_module.dataset_of(first.data, first.data_dir, first.seed or 0, first.input).natural
    sizes = [len(samples) for samples in natural or ()]
    ours = [one.config for one in planned if one.config.seed == first.seed and one.config.method not in BASELINES]
    if not ours or len(set(sizes)) < 2:
        return []
    counted = {config.label: config.algorithm.get("weights") for config in ours}
    alike = [str(label) for label, kind in counted.items() if kind is None]
    some = f"clients have {min(sizes):,} to {max(sizes):,} training samples"
    if all(kind in (None, "uniform") for kind in counted.values()):
        way = "" if len(alike) == len(counted) else "; --objective samples counts every sample alike"
        return [f"{some}, and every client counts alike in what is minimised{way}"]
    but = f", but every client alike with {', '.join(alike)}, as published" if alike else ""
    way = "--objective clients counts every client alike"
    return [f"{some}, and every sample counts alike in what is minimised{but}; {way}"]


def ahead(planned: Sequence[Planned], folder: Path, jobs: int = 1) -> str:
    """What is going to be done, and where it will be."""
    first = planned[0].config
    what = f"{first.label}, seed {first.seed}" if len(planned) == 1 else f"{len(planned)} runs"
    rounds = f"to round {first.rounds}" if planned[0].resume else f"{first.rounds} rounds{' each' * (len(planned) > 1)}"
    at_once = f", {jobs} at once" if jobs > 1 else ""
    return f"{what}: {rounds}{at_once}, into {folder}; Ctrl-C leaves what is done there, and --resume goes on"


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many of torch's threads; if none is given, its own number, but not above what the container may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, process.cores()) if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
