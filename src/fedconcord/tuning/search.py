"""The search: trials in batches, halved from rung to rung, then the winners against each other with fresh seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from optuna.trial import TrialState

from fedconcord import settings as settings_module
from fedconcord.basis.errors import UserError
from fedconcord.jobs import Row
from fedconcord.runs import lock
from fedconcord.runs.callbacks import Callback, telling
from fedconcord.runs.final import MODEL
from fedconcord.runs.folder import read_description, shrink
from fedconcord.runs.outcome import Finished
from fedconcord.runs.plan import Planned, plan_comparison, plan_resumed_comparison, writing
from fedconcord.runs.pool import Crew, execute_all
from fedconcord.settings import canonical_text, read_method
from fedconcord.tuning.plan import Tuning
from fedconcord.tuning.rungs import Rung
from fedconcord.tuning.scores import Score, chosen, ranked, score_of
from fedconcord.tuning.space import Space, Values, text_of
from fedconcord.tuning.study import JOURNAL, Journal, batches, drawn, mended


class Watch(Protocol):
    """Who looks on: for a person, a bar and some lines."""

    def begin(self, planned: Sequence[Planned]) -> None:
        """These runs are next."""
        ...

    def see(self, number: int, event: Row | Finished | None) -> None:
        """As `runs.outcome.Progress`, of those runs."""
        ...

    def say(self, line: str) -> None:
        """A rung of a method is done."""
        ...


class Trial(NamedTuple):
    """One point of a method's space, as far as it went."""

    number: int
    values: Values
    scores: Mapping[int, Score]  # rounds -> score
    errors: tuple[str, ...]  # of runs that failed

    @property
    def rounds(self) -> int:
        """How far it went."""
        return max(self.scores)

    @property
    def last(self) -> Score:
        """After all its rounds."""
        return self.scores[self.rounds]


class Found(NamedTuple):
    """What came of one method."""

    space: Space
    trials: tuple[Trial, ...]
    best: Trial | None  # None where nothing is looked for, or no trial ended well


class InterruptedSearchError(KeyboardInterrupt):
    """Ctrl-C; the folder is usable as it is."""


@dataclass
class _Course:
    """One method's way through the search."""

    space: Space
    rungs: tuple[Rung, ...]
    journal: Journal
    values: list[Values] = field(default_factory=list)
    scores: list[dict[int, Score]] = field(default_factory=list)
    errors: list[list[str]] = field(default_factory=list)

    def ranked(self, tuning: Tuning, rounds: int) -> list[int]:
        """The trials that came so far, best first."""
        return ranked(self._there(rounds), tuning.objective)

    def chosen(self, tuning: Tuning) -> int:
        """The trial that is taken in the end."""
        return chosen(self._there(self.rungs[-1].rounds), tuning.objective)

    def _there(self, rounds: int) -> dict[int, Score]:
        return {number: scores[rounds] for number, scores in enumerate(self.scores) if rounds in scores}


@contextmanager
def alone(tuning: Tuning) -> Iterator[None]:
    """In the folder of the search, whose journal a killed process may have left half written."""
    with lock.held(tuning.folder):
        mended(tuning.folder / JOURNAL)
        yield


def search(tuning: Tuning, jobs: int, watch: Watch, crew: Crew) -> list[Found]:
    """Do all trials, or what is left of them; the same result wherever it was interrupted and whatever `jobs` is.

    Raises:
        InterruptedSearchError: by Ctrl-C.
    """
    if jobs > 1:  # the workers have their own
        settings_module.forget_problem()
    path, higher = tuning.folder / JOURNAL, tuning.objective.metric.higher
    courses = [
        _Course(space, tuning.rungs[space.method], Journal(path, space, higher))
        for space in tuning.spaces
        if space.places
    ]
    waiting = [(course, batches(course.rungs[0].trials)) for course in courses]
    for turn in range(max((len(each) for _, each in waiting), default=0)):
        now = {k: each[turn] for k, (_, each) in enumerate(waiting) if turn < len(each)}
        for k, batch in now.items():
            _draw(tuning, courses[k], batch)
        _go([(courses[k], list(batch)) for k, batch in now.items()], 0, tuning, jobs, watch, crew)
    for course in courses:
        watch.say(_said(tuning, course, 0))
    for step in range(1, max((len(course.rungs) for course in courses), default=0)):
        going = [(course, _go_on(tuning, course, step)) for course in courses if step < len(course.rungs)]
        _go(going, step, tuning, jobs, watch, crew)
        for course, _ in going:
            watch.say(_said(tuning, course, step))
    found = {course.space.method: _found(tuning, course) for course in courses}
    return [found.get(space.method) or Found(space, (), None) for space in tuning.spaces]


def _draw(tuning: Tuning, course: _Course, batch: range) -> None:
    """The values of a batch, which are those of the journal where it has them.

    Raises:
        UserError: it has others.
    """
    before = [course.values[number] for number in course.ranked(tuning, course.rungs[0].rounds)]
    for number, values in zip(batch, drawn(course.space, batch, before), strict=True):
        known = course.journal.values(number)
        if known is None:
            course.journal.begin(values)
        elif known != values:
            raise UserError(
                f"{tuning.folder / JOURNAL} has {known} for trial {number} of {course.space.method}, which the search "
                f"gives {values}: it is damaged, or of another version of fedconcord or Optuna; restore it or start "
                "the search again"
            )
    for number in batch:
        course.values.append(course.journal.values(number) or {})
        course.scores.append({})
        course.errors.append([])


def _go_on(tuning: Tuning, course: _Course, step: int) -> list[int]:
    """The trials of a rung: the best of the last one, and trial 0. The others keep their tables alone."""
    order = course.ranked(tuning, course.rungs[step - 1].rounds)
    others = [number for number in order if number != 0]
    going = sorted([0, *others[: course.rungs[step].trials - 1]])
    for number in order:
        if number not in going:
            course.journal.end(number, TrialState.PRUNED)
            _shrink(tuning, course, number)
    return going


def _shrink(tuning: Tuning, course: _Course, number: int) -> None:
    for seed in tuning.seeds:
        shrink(tuning.place(course.space, number, seed), MODEL)


def _go(
    going: Sequence[tuple[_Course, list[int]]], step: int, tuning: Tuning, jobs: int, watch: Watch, crew: Crew
) -> None:
    """Bring trials to a rung. Runs of one seed stand together, as a process keeps the clients of its last seed."""
    todo = [
        (course, number, seed)
        for seed in tuning.seeds
        for course, numbers in going
        for number in numbers
        if not _there(tuning.place(course.space, number, seed), course.rungs[step].rounds)
    ]
    planned = [
        tuning.run(course.space, course.values[number], number, seed, course.rungs[step].rounds)
        for course, number, seed in todo
    ]
    if planned:
        watch.begin(planned)
        results = execute_all(planned, jobs, watch.see, crew)
        if any(result.status == "interrupted" for result in results):
            raise InterruptedSearchError
        for (course, number, _), result in zip(todo, results, strict=True):
            if result.error is not None:
                course.errors[number].append(result.error)
    for course, numbers in going:
        rounds = course.rungs[step].rounds
        for number in numbers:
            places = [tuning.place(course.space, number, seed) for seed in tuning.seeds]
            course.scores[number][rounds] = score = score_of(places, tuning.objective, rounds)
            course.journal.report(number, rounds, score.value)


def _there(folder: Path, rounds: int) -> bool:
    """Whether a run went as far before, or further, or ended early."""
    if not (folder / "run.json").exists():
        return False
    said = read_description(folder)
    early = said["status"] == "diverged" or (said["status"] == "complete" and "stopped" in said)
    return early or bool(said["rounds_done"] >= rounds)


def _found(tuning: Tuning, course: _Course) -> Found:
    """What the last rung says; the journal is closed."""
    rounds = course.rungs[-1].rounds
    trials = tuple(
        Trial(number, values, course.scores[number], tuple(course.errors[number]))
        for number, values in enumerate(course.values)
    )
    best = trials[course.chosen(tuning)]
    for trial in trials:
        if trial.rounds == rounds:
            broken = bool(trial.last.broken)
            state = TrialState.FAIL if broken else TrialState.COMPLETE
            course.journal.end(trial.number, state, None if broken else trial.last.value)
            _shrink(tuning, course, trial.number)
    return Found(course.space, trials, None if best.last.broken else best)


def _said(tuning: Tuning, course: _Course, step: int) -> str:
    """How a method stands after a rung."""
    rung = course.rungs[step]
    order = course.ranked(tuning, rung.rounds)
    first = course.chosen(tuning) if rung == course.rungs[-1] else order[0]
    best = course.scores[first][rung.rounds]
    broken = sum(course.scores[number][rung.rounds].broken > 0 for number in order)
    lost = f", {broken} diverged or failed" if broken else ""
    if best.broken:
        return f"{course.space.method}, round {rung.rounds}: none of {len(order)} trials ends well"
    return (
        f"{course.space.method}, round {rung.rounds}: best of {len(order)} trials {shown(tuning, best)} with "
        f"{', '.join(f'{key} {value:g}' for key, value in course.values[first].items())}{lost}"
    )


def shown(tuning: Tuning, score: Score) -> str:
    """A score in words."""
    from fedconcord.report.format import value

    metric, target = tuning.objective.metric, tuning.objective.target
    found = f"{metric.title} {value(metric, score.value)}"
    if target is None or score.broken:
        return found
    if score.reached is None:
        return f"{found}, short of {target:g}"
    return f"{found}, {score.reached:.3g} rounds to {target:g}"


def refuse_none(found: Sequence[Found]) -> None:
    """Go no further where nothing was found.

    Raises:
        UserError: methods were tuned, and no trial of any ended well.
    """
    tuned = [one for one in found if one.trials]
    if tuned and all(one.best is None for one in tuned):
        errors = [error for one in tuned for trial in one.trials for error in trial.errors]
        why = f", the first because: {errors[0]}" if errors else ": all diverged; search smaller step sizes"
        raise UserError(f"no trial of any method ended well{why}")


def winner(tuning: Tuning, found: Found) -> str | None:
    """The text of a method as it goes into the final comparison; None where no trial ended well."""
    if found.space.places:
        return None if found.best is None else text_of(tuning.config, found.space.method, found.best.values)
    return found.space.method


def winners(tuning: Tuning, found: Sequence[Found]) -> dict[str, str]:
    """Method as it was asked for -> its text in the final comparison, where a trial ended well.

    Reports call a method that was tuned by its bare name, where no other has that: its values are long.
    """
    texts: dict[str, str] = {}
    bare = Counter(read_method(one.space.method)[0].name for one in found)
    for one in found:
        text = winner(tuning, one)
        if text is None or text in texts.values():
            continue
        call, overrides = read_method(text)
        if one.space.places and bare[call.name] == 1:
            text = canonical_text(tuning.config, call, {"label": call.name, **overrides})
        texts[one.space.method] = text
    return texts


def final(
    tuning: Tuning, found: Sequence[Found], jobs: int, watch: Watch, crew: Crew, callbacks: Sequence[Callback]
) -> tuple[Path, list[Finished]]:
    """The winners compared with seeds that tuning did not use, an ordinary comparison in the folder `final`.

    `callbacks` are told of its runs.

    Raises:
        InterruptedSearchError: by Ctrl-C.
        UserError: every run failed.
    """
    folder = tuning.folder / "final"
    if (folder / "compare.json").exists():
        _, planned, _ = plan_resumed_comparison(folder, jobs)
    else:
        engine = tuning.config.engine.model_copy(update={"threads": tuning.trial.engine.threads})
        nested = tuning.config.model_copy(update={"engine": engine}).as_dict() | {
            "methods": list(winners(tuning, found).values()),
            "seeds": tuning.asked.final_seeds,
            "out": str(folder),
        }
        _, planned, _ = plan_comparison(jobs, settings_module.from_nested(nested, "tune"))
    with writing(folder, planned):
        watch.begin(planned)
        tell = telling(planned, folder, callbacks)

        def see(number: int, event: Row | Finished | None) -> None:
            watch.see(number, event)
            tell(number, event)

        results = execute_all(planned, jobs, see, crew)
    if any(result.status == "interrupted" for result in results):
        raise InterruptedSearchError
    if all(result.status == "failed" for result in results):
        raise UserError(f"every run of the final comparison failed, the first because: {results[0].error}")
    return folder, results
