"""A job trained in a folder, as tests of folders do it: everything of one run behind one call."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconcord.execution.job import Job, Row
from fedconcord.execution.run.final_model import NOTHING, RunOptions
from fedconcord.study.runs import training
from fedconcord.study.runs.events import Entry, Event, Finished
from fedconcord.study.runs.pool import Pool
from fedconcord.study.runs.training import prepare_job


def execute(
    job: Job,
    folder: Path,
    *,
    rounds: int,
    info: Mapping[str, Any],
    eval_every: int = 1,
    checkpoint_every: float = 30.0,
    resume: bool = False,
    on_row: Callable[[Row], None] | None = None,
    options: RunOptions = NOTHING,
) -> str:
    """The status of a run of a job in its folder."""
    length = training.RunLength(rounds, eval_every, checkpoint_every, resume)
    return training.train(prepare_job(job, folder, rounds), folder, length, info, on_row, options)


def execute_all(
    entries: Sequence[Entry], jobs: int = 1, tell: Callable[[Event], None] = lambda event: None
) -> list[Finished]:
    """The outcomes of runs, `jobs` at once."""
    with Pool(jobs) as pool:
        return pool.run(entries, tell)
