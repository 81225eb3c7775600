"""Optuna: what is tried next, and at the end a journal of all trials that its own tools read.

Values are drawn in batches whose size does not depend on how many trials run at once, each by a sampler made anew from
a seed, the batch's number and the ranks of the trials before it. So the same trials come whatever the number of
processes and wherever the search was interrupted. Halving is this package's (`rungs`): Optuna's own pruner decides by
which trial was first.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedconcord.tuning.results import MethodSearch, Trial
from fedconcord.tuning.space import Space, Values

JOURNAL = "study.journal"
FIRST, NEXT = 4, 4  # trials of the first batch at least, and of every later one


def batches(trials: int) -> list[range]:
    """The numbers of the trials of each batch: first half of them, spread over the space, then by what was found."""
    first = min(trials, max(FIRST, trials // 2))
    return [range(first), *(range(k, min(k + NEXT, trials)) for k in range(first, trials, NEXT))]


def drawn(space: Space, batch: range, before: Sequence[Values]) -> list[Values]:
    """The values of a batch's trials, three digits each; `before` are those of the trials until then, best first.

    The first batch is where the job stands and a scrambled Sobol sequence, the same one for every method. Later ones
    are of a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), which looks at ranks alone.
    """
    if space.points:
        return [space.points[number] for number in batch]
    first: list[Values] = [] if before else [space.start]
    missing = len(batch) - len(first)
    if missing == 0 or not space.places:
        return first
    with _quiet():
        sampler: optuna.samplers.BaseSampler
        if before:
            seed = zlib.crc32(f"{space.method}/{batch.start}".encode())
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=True)
        else:
            sampler = optuna.samplers.QMCSampler(scramble=True, seed=0)
        study, where = optuna.create_study(sampler=sampler), _distributions(space)
        for rank, values in enumerate(before or [space.start]):
            study.add_trial(create_trial(params=dict(values), distributions=where, value=float(rank)))
        draws = [study.ask(where).params for _ in range(missing)]
    return [*first, *({key: _short(value, where[key]) for key, value in params.items()} for params in draws)]


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    return {key: FloatDistribution(at.low, at.high, log=at.scale == "log") for key, at in space.places.items()}


def _short(value: float, where: BaseDistribution) -> float:
    """Three digits, as a person would write it down, within the range."""
    assert isinstance(where, FloatDistribution)
    return min(max(float(f"{value:.3g}"), where.low), where.high)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's lines on stderr and its notices of what is experimental there."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def write_journal(path: Path, searches: Sequence[MethodSearch], higher: bool) -> None:
    """All trials for Optuna's own tools: a study a method, with a trial's values and its score at every rung."""
    path.unlink(missing_ok=True)
    direction: Literal["maximize", "minimize"] = "maximize" if higher else "minimize"
    with _quiet():
        storage = JournalStorage(JournalFileBackend(str(path)))
        for search in searches:
            if search.trials:
                study = optuna.create_study(study_name=search.space.method, storage=storage, direction=direction)
                study.add_trials([_recorded(search, trial) for trial in search.trials])


def _recorded(search: MethodSearch, trial: Trial) -> FrozenTrial:
    last, is_pruned = trial.last, trial.rounds < max(one.rounds for one in search.trials)
    return create_trial(
        state=TrialState.PRUNED if is_pruned else TrialState.FAIL if last.broken else TrialState.COMPLETE,
        value=None if is_pruned or last.broken else last.value,
        params=dict(trial.values),
        distributions=_distributions(search.space),
        intermediate_values={k: score.value for k, score in trial.scores.items() if math.isfinite(score.value)},
    )
