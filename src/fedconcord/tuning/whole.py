"""From a planned search to all that it leaves, and what callers get of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedconcord.runs import lock
from fedconcord.runs.events import Finished
from fedconcord.runs.study import Stages
from fedconcord.tuning.draws import JOURNAL, write_journal
from fedconcord.tuning.edges import Edge, edges
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.remarks import remarks
from fedconcord.tuning.results import MethodSearch, refuse_none, winner
from fedconcord.tuning.search import Say, final, search


class TunedMethod(NamedTuple):
    """What came of one method."""

    method: str  # as it was asked for
    best: str | None  # with its best values, as `compare` takes it; None: no trial ended well
    values: Mapping[str, float]  # the best, by key
    score: float | None  # of the best trial after all rounds; None: nothing was looked for, or none ended well
    untuned: float | None  # of the method as it was
    edges: Sequence[Edge]  # where the best is at the end of its range
    remarks: Sequence[str]  # what to do about it: ranges to extend, a best that fell, no trial that ended well


class Tuned(NamedTuple):
    """What came of a search."""

    folder: Path  # of the search
    metric: str  # that scores are of
    methods: list[TunedMethod]  # in the order that was asked for
    runs: list[Finished]  # of the final comparison
    report: Path  # of the search and the final comparison


def tuned(
    tuning: Tuning, jobs: int, say: Say, write: Callable[[Tuning, Sequence[MethodSearch]], Path]
) -> Stages[Tuned]:
    """A search as a study: trials, final comparison, files.

    Args:
        say: gets a line a method and rung.
        write: writes the report of the search and of the final comparison, and returns its path.

    Raises:
        UserError: no trial ended well, or no run of the final comparison.
    """
    with lock.held(tuning.folder):
        searches = yield from search(tuning, say)
        refuse_none(searches)
        runs = yield from final(tuning, searches, jobs)
        write_journal(tuning.folder / JOURNAL, searches, tuning.objective.metric.higher)
        page = write(tuning, searches)
    methods = [_method(tuning, one) for one in searches]
    return Tuned(tuning.folder, tuning.objective.metric.column, methods, runs, page)


def _method(tuning: Tuning, search: MethodSearch) -> TunedMethod:
    untuned = search.trials[0].last if search.trials else None
    return TunedMethod(
        search.space.method,
        winner(tuning.config, search),
        {} if search.best is None else search.best.values,
        None if search.best is None else search.best.last.value,
        None if untuned is None or untuned.broken else untuned.value,
        edges(tuning.config, search),
        remarks(tuning, search),
    )
