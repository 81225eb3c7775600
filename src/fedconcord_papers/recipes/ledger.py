"""What is known of a recipe at one size, put down after every run, so that any machine goes on where another was.

It is kept in the recipe's own folder and, where one is named, in a folder of values that is committed. A value counts
only under the settings and the method that its cell has now; values of others are replaced, and it is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedconcord.execution.run import lock
from fedconcord.execution.run.clock import NAME as SECONDS
from fedconcord.study.runs.events import Event, Stage, Watch
from fedconcord.study.statistics.load import NUMBERS, Run, load_runs
from fedconcord.support import sums
from fedconcord_papers.recipes.values import Done, Request, Spell, Value, Values, read

UNSEEN = ("engine.", "checkpoint.", "eval.clients")  # they change no number that a claim is about
T = TypeVar("T")
Command = Callable[[Sequence[str], Sequence[int]], str]


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back, that they can be compared with what was written."""
    as_read: dict[str, Any] = json.loads(json.dumps(dict(settings), default=list))
    return as_read


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on which values rest: all but where a run computes and what is kept of it."""
    return {key: value for key, value in settings.items() if key in NUMBERS or not key.startswith(UNSEEN)}


def alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether settings give the same values."""
    return relevant(a) == relevant(b)


class Ledger:
    """Values, choices and log of a recipe at one size.

    Args:
        paths: the files that are read at first, the later one before the earlier where they differ, and written.
        order: names of the measures, cells and entries that the recipe has, as the files have them in order; values of
            others are left out. None: of a study, whose cells are its own.
        command: what gives these cells and seeds.
        spell: the stretch of work that begins.
        say: is told which values are replaced.

    Raises:
        UserError: one of the files cannot be read.
    """

    def __init__(
        self,
        recipe: str,
        size: str,
        paths: Sequence[Path],
        order: tuple[Sequence[str], Sequence[str], Sequence[str]] | None,
        command: Command,
        spell: Spell,
        say: Callable[[str], None],
    ) -> None:
        self.recipe, self.size, self.paths, self.order, self.command, self.say = (
            recipe,
            size,
            paths,
            order,
            command,
            say,
        )
        self.rows: dict[tuple[str, str, str, int], float] = {}  # by measure, cell, entry and seed
        self.best: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.grids: dict[str, dict[str, Mapping[str, Sequence[Any]]]] = {}
        self.points: dict[str, dict[str, Mapping[str, float]]] = {}  # of every grid, by cell and method
        self.requests: dict[str, Request] = {}
        self.log: dict[tuple[str, str], Spell] = {}
        self.mine: set[str] = set()  # cells that this process works on
        self.spell = spell["began"], spell["machine"]
        for path in paths:
            if path.exists():
                self._take(read(path))
        self.is_first = not self.log
        self.log.setdefault(self.spell, spell)

    def _take(self, other: Done) -> None:
        """Take what another file has, but for the cells that this process works on. Of a cell with two settings those
        count of the file that was worked on last."""
        is_older = _last(other.log) < _last(self.log.values())
        for spell in other.log:
            key = spell["began"], spell["machine"]
            if key not in self.log or self.log[key]["runs"] < spell["runs"]:
                self.log[key] = spell
        stale = set[str]()
        for cell in dict.fromkeys([*other.asked, *other.values.cells()]):
            if cell in self.mine or (self.order is not None and cell not in self.order[1]):
                continue
            request = other.asked.get(cell, Request(settings={}, methods={}))
            before = self.requests.get(cell, request)
            if not alike(before["settings"], request["settings"]):
                if is_older:
                    stale.add(cell)
                    continue
                self._drop(cell)
                before = request
            if before.get("search") != request.get("search"):
                self._drop_search(cell)
            for entry, method in request["methods"].items():
                if before["methods"].get(entry, method) != method:
                    self._drop(cell, entry)
            self.requests[cell] = Request(**{**request, "methods": {**before["methods"], **request["methods"]}})
            self.best[cell] = {**self.best.get(cell, {}), **other.chosen.get(cell, {})}
            self.grids[cell] = {**self.grids.get(cell, {}), **other.tried.get(cell, {})}
            self.points[cell] = {**self.points.get(cell, {}), **other.points.get(cell, {})}
        for row in other.values.rows:
            is_known = self.order is None or (row.measure in self.order[0] and row.cell in self.order[1])
            if row.cell not in self.mine | stale and is_known:
                self.rows[row[:4]] = row.value

    def _drop(self, cell: str, entry: str | None = None) -> bool:
        """Forget the values of a cell, or of one entry there; whether there were any."""
        keys = [key for key in self.rows if key[1] == cell and entry in (None, key[2])]
        for key in keys:
            del self.rows[key]
        if entry is None:
            self._drop_search(cell)
            self.requests.pop(cell, None)
        return bool(keys)

    def _drop_search(self, cell: str) -> None:
        """Forget what was chosen in a cell, and by what."""
        for each in (self.best, self.grids, self.points):
            each.pop(cell, None)

    def clear(self) -> None:
        """Forget the values of all cells, which are to be made anew."""
        self.mine |= self.requests.keys()
        for cell in [*self.requests]:
            self._drop(cell)

    # -- what is there -------------------------------------------------------------------------------------------------

    def open(self, cell: str, settings: Mapping[str, Any], entries: Sequence[str] | None = None) -> None:
        """Work on a cell: what is known of it under other settings, or of entries that it no longer has, goes."""
        before = self.requests.get(cell)
        if before is None or not alike(before["settings"], settings):
            if self._drop(cell):
                self.say(f"{cell}: the values that are there are of other settings, and are replaced")
            before = Request(settings={}, methods={})
        for entry in {key[2] for key in self.rows if key[1] == cell} - set(entries or ()):
            self._drop(cell, entry)
        methods = {name: text for name, text in before["methods"].items() if name in (entries or ())}
        self.requests[cell] = Request(**{**before, "settings": settings, "methods": methods})
        self.mine.add(cell)

    def open_search(self, cell: str, search: Mapping[str, Any] | None) -> None:
        """Choose in a cell that was opened: what was chosen by another search, or by none, is forgotten."""
        request = self.requests[cell]
        if request.get("search") != search:
            self._drop_search(cell)
        request.pop("search", None)
        if search is not None:
            request["search"] = search

    def choice(self, cell: str, entry: str, grid: Mapping[str, Sequence[Any]]) -> Mapping[str, Any] | None:
        """The best of a grid, if exactly that grid was tried."""
        is_same = self.grids.get(cell, {}).get(entry) == grid
        return self.best.get(cell, {}).get(entry) if is_same else None

    def point(self, cell: str, method: str) -> Mapping[str, float] | None:
        """What a point of a grid came to, if all measures of the recipe are known of it."""
        point = self.points.get(cell, {}).get(method, {})
        return point if self.order is not None and point.keys() >= {*self.order[0]} else None

    def method(self, cell: str, entry: str) -> str | None:
        """The method that an entry was."""
        return self.requests[cell]["methods"].get(entry)

    def put_point(self, cell: str, method: str, values: Mapping[str, float]) -> None:
        """What a point of a grid came to; of another grid too, while the search is the same."""
        self.points.setdefault(cell, {})[method] = values

    def choose(
        self, cell: str, entry: str, values: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], method: str
    ) -> None:
        """Put down the best of a grid, and the method with it; of an empty grid what is taken without a search."""
        self.best.setdefault(cell, {})[entry] = values
        self.grids.setdefault(cell, {}).pop(entry, None)
        if grid:
            self.grids[cell][entry] = grid
        self.name(cell, entry, method)

    def name(self, cell: str, entry: str, method: str) -> None:
        """Put down what an entry is in a cell; values of another method under its name go."""
        if self.method(cell, entry) not in (None, method) and self._drop(cell, entry):
            self.say(f"{cell}, {entry}: the values that are there are of another method, and are replaced")
        request = self.requests[cell]
        request["methods"] = {**request["methods"], entry: method}

    def has(self, cell: str, entry: str, seed: int, measures: Sequence[str]) -> bool:
        """Whether all measures of a run are known."""
        return all((measure, cell, entry, seed) in self.rows for measure in measures)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def put(self, rows: Sequence[Value]) -> None:
        """Values of a run."""
        self.rows.update({row[:4]: row.value for row in rows})

    def count(self, runs: int, seconds: float) -> None:
        """Runs of this stretch of work, and what they took."""
        spell = self.log[self.spell]
        spell["runs"] += runs
        spell["seconds"] += seconds

    def write(self) -> None:
        """Put everything down, beside what others have put down of other cells meanwhile.

        Raises:
            UserError: one of the files cannot be read any more, or another process keeps its folder.
        """
        for path in reversed(self.paths):  # the recipe's own folder first: a folder of values may be lost to us
            with lock.held(path.parent):
                if path.exists():
                    self._take(read(path))
                self.done().write(path)

    def done(self) -> Done:
        """All that is known, in the recipe's order."""
        rows = [Value(*key, value) for key, value in self.rows.items()]
        measures, cells, entries = map(_places, self.order or ([], [], []))
        if self.order is not None:
            rows.sort(key=lambda r: (cells[r.cell], measures[r.measure], entries.get(r.entry, 0), r.seed))
        values = Values(tuple(rows))
        grids = _sorted({cell: _sorted(of, entries) for cell, of in self.grids.items() if of}, cells)
        requests = {
            cell: Request(**{**one, "methods": _sorted(one["methods"], entries)}) for cell, one in self.requests.items()
        }
        return Done(
            self.recipe,
            self.size,
            values,
            _sorted({cell: _sorted(of, entries) for cell, of in self.best.items() if of}, cells),
            grids,
            _sorted(requests, cells),
            sum(math.prod(map(len, grid.values())) for of in grids.values() for grid in of.values()),
            sorted((spell for spell in self.log.values() if spell["runs"]), key=lambda spell: spell["began"]),
            self.command(values.cells(), sorted({row.seed for row in rows})),
            _sorted({cell: of for cell, of in self.points.items() if of}, cells),
        )


def _last(log: Iterable[Spell]) -> str:
    """When the last stretch of work began."""
    return max((spell["began"] for spell in log), default="")


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


def _sorted(of: Mapping[str, T], places: Mapping[str, int]) -> dict[str, T]:
    """By the recipe's order; as it is where it has none."""
    return dict(sorted(of.items(), key=lambda item: places.get(item[0], len(places))))


class Keeper(Watch):
    """Puts down every run of a recipe as it ends, and passes everything on to a watch before."""

    def __init__(self, watch: Watch, ledger: Ledger) -> None:
        self.begin, self.note, self.say = watch.begin, watch.note, watch.say  # type: ignore[method-assign]
        self.watch, self.ledger = watch, ledger
        self.keep: Callable[[Run], None] = lambda run: None  # what a run of this stage tells
        self.started = set[int]()

    def stage(self, stage: Stage) -> None:
        """Runs that are next."""
        self.watch.stage(stage)
        self.started.clear()

    def event(self, event: Event) -> None:
        """The end of a run that has values; what it took counts if it was at work now, or none was ever put down."""
        self.watch.event(event)
        if event.kind == "started":
            self.started.add(event.number)
        if event.kind == "ended" and event.result is not None and event.result.status in ("complete", "diverged"):
            (run,) = load_runs([event.result.folder])
            self.keep(run)
            if event.number in self.started or self.ledger.is_first:
                self.ledger.count(1, _seconds(run.folder))
            self.ledger.write()


def _seconds(folder: Path) -> float:
    """Seconds that a run took, all parts."""
    try:
        return float(sum(json.loads(sums.text(folder / SECONDS)).values()))
    except (OSError, ValueError):
        return 0.0
