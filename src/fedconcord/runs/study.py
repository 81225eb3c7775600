"""The one way in which many runs are done: a study yields stages of runs, and is sent what became of them.

A study is a generator. What it yields depends on its settings and on what it was sent alone, so that a study that was
cut off anywhere comes to the same stages when it is resumed, and no run of them is repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TypeVar

from fedconcord.runs.events import Finished, Stage, Watch
from fedconcord.runs.pool import Pool

T = TypeVar("T")
Stages = Generator[Stage, list[Finished], T]
"""Yields a stage, is sent the outcomes of its runs in their order, and returns the result of the study."""


class InterruptedStudyError(KeyboardInterrupt):
    """Ctrl-C. Every folder is usable as it is, and the same call or `resume` goes on."""

    def __init__(self, runs: Sequence[Finished]) -> None:
        super().__init__()
        self.runs = list(runs)  # the outcomes of the stage that was cut off


def carry_out(stages: Stages[T], jobs: int, watch: Watch) -> T:
    """Do a study, or what is left of it; the same result wherever it was interrupted and whatever `jobs` is.

    Raises:
        InterruptedStudyError: by Ctrl-C.
        UserError: whatever the study refuses.
    """
    with closing(stages), Pool(jobs) as pool:
        runs: list[Finished] | None = None
        while True:
            try:
                stage = next(stages) if runs is None else stages.send(runs)
            except StopIteration as end:
                result: T = end.value
                return result
            watch.stage(stage)
            runs = pool.run(stage.entries, watch.event)
            if any(run.status == "interrupted" for run in runs):
                raise InterruptedStudyError(runs)
