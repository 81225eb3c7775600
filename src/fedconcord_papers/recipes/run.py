"""A recipe done: its grid tried, each method at its best compared over seeds, what is there already not repeated.

A recipe's folder: CELL/search and CELL/final are comparisons as `fedconcord compare` leaves them, what was asked of
them is in the JSON file beside; done.json holds the values that the page is written from. The grid is tried with one
seed of its own and judged by the measures on the test set, as the papers did; the first that tells two settings apart
decides.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import fedconcord
from fedconcord.execution.run.clock import NAME as SECONDS
from fedconcord.study.runs import plan
from fedconcord.study.runs.events import Watch
from fedconcord.study.runs.pool import Stages, carry_out
from fedconcord.study.runs.records import changed
from fedconcord.study.runs.training import prepare
from fedconcord.study.settings.methods import runs as all_runs
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import RIVALS
from fedconcord.study.settings.sources import from_nested
from fedconcord.study.statistics.load import Run, load_runs
from fedconcord.support import files, grammar, imports, process, sums
from fedconcord.support.errors import UserError, unknown
from fedconcord.support.grammar import Spec
from fedconcord_papers.recipes.recipe import Cell, Comparison, Entry, Measure, Recipe, Settings, Size, SizeName
from fedconcord_papers.recipes.values import Done, Request, Spell, Value, Values

DONE = "done.json"
SEARCH_SEED = 1000  # which no final run has
ALWAYS: Settings = {"validation": "none", "eval.clients": False, "checkpoint.every": 30.0}


class RecipeSpec(NamedTuple):
    """What of a recipe is to be done, and how."""

    recipe: Recipe
    size_name: SizeName
    out: Path
    jobs: int = 1
    seeds: Sequence[int] | None = None  # in place of the size's
    cells: Sequence[str] | None = None  # of the size's

    @property
    def size(self) -> Size:
        return self.recipe.sizes[self.size_name]

    @property
    def command(self) -> str:
        """The command that asks for it, but for its folder."""
        seeds = "" if self.seeds is None else f" --seeds {','.join(map(str, self.seeds))}"
        cells = "" if self.cells is None else f" --cells {','.join(self.cells)}"
        device = self.size.settings.get("engine.device")
        where = "" if device is None else f" --device {device}"
        return f"fedconcord reproduce {self.recipe.name} --{self.size_name}{seeds}{cells}{where}"


def reproduce(request: RecipeSpec, watch: Watch) -> Done:
    """Do a recipe, or what is left of it, and write done.json.

    Raises:
        UserError: data are missing, it would not fit, the folder holds something else, or a run failed.
        KeyboardInterrupt: by Ctrl-C; the same call goes on.
    """
    recipe, size = request.recipe, request.size
    files.sweep(request.out)
    began, at = time.strftime("%Y-%m-%dT%H:%M", time.gmtime()), time.perf_counter()
    if isinstance(recipe.experiment, Comparison):
        work = carry_out(_compare(request, recipe.experiment, watch.say), request.jobs, watch)
    else:
        if request.cells is not None or request.seeds is not None:
            raise UserError(f"{recipe.name} is no comparison of cells over seeds; leave --cells and --seeds out")
        values = recipe.experiment.run(request.out, request.size_name, size.options, watch.say)
        requests = {cell: Request(settings=plain(size.options), methods={}) for cell in values.cells()}
        runs = len({(row.cell, row.entry, row.seed) for row in values.rows})
        work = Work(values, {}, {}, requests, 0, runs, time.perf_counter() - at)
    spell = Spell(
        began=began, seconds=work.seconds, runs=work.runs, machine=process.machine(), version=fedconcord.__version__
    )
    result = Done(recipe.name, request.size_name, *work[:5], [spell], request.command)
    request.out.mkdir(parents=True, exist_ok=True)
    result.write(request.out / DONE)
    return result


# -- comparisons -----------------------------------------------------------------------------------------------------


def cells_of(request: RecipeSpec, experiment: Comparison) -> list[Cell]:
    """The cells that are done.

    Raises:
        UserError: there is no such cell at this size.
    """
    names = [cell.name for cell in experiment.cells if request.size.cells is None or cell.name in request.size.cells]
    for name in request.cells or ():
        if name not in names:
            raise unknown(f"cell of {request.recipe.name} at size {request.size_name}", name, names)
    return [cell for cell in experiment.cells if cell.name in (names if request.cells is None else request.cells)]


def entries_of(size: Size, experiment: Comparison, cell: Cell) -> list[Entry]:
    """The methods that are compared in a cell."""
    there = experiment.entries if cell.entries is None else cell.entries
    return [entry for entry in there if size.entries is None or entry.name in size.entries]


def settings_of(experiment: Comparison, size: Size, cell: Cell) -> dict[str, Any]:
    """The settings of a cell at a size, by dotted key."""
    goals = [measure.goal for measure in experiment.measures if measure.goal is not None]
    target = {"eval.target": goals[0]} if goals else {}
    merged: dict[str, Any] = {**ALWAYS, **target}
    for layer in (experiment.settings, cell.settings, size.settings, size.by_cell.get(cell.name, {})):
        for first, second in RIVALS:  # the later one replaces the other
            for key, other in ((first, second), (second, first)):
                if key in layer:
                    merged.pop(other, None)
        merged |= layer
    return merged


def text_of(entry: Entry, values: Mapping[str, Any], label: str) -> str:
    """A method with the values of a grid and a name, as `compare` takes it."""
    imports.trust(entry.call)
    call = grammar.parse(entry.call, "method")
    return str(Spec(call.name, call.args, {**call.kwargs, **values, "label": label}))


def points_of(entry: Entry) -> list[dict[str, Any]]:
    """All values of an entry's grid."""
    return [dict(zip(entry.grid, values, strict=True)) for values in product(*entry.grid.values())]


def first_of(entry: Entry) -> dict[str, Any]:
    """What is taken of a grid where none is sought."""
    return {key: values[0] for key, values in entry.grid.items()}


def planned_texts(request: RecipeSpec) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """(cell, settings, methods) of every comparison of a recipe that needs no search before it, for checks."""
    experiment = request.recipe.experiment
    assert isinstance(experiment, Comparison)
    for cell in cells_of(request, experiment):
        yield (
            cell.name,
            settings_of(experiment, request.size, cell),
            [text_of(entry, first_of(entry), entry.name) for entry in entries_of(request.size, experiment, cell)],
        )


class Work(NamedTuple):
    """What came of a recipe's runs, as `Done` has it, and what they took."""

    values: Values
    best: dict[str, dict[str, dict[str, Any]]]
    grids: dict[str, dict[str, dict[str, Sequence[Any]]]]
    requests: dict[str, Request]
    searched: int
    runs: int  # with those of the search
    seconds: float  # added over processes


def _compare(request: RecipeSpec, experiment: Comparison, say: Callable[[str], None]) -> Stages[Work]:
    """Search and compare in every cell."""
    size, rows, seconds, search_runs, final_runs = request.size, list[Value](), 0.0, 0, 0
    best: dict[str, dict[str, dict[str, Any]]] = {}
    grids: dict[str, dict[str, dict[str, Sequence[Any]]]] = {}
    requests: dict[str, Request] = {}
    if request.size_name == "paper":
        for _, its_settings, texts in planned_texts(request):
            _fits(its_settings, texts, request.out)
    by_name = {cell.name: cell for cell in experiment.cells}
    for cell in cells_of(request, experiment):
        settings, home = settings_of(experiment, size, cell), cell.tuned_in or cell.name
        if home not in best:
            there = by_name[home]
            entries = entries_of(size, experiment, there)
            best[home] = {entry.name: first_of(entry) for entry in entries}
            if size.search is not None and any(len(points_of(entry)) > 1 for entry in entries):
                say(f"{there.title}: the grid")
                of_search = {**settings_of(experiment, size, there), **size.search}
                best[home], grid_runs = yield from _search(request, experiment, entries, there, of_search)
                grids[home] = {one.name: {**one.grid} for one in entries if len(points_of(one)) > 1}
                search_runs += len(grid_runs)
                seconds += sum(_seconds(run.folder) for run in grid_runs)
                for entry in entries:
                    if len(points_of(entry)) > 1:
                        words = ", ".join(
                            f"{k.removeprefix('local.')} {v:g}" for k, v in best[home][entry.name].items()
                        )
                        say(f"  {entry.name}: {words}")
        say(f"{cell.title}: the comparison")
        entries = entries_of(size, experiment, cell)
        methods = {
            entry.name: text_of(entry, best[home].get(entry.name, first_of(entry)), entry.name) for entry in entries
        }
        requests[cell.name] = Request(settings=plain(settings), methods=methods)
        seeds = list(size.seeds if request.seeds is None else request.seeds)
        final = request.out / cell.name / "final"
        runs = yield from _runs(final, settings, list(methods.values()), seeds, request.jobs)
        final_runs += len(runs)
        seconds += sum(_seconds(run.folder) for run in runs)
        rows += [
            Value(measure.name, cell.name, run.head.label, run.head.seed, _value(measure, run))
            for measure in experiment.measures
            for run in runs
            if run.head.seed in seeds
        ]
    return Work(Values(tuple(rows)), best, grids, requests, search_runs, final_runs + search_runs, seconds)


def plain(settings: Settings) -> dict[str, Any]:
    """Settings as JSON has them, that they can be compared with what was written."""
    return {key: list(value) if isinstance(value, (range, tuple)) else value for key, value in settings.items()}


def _search(
    request: RecipeSpec, experiment: Comparison, entries: Sequence[Entry], cell: Cell, settings: Settings
) -> Stages[tuple[dict[str, dict[str, Any]], list[Run]]]:
    """(best values of the grid by entry, all runs); entries without a choice are not run."""
    points = {
        f"{entry.name} {k}": (entry, values)
        for entry in entries
        if len(points_of(entry)) > 1
        for k, values in enumerate(points_of(entry))
    }
    methods = [text_of(entry, values, label) for label, (entry, values) in points.items()]
    runs = yield from _runs(request.out / cell.name / "search", settings, methods, [SEARCH_SEED], request.jobs)
    best = {entry.name: first_of(entry) for entry in entries}
    scores = {run.head.label: _scores(experiment, run) for run in runs}
    for entry in entries:
        labels = [label for label, (one, _) in points.items() if one.name == entry.name]
        if labels:
            best[entry.name] = points[max(labels, key=lambda label: scores[label])][1]
    return best, runs


def _value(measure: Measure, run: Run) -> float:
    return math.nan if not len(run.round) else measure.of(run)


def _scores(experiment: Comparison, run: Run) -> tuple[float, ...]:
    """What a search compares, more is better: a run that diverged is last, however fast it was before; then the measure
    that is sought, and where it is a tie, as of a target that none reached, how the runs ended before other targets."""
    sought = experiment.measures[experiment.seek]
    order = sorted(experiment.measures, key=lambda measure: (measure is not sought, measure.goal is not None))
    values = [(measure, _value(measure, run)) for measure in order]
    better = [-math.inf if math.isnan(value) else value if measure.higher else -value for measure, value in values]
    return (float(run.head.status != "diverged"), *better)


def _runs(
    folder: Path, settings: Settings, methods: Sequence[str], seeds: Sequence[int], jobs: int
) -> Stages[list[Run]]:
    """A comparison in its folder, done or completed."""
    stated, request = folder.with_suffix(".json"), {"settings": dict(settings), "methods": list(methods)}
    if (folder / "compare.json").exists():
        if not _says(stated, request):
            raise UserError(
                f"{folder} holds the runs of other settings of this recipe, of another version perhaps; give another "
                "--out, or remove it"
            )
        planned = plan.plan_more(folder, jobs, settings, (), seeds, keep="model")
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(stated, request)
        try:
            planned = plan.plan_more(folder, jobs, settings, methods, seeds, keep="model")
        except UserError:
            stated.unlink()
            _remove_empty(folder)
            raise
    with plan.alone(planned):
        results = yield from plan.comparison(planned)
    for result in results:
        if result.status == "failed":
            raise UserError(f"{result.label}, seed {result.seed} in {folder} failed: {result.error}")
    return load_runs([folder])


def _says(path: Path, request: Mapping[str, Any]) -> bool:
    """Whether a file has these values, in whatever order."""
    try:
        return changed(request, json.loads(path.read_bytes())) is None
    except (OSError, ValueError):
        return False


def _remove_empty(folder: Path) -> None:
    """Leave no empty folders of a recipe that could not begin."""
    for path in (folder, *folder.parents[:4]):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _seconds(folder: Path) -> float:
    """Seconds that a run took, all parts."""
    try:
        return float(sum(json.loads(sums.text(folder / SECONDS)).values()))
    except (OSError, ValueError):
        return 0.0


def _fits(settings: Settings, methods: Sequence[str], out: Path) -> None:
    """Refuse what would not fit into memory or on the disk, before hours of other cells.

    Raises:
        UserError: a run could not start.
    """
    config = resolve_compare(from_nested({**settings, "methods": list(methods)}, "recipe"))
    for one in all_runs(config):
        prepare(one, out)
    forget_problem()
