"""A recipe done: its grid tried, each method at its best compared over seeds, what is there already not repeated.

A recipe's folder: CELL/search and CELL/final are comparisons as `fedconcord compare` leaves them, what was asked of
them is in the JSON file beside; done.json holds the values that the page is written from, and is written after every
run. Runs whose values are known, from there or from a folder of values, and choices of a grid that was tried are not
made again, nor are single points of one, so that a grid may be lengthened. The grid is tried with one seed of its own
and judged by the measures on the test set, as the papers did; the first that tells two settings apart decides.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fedconcord
from fedconcord.execution.run import lock
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
from fedconcord.study.statistics.load import Run, show
from fedconcord.support import files, process
from fedconcord.support.errors import UserError, unknown
from fedconcord_papers.recipes.grid import (
    first_of,
    in_turn,
    measured,
    points_of,
    rounds_left,
    scores,
    text_of,
    value_of,
)
from fedconcord_papers.recipes.ledger import Keeper, Ledger, alike, plain
from fedconcord_papers.recipes.recipe import Cell, Comparison, Entry, Recipe, Settings, Size, SizeName, Study
from fedconcord_papers.recipes.recipe import names_of as entry_names
from fedconcord_papers.recipes.values import Done, Spell, Value, file_of

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
    values: Path | None = None  # folder of values by recipe and size, NAME-SIZE.json: read, and written like done.json

    @property
    def size(self) -> Size:
        return self.recipe.sizes[self.size_name]

    @property
    def every_seed(self) -> list[int]:
        return list(self.size.seeds if self.seeds is None else self.seeds)

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
    experiment = request.recipe.experiment
    ledger = ledger_of(request, watch.say)
    for path in ledger.paths:
        with lock.held(path.parent):  # refused before the work where it could not be put down
            pass
    if isinstance(experiment, Comparison):
        keeper = Keeper(watch, ledger)
        carry_out(_compare(request, experiment, keeper), request.jobs, keeper)
    elif request.cells is not None or request.seeds is not None:
        raise UserError(f"{request.recipe.name} is no comparison of cells over seeds; leave --cells and --seeds out")
    elif is_known(request, ledger):
        watch.say(f"{request.recipe.name}: its values are known")
    else:
        _study(request, experiment, ledger, watch.say)
    ledger.write()
    return ledger.done()


def ledger_of(request: RecipeSpec, say: Callable[[str], None]) -> Ledger:
    """What is known of a recipe.

    Raises:
        UserError: a file of values cannot be read.
    """
    recipe, size, experiment = request.recipe, request.size, request.recipe.experiment
    paths = [request.out / DONE]
    if request.values is not None:
        paths.insert(0, file_of(request.values, recipe.name, request.size_name))

    def command(cells: Sequence[str], seeds: Sequence[int]) -> str:
        if not isinstance(experiment, Comparison):
            return request._replace(cells=None, seeds=None).command
        every = [cell.name for cell in cells_of(request._replace(cells=None), experiment)]
        return request._replace(
            cells=None if set(every) <= {*cells} else cells, seeds=None if {*seeds} == {*size.seeds} else seeds
        ).command

    order = None
    if isinstance(experiment, Comparison):
        measures = [measure.name for measure in experiment.measures]
        order = measures, [cell.name for cell in experiment.cells], entry_names(experiment)
    began, machine = time.strftime("%Y-%m-%dT%H:%M", time.gmtime()), process.machine()
    spell = Spell(began=began, seconds=0.0, runs=0, machine=machine, version=fedconcord.__version__)
    return Ledger(recipe.name, request.size_name, paths, order, command, spell, say)


def is_known(request: RecipeSpec, ledger: Ledger) -> bool:
    """Whether a study was made as it is now."""
    options = plain(request.size.options)
    return bool(ledger.rows) and all(alike(one["settings"], options) for one in ledger.requests.values())


def _study(request: RecipeSpec, study: Study, ledger: Ledger, say: Callable[[str], None]) -> None:
    """Do what is no comparison."""
    options, at = plain(request.size.options), time.perf_counter()
    if ledger.rows:
        say(f"{request.recipe.name}: the values that are there are of other settings, and are replaced")
    values = study.run(request.out, request.size_name, request.size.options, say)
    ledger.clear()
    for cell in values.cells():
        ledger.open(cell, options)
    ledger.put(values.rows)
    ledger.count(len({(row.cell, row.entry, row.seed) for row in values.rows}), time.perf_counter() - at)


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


def _compare(request: RecipeSpec, experiment: Comparison, keeper: Keeper) -> Stages[None]:
    """Search and compare in every cell, as far as it is not known."""
    cells, by_name = cells_of(request, experiment), {cell.name: cell for cell in experiment.cells}
    if request.size_name == "paper":
        for name, settings, texts in planned_texts(request):
            cell = by_name[name]
            home = by_name[cell.tuned_in or name]
            if search_left(request, experiment, home, keeper.ledger) or final_left(
                request, experiment, cell, home, keeper.ledger
            ):
                _fits(settings, texts, request.out)
    for cell in cells:
        home = by_name[cell.tuned_in or cell.name]
        yield from _search(request, experiment, home, keeper)
        yield from _final(request, experiment, cell, home, keeper)


def search_left(request: RecipeSpec, experiment: Comparison, cell: Cell, ledger: Ledger) -> list[Entry]:
    """The methods of a cell of whose grid it is not known which point is the best."""
    size, entries = request.size, entries_of(request.size, experiment, cell)
    sought = [entry for entry in entries if size.search is not None and len(points_of(entry)) > 1]
    ledger.open(cell.name, plain(settings_of(experiment, size, cell)), [entry.name for entry in entries])
    ledger.open_search(cell.name, plain(size.search) if size.search is not None and sought else None)
    for entry in entries:
        if entry not in sought:
            ledger.choose(cell.name, entry.name, first_of(entry), {}, text_of(entry, first_of(entry), entry.name))
    choices = [(entry, ledger.choice(cell.name, entry.name, plain(entry.grid))) for entry in sought]
    return [
        entry
        for entry, choice in choices
        if choice is None or ledger.method(cell.name, entry.name) != text_of(entry, choice, entry.name)
    ]


def final_left(
    request: RecipeSpec, experiment: Comparison, cell: Cell, home: Cell, ledger: Ledger
) -> list[tuple[str, int]]:
    """(method, seed) of the runs of a cell whose values are not known, with what was chosen at home."""
    entries = entries_of(request.size, experiment, cell)
    ledger.open(cell.name, plain(settings_of(experiment, request.size, cell)), [entry.name for entry in entries])
    for entry in entries:
        values = ledger.best.get(home.name, {}).get(entry.name, first_of(entry))
        ledger.name(cell.name, entry.name, text_of(entry, values, entry.name))
    measures = [measure.name for measure in experiment.measures]
    return [
        (entry.name, seed)
        for entry in entries
        for seed in request.every_seed
        if not ledger.has(cell.name, entry.name, seed, measures)
    ]


def _search(request: RecipeSpec, experiment: Comparison, cell: Cell, keeper: Keeper) -> Stages[None]:
    """Choose of every grid of a cell; methods without a choice are not run."""
    size, ledger, settings = request.size, keeper.ledger, settings_of(experiment, request.size, cell)
    unknown = search_left(request, experiment, cell, ledger)
    if not unknown:
        return
    points = {
        f"{entry.name} {k}": (entry, values)
        for entry in entries_of(size, experiment, cell)
        if len(points_of(entry)) > 1
        for k, values in enumerate(points_of(entry))
    }
    texts = {label: text_of(entry, values, entry.name) for label, (entry, values) in points.items()}
    lists = [[label for label, (one, _) in points.items() if one.name == entry.name] for entry in unknown]
    peers = {label: labels for labels in lists for label in labels}  # all points of its method
    results: dict[str, tuple[float, ...]] = {}

    def take(label: str, point: Mapping[str, float]) -> None:
        results[label] = scores(experiment, point)
        entry, labels = points[label][0], peers[label]
        if results.keys() >= {*labels}:
            best = max(labels, key=lambda label: results[label])
            values = points[best][1]
            ledger.choose(cell.name, entry.name, values, plain(entry.grid), texts[best])
            words = ", ".join(f"{k.removeprefix('local.')} {show(v)}" for k, v in values.items())
            keeper.say(f"  {entry.name}: {words}")

    def keep(run: Run) -> None:
        point = measured(experiment, run)
        ledger.put_point(cell.name, texts[run.head.label], point)
        take(run.head.label, point)

    keeper.say(f"{cell.title}: the grid")
    keeper.keep = keep
    for label in peers:
        if point := ledger.point(cell.name, texts[label]):
            take(label, point)
    methods = {label: text_of(entry, values, label) for label, (entry, values) in points.items()}
    settings |= size.search or {}
    folder = request.out / cell.name / "search"
    ends = bool(settings.get("eval.stop_at_target"))
    runs = [(label, SEARCH_SEED) for label in in_turn(lists) if label not in results]
    if len(runs) < len(peers):
        keeper.say(f"  {len(peers) - len(runs)} of {len(peers)} points are known")

    def worth(label: str) -> float:
        return rounds_left(results[one] for one in peers[label] if one in results) if ends else math.inf

    if runs:
        yield from _runs(folder, settings, list(methods.values()), [SEARCH_SEED], request.jobs, runs, worth)


def _final(request: RecipeSpec, experiment: Comparison, cell: Cell, home: Cell, keeper: Keeper) -> Stages[None]:
    """Compare the methods of a cell, each at the best that was found at home."""
    ledger, settings = keeper.ledger, settings_of(experiment, request.size, cell)
    missing = final_left(request, experiment, cell, home, ledger)
    methods = ledger.requests[cell.name]["methods"]
    runs = len(methods) * len(request.every_seed)
    if not missing:
        keeper.say(f"{cell.title}: the values of all {runs} runs are known")
        return
    there = "" if len(missing) == runs else f"; {runs - len(missing)} of {runs} runs are known"
    keeper.say(f"{cell.title}: the comparison{there}")
    keeper.keep = lambda run: ledger.put(
        [Value(one.name, cell.name, run.head.label, run.head.seed, value_of(one, run)) for one in experiment.measures]
    )
    texts = [methods[entry.name] for entry in entries_of(request.size, experiment, cell)]
    yield from _runs(request.out / cell.name / "final", settings, texts, request.every_seed, request.jobs, missing)


def _runs(
    folder: Path,
    settings: Settings,
    methods: Sequence[str],
    seeds: Sequence[int],
    jobs: int,
    runs: Sequence[tuple[str, int]],
    worth: Callable[[str], float] | None = None,
) -> Stages[None]:
    """A comparison in its folder, done or completed: of its methods and seeds these runs, in this order, each
    with the rounds that it is worth at most when it begins."""
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
    entries = {(str(one.config.label), one.config.seed or 0): one for one in planned.entries}
    in_order = [entries[run]._replace(worth=worth and partial(worth, run[0])) for run in runs]
    planned = planned._replace(entries=in_order)
    with plan.alone(planned):
        results = yield from plan.comparison(planned)
    for result in results:
        if result.status == "failed":
            raise UserError(f"{result.label}, seed {result.seed} in {folder} failed: {result.error}")


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


def _fits(settings: Settings, methods: Sequence[str], out: Path) -> None:
    """Refuse what would not fit into memory or on the disk, before hours of other cells.

    Raises:
        UserError: a run could not start.
    """
    config = resolve_compare(from_nested({**settings, "methods": list(methods)}, "recipe"))
    for one in all_runs(config):
        prepare(one, out)
    forget_problem()
