"""A search that is to be done: its settings, spaces and rungs; said, refused and saved before the first round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.execution.job import resolved
from fedconcord.execution.run import lock, readme
from fedconcord.execution.run.folder import refuse_taken
from fedconcord.study.runs.events import Entry
from fedconcord.study.runs.plan import new_folder
from fedconcord.study.runs.records import resumed
from fedconcord.study.runs.training import prepare, threads
from fedconcord.study.search.scores import Objective, Rung, cost, objective_of, rungs_of
from fedconcord.study.search.space import Space, grid_space, read_grid, read_search, refuse_grid, space_of, text_of
from fedconcord.study.settings import judging
from fedconcord.study.settings.methods import single
from fedconcord.study.settings.problem import first_problem, metrics_note, notes
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source, from_nested
from fedconcord.support import files, grammar, sums
from fedconcord.support.errors import UserError
from fedconcord.support.factories import Search
from fedconcord.support.readers import read_json

NAME = "tune.json"
FORMAT = 1
BUDGET = 16  # trials of a method
SHARE = 0.2  # of each client's samples that judges the trials, where the settings name none
SEEDS = (0, 1)  # of the trials, where none are named: what is best on one seed may fail on the next
FRESH = 3  # seeds of the final comparison


class SearchSpec(NamedTuple):
    """What a user asks of a search beside settings, as tune.json has it; None: the default."""

    budget: int | None = None
    search: Sequence[str] = ()
    grid: str | None = None
    final_seeds: Sequence[int] | None = None
    target: float | None = None  # of the metric that judges trials: the rounds to it come first (the arena)


class Tuning(NamedTuple):
    """A search that is to be done."""

    folder: Path
    config: Config  # the comparison that is asked for, as the user's files get it
    spec: SearchSpec  # defaults filled in
    trial: Config  # the same as trials run it
    objective: Objective
    spaces: tuple[Space, ...]
    rungs: Mapping[str, tuple[Rung, ...]]  # of each method
    kernels: Mapping[str, str]  # of each method, for all of its trials

    @property
    def seeds(self) -> list[int]:
        return self.config.seeds or [0]

    @property
    def rounds(self) -> int:
        """Of all trials of all methods, and of the final comparison."""
        trials = sum(len(self.seeds) * cost(self.rungs[space.method]) for space in self.spaces if space.places)
        return trials + len(self.spaces) * len(self.spec.final_seeds or ()) * self.config.rounds

    def entry(self, space: Space, values: Mapping[str, float], number: int, seed: int, rounds: int) -> Entry:
        """One run of a trial."""
        one = single(self.trial, text_of(self.config, space.method, values), seed)
        engine = one.engine.model_copy(update={"kernel": self.kernels[space.method]})
        one = one.model_copy(update={"rounds": rounds, "engine": engine})
        return Entry(one, self.place(space, number, seed), resume=True)

    def place(self, space: Space, number: int, seed: int) -> Path:
        """The folder of such a run."""
        return self.folder / "trials" / files.folder_name(space.method) / str(number) / f"seed-{seed}"


def plan_tuning(spec: SearchSpec, *sources: Source) -> Tuning:
    """A new search in a new folder, where its settings are written.

    Raises:
        UserError: a setting is wrong or a method cannot run, before anything is written.
    """
    usual = from_nested({"seeds": list(SEEDS)}, "tune")
    config = resolve_compare(usual, *sources)
    if config.engine.name == "distributed":
        raise UserError("tune runs its trials side by side, and the distributed engine is one run; use engine stacked")
    tuning = _planned(new_folder(config, "tune"), config.model_copy(update={"out": None}), spec)
    with lock.held(tuning.folder):
        refuse_taken(tuning.folder)
        save(tuning, {"status": "running"})
        readme.write(tuning.folder, readme.of_search())
    return tuning


def plan_resumed_tuning(folder: Path, spec: SearchSpec, *sources: Source) -> Tuning:
    """The search of a folder, to be continued with its own settings.

    Raises:
        UserError: the folder holds no search, or anything is to change.
    """
    path, way = folder / NAME, "restore it or start the search again"
    try:
        saved = read_json(path, way)
        nested, stored = saved["settings"], SearchSpec(**saved["asked"])
    except FileNotFoundError:
        raise UserError(f"{folder} holds no search (no {NAME}); give the folder that fedconcord tune wrote") from None
    except (KeyError, TypeError) as broken:
        raise UserError(f"cannot read {path} ({broken}); {way}") from None
    for key, value in spec._asdict().items():
        if value and value != getattr(stored, key):
            raise UserError(f"{key} cannot change when {folder} is resumed, which keeps its settings; leave it out")
    _, config = resumed(nested, sources, folder, resolve_compare, may_change=())
    return _planned(folder, config, stored)


def save(tuning: Tuning, results: Mapping[str, Any]) -> None:
    """tune.json: what the user asks for, and what was found."""
    content = {"format": FORMAT, **results, "settings": tuning.config.as_dict(), "asked": tuning.spec._asdict()}
    sums.write(tuning.folder, {NAME: files.as_json(content)})


def _planned(folder: Path, config: Config, spec: SearchSpec) -> Tuning:
    spec = _filled(spec, config)
    trial, objective = _trial(config, spec.target)
    spaces = _spaces(config, spec)
    assert trial.eval.every is not None
    assert spec.budget is not None
    rungs = {s.method: rungs_of(s.trials(spec.budget), config.rounds, trial.eval.every) for s in spaces}
    kernels = {s.method: trial.engine.kernel for s in spaces}
    tuning = Tuning(folder, config, spec, trial, objective, spaces, rungs, kernels)
    return tuning._replace(kernels={space.method: _kernel(tuning, space) for space in spaces})


def _filled(spec: SearchSpec, config: Config) -> SearchSpec:
    """With defaults, checked."""
    budget = BUDGET if spec.budget is None else spec.budget
    if not isinstance(budget, int) or budget < 1:
        raise UserError(f"budget must be an integer >= 1, given {budget!r}: the trials of each method")
    seeds = config.seeds or [0]
    fresh: Any = spec.final_seeds
    if fresh is None:
        fresh = list(range(max(seeds) + 1, max(seeds) + 1 + FRESH))
    usable = isinstance(fresh, list) and all(isinstance(one, int) and 0 <= one not in seeds for one in fresh)
    if not usable or not fresh or len(set(fresh)) < len(fresh):
        raise UserError(
            "final seeds must be integers >= 0, each once, that tuning does not use, given "
            f"{grammar.shown(fresh)} with seeds {', '.join(map(str, seeds))}; give others, as in --final-seeds "
            f"{max(seeds) + 1}"
        )
    if spec.search and spec.grid is not None:
        raise UserError("--search gives ranges and --grid gives points; give one of them")
    return SearchSpec(budget, list(spec.search), spec.grid, fresh, spec.target)


def _trial(config: Config, target: float | None) -> tuple[Config, Objective]:
    """The settings that all trials share, and what judges them.

    No trial knows the test set's target, looks at every client or fine-tunes: that is for the final comparison. One
    thread each, so that results do not depend on how many run at once.
    """
    samples = config.partition is not None and config.task is None
    share = config.validation if isinstance(config.validation, float) else SHARE
    config = config.model_copy(update={"validation": share if samples else None, "label": None})
    judged, _ = judging.judged(config)
    bare = {"target": None, "clients": False, "clients_every": None, "personalise": None}
    engine = judged.engine
    if engine.threads is None:
        engine = engine.model_copy(update={"threads": 1})
    trial = judged.model_copy(update={"eval": judged.eval.model_copy(update=bare), "engine": engine})
    with threads(engine.threads):
        problem = first_problem(trial)
        soonest = target is not None
        return trial, objective_of(problem, target if soonest else config.eval.target, soonest)


def _spaces(config: Config, spec: SearchSpec) -> tuple[Space, ...]:
    methods = [*(config.methods or []), *config.baselines]  # to be alone has its best step size too
    if spec.grid is None:
        more: dict[str, Search] = dict(read_search(one, config) for one in spec.search)
        return tuple(space_of(config, method, more) for method in methods)
    grid = read_grid(spec.grid)
    refuse_grid(grid, config)
    spaces = tuple(grid_space(config, method, grid) for method in methods)
    largest = max(spaces, key=lambda space: len(space.points))
    if len(largest.points) > (spec.budget or 0):
        raise UserError(
            f"--grid {spec.grid} has {len(largest.points)} trials for {largest.method}, the job's own values among "
            f"them, given budget {spec.budget}; give --budget {len(largest.points)}"
        )
    return spaces


def _kernel(tuning: Tuning, space: Space) -> str:
    """What computes a method's trials: what is loaded once serves all of them, and one that goes on keeps its own.

    Raises:
        UserError: the method cannot run.
    """
    entry = tuning.entry(space, space.start, 0, tuning.seeds[0], tuning.config.rounds)
    with threads(entry.config.engine.threads):
        start = prepare(entry.config, entry.folder)
        choices = resolved(start.job, start.state, tuning.rounds).engine.can.choices
    return str(choices.get("kernel", entry.config.engine.kernel))


def sentences(tuning: Tuning) -> Iterator[str]:
    """What was found in data of the user's own, and what will be done: for a person who waits for it."""
    yield from notes(tuning.config)
    yield from metrics_note(tuning.config)
    for space in tuning.spaces:
        if not space.places:
            yield f"{space.method}: nothing to tune, so it is only in the final comparison"
            continue
        places = "; ".join(f"{key} {at}" for key, at in space.places.items())
        yield f"{space.method}: {f'{len(space.points)} points of {places}' if space.points else places}"
    free = [space for space in tuning.spaces if space.places]
    seeds, fresh = (", ".join(map(str, some)) for some in (tuning.seeds, tuning.spec.final_seeds or ()))
    plural = "s" * (len(tuning.seeds) > 1)
    for rungs in dict.fromkeys(tuning.rungs[space.method] for space in free):
        methods = [space.method for space in free if tuning.rungs[space.method] == rungs]
        who = "each method" if len(methods) == len(free) > 1 else ", ".join(methods)
        steps = ", ".join(f"{rung.trials} to round {rung.rounds}" for rung in rungs)
        budget = "" if tuning.spec.grid is not None else f" of budget {tuning.spec.budget}"
        total = len(tuning.seeds) * cost(rungs)
        yield f"{who}: {rungs[0].trials} trials{budget} with seed{plural} {seeds}: {steps}; {total} rounds"
    yield (
        f"judged by {tuning.objective}; then the winners with seeds {fresh}, {tuning.config.rounds} rounds each; "
        f"{tuning.rounds} rounds in all, into {tuning.folder}"
    )
