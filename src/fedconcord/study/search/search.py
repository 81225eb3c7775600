"""The search: trials in batches, halved from rung to rung, then the winners against each other with fresh seeds.

Optuna draws what is tried next, and at the end a journal of all trials is left that its own tools read. Values are
drawn in batches whose size does not depend on how many trials run at once, each by a sampler made anew from a seed, the
batch's number and the ranks of the trials before it. So the same trials come whatever the number of processes and
wherever the search was interrupted. Halving is this package's (`scores`): Optuna's own pruner decides by which trial
was first.
"""

from __future__ import annotations

import itertools
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedconcord.execution.run import lock
from fedconcord.execution.run.final_model import MODEL
from fedconcord.execution.run.folder import read_description, shrink
from fedconcord.study.runs.events import Entry, Finished, Stage
from fedconcord.study.runs.plan import alone, comparison, plan_more
from fedconcord.study.runs.pool import Stages
from fedconcord.study.search.plan import Tuning
from fedconcord.study.search.scores import (
    Edge,
    MethodSearch,
    Rung,
    Score,
    Trial,
    below,
    chosen,
    edges,
    extend_words,
    finalists,
    ranked,
    score_of,
    shown,
    winner,
)
from fedconcord.study.search.space import Space, Values
from fedconcord.study.statistics.format import value
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import flatten

# -- values of trials, and Optuna's journal of them ----------------------------------------------------------------

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


# -- the search ----------------------------------------------------------------------------------------------------

Say = Callable[[str], None]


class _Ladder(NamedTuple):
    """One method's way up its rungs."""

    space: Space
    rungs: tuple[Rung, ...]
    trials: list[Trial]

    def at(self, step: int) -> dict[int, Score]:
        """The scores of the trials that came to a rung."""
        rounds = self.rungs[step].rounds
        return {trial.number: trial.scores[rounds] for trial in self.trials if rounds in trial.scores}


def search(tuning: Tuning, say: Say) -> Stages[list[MethodSearch]]:
    """All trials; `say` gets a line a method and rung."""
    ladders = [_Ladder(space, tuning.rungs[space.method], []) for space in tuning.spaces if space.places]
    waiting = [(ladder, batches(ladder.rungs[0].trials)) for ladder in ladders]
    for turn in range(max((len(parts) for _, parts in waiting), default=0)):
        batch = [(ladder, parts[turn]) for ladder, parts in waiting if turn < len(parts)]
        for ladder, numbers in batch:
            before = [ladder.trials[number].values for number in ranked(ladder.at(0), tuning.objective)]
            values = drawn(ladder.space, numbers, before)
            ladder.trials.extend(Trial(number, one, {}, []) for number, one in zip(numbers, values, strict=True))
        yield from _climb(tuning, batch, 0)
    for ladder in ladders:
        say(_standing(tuning, ladder, 0))
    for step in range(1, max((len(ladder.rungs) for ladder in ladders), default=0)):
        going = [(ladder, _survivors(tuning, ladder, step)) for ladder in ladders if step < len(ladder.rungs)]
        yield from _climb(tuning, going, step)
        for ladder, _ in going:
            say(_standing(tuning, ladder, step))
    searches = {}
    for ladder in ladders:
        best = ladder.trials[chosen(ladder.at(-1), tuning.objective)]
        _shrink(tuning, ladder, ladder.at(-1))
        searches[ladder.space.method] = MethodSearch(ladder.space, ladder.trials, None if best.last.broken else best)
    return [searches.get(space.method) or MethodSearch(space, (), None) for space in tuning.spaces]


def _survivors(tuning: Tuning, ladder: _Ladder, step: int) -> list[int]:
    """The trials of a rung: the best of the last one, and trial 0. The others keep their tables alone."""
    order = ranked(ladder.at(step - 1), tuning.objective)
    others = [number for number in order if number != 0]
    survivors = sorted([0, *others[: ladder.rungs[step].trials - 1]])
    _shrink(tuning, ladder, set(order) - {*survivors})
    return survivors


def _shrink(tuning: Tuning, ladder: _Ladder, numbers: Iterable[int]) -> None:
    for number, seed in itertools.product(numbers, tuning.seeds):
        shrink(tuning.place(ladder.space, number, seed), MODEL)


def _climb(tuning: Tuning, going: Sequence[tuple[_Ladder, Sequence[int]]], step: int) -> Stages[None]:
    """Bring trials to a rung. Runs of one seed stand together, as a process keeps the clients of its last seed."""
    runs = [(ladder, ladder.trials[k], seed) for seed in tuning.seeds for ladder, numbers in going for k in numbers]
    entries = [
        tuning.entry(ladder.space, trial.values, trial.number, seed, ladder.rungs[step].rounds)._replace(
            keep="tables" if ladder.rungs[step] == ladder.rungs[-1] else "all"
        )
        for ladder, trial, seed in runs
    ]
    for entry in entries:
        _refuse_other_values(entry)
    results = yield Stage(entries, tuning.folder, is_result=False)
    for (_, trial, _), result in zip(runs, results, strict=True):
        if result.error is not None:
            trial.errors.append(result.error)
    for ladder, numbers in going:
        rounds = ladder.rungs[step].rounds
        for number in numbers:
            places = [tuning.place(ladder.space, number, seed) for seed in tuning.seeds]
            ladder.trials[number].scores[rounds] = score_of(places, tuning.objective, rounds)


def _refuse_other_values(entry: Entry) -> None:
    """Refuse to go on with a trial of other values.

    Raises:
        UserError: its folder has other values.
    """
    if not (entry.folder / "run.json").exists():
        return
    stored, now = flatten(read_description(entry.folder)["config"]), flatten(entry.config.as_dict())
    for key, setting in now.items():
        if key.startswith(("algorithm.", "local.")) and key in stored and stored[key] != setting:
            raise UserError(
                f"{entry.folder} has {key} {stored[key]}, and the search gives it {setting}: it is damaged, or of "
                "another version of fedconcord or Optuna; restore it or start the search again"
            )


def _standing(tuning: Tuning, ladder: _Ladder, step: int) -> str:
    """How a method stands after a rung."""
    rung, scores = ladder.rungs[step], ladder.at(step)
    is_last = rung == ladder.rungs[-1]
    first = chosen(scores, tuning.objective) if is_last else ranked(scores, tuning.objective)[0]
    broken = sum(score.broken > 0 for score in scores.values())
    lost = f", {broken} diverged or failed" if broken else ""
    where = f"{ladder.space.method}, round {rung.rounds}"
    if scores[first].broken:
        return f"{where}: none of {len(scores)} trials ends well"
    values = ", ".join(f"{key} {number:g}" for key, number in ladder.trials[first].values.items())
    return f"{where}: best of {len(scores)} trials {shown(tuning.objective, scores[first])} with {values}{lost}"


def final(tuning: Tuning, searches: Sequence[MethodSearch], jobs: int) -> Stages[list[Finished]]:
    """The winners compared with seeds that tuning did not use, an ordinary comparison in the folder `final`.

    Raises:
        UserError: every run failed.
    """
    folder = tuning.folder / "final"
    engine = tuning.config.engine.model_copy(update={"threads": tuning.trial.engine.threads})
    methods, baselines = finalists(tuning.config, searches)
    nested = tuning.config.model_copy(update={"engine": engine, "baselines": baselines}).as_dict()
    planned = plan_more(folder, jobs, nested, methods, tuning.spec.final_seeds or (), keep="all")
    with alone(planned):
        results = yield from comparison(planned)
    if all(result.status == "failed" for result in results):
        raise UserError(f"every run of the final comparison failed, the first because: {results[0].error}")
    return results


def remarks(tuning: Tuning, search: MethodSearch) -> list[str]:
    """What to do about it: ranges to extend, a winner that was better in an earlier rung, or nothing that ended well.

    Sentences of the command and of the page.
    """
    if search.best is None:
        none = "no trial ended well, so it is not in the comparison; search smaller values."
        return [none] if search.trials else []
    metric, scores, end = tuning.objective.metric, search.best.scores, search.best.last
    sign = 1.0 if metric.higher else -1.0
    peak = max(scores, key=lambda rounds: sign * scores[rounds].value)
    sentences = [*map(extend_words, edges(tuning.config, search))]
    if below(end, scores[peak], metric):
        last, before = value(metric, end.value), value(metric, scores[peak].value)
        fall = f"The best ends at {metric.title} {last}, worse than its own {before} at round {peak}"
        sentences.append(f"{fall}: stop earlier, or search smaller values.")
    return sentences


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
    methods: list[TunedMethod]  # in the order that was asked for, and baselines after them
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
        trials = [trial for one in searches for trial in one.trials]
        if trials and all(one.best is None for one in searches if one.trials):
            errors = [error for trial in trials for error in trial.errors]
            why = f", the first because: {errors[0]}" if errors else ": all diverged; search smaller step sizes"
            raise UserError(f"no trial of any method ended well{why}")
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
