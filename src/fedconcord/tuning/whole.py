"""From a planned search to all that it leaves, and what callers get of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedconcord.jobs import Row
from fedconcord.runs.callbacks import Callback
from fedconcord.runs.outcome import Finished
from fedconcord.runs.plan import Planned
from fedconcord.runs.pool import Crew
from fedconcord.tuning.edges import Edge, edges
from fedconcord.tuning.page import write_all
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.remarks import remarks
from fedconcord.tuning.search import Found, InterruptedSearchError, Watch, alone, final, refuse_none, search, winner

__all__ = ["InterruptedSearchError", "Lines", "Tuned", "TunedMethod", "Watch", "tuned"]


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


class Lines(NamedTuple):
    """A `Watch` that passes the lines on."""

    say: Callable[[str], None]

    def begin(self, planned: Sequence[Planned]) -> None:
        """Nothing."""

    def see(self, number: int, event: Row | Finished | None) -> None:
        """Nothing."""


def tuned(tuning: Tuning, jobs: int, watch: Watch, callbacks: Sequence[Callback] = ()) -> Tuned:
    """Do a search, or what is left of it: trials, final comparison, files.

    Args:
        callbacks: are told of the runs of the final comparison.

    Raises:
        InterruptedSearchError: by Ctrl-C.
        UserError: no trial ended well, or no run of the final comparison.
    """
    with alone(tuning), Crew() as crew:
        found = search(tuning, jobs, watch, crew)
        refuse_none(found)
        _, runs = final(tuning, found, jobs, watch, crew, callbacks)
        page = write_all(tuning, found)
    methods = [_method(tuning, one) for one in found]
    return Tuned(tuning.folder, tuning.objective.metric.column, methods, runs, page)


def _method(tuning: Tuning, found: Found) -> TunedMethod:
    untuned = found.trials[0].last if found.trials else None
    return TunedMethod(
        found.space.method,
        winner(tuning, found),
        {} if found.best is None else found.best.values,
        None if found.best is None else found.best.last.value,
        None if untuned is None or untuned.broken else untuned.value,
        edges(tuning.config, found),
        remarks(tuning, found),
    )
