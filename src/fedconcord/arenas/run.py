"""An arena done, or what is left of it: federation by federation, FedAvg first, which sets the target, then every
method tuned for it and all compared with fresh seeds. What is there already is not repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedconcord import settings as settings_module
from fedconcord.arenas.federations import REFERENCE, Federation
from fedconcord.arenas.outcome import Entry, Result, Size, aim, outcome, targets
from fedconcord.arenas.plan import TUNING_SEEDS, Asked, Course, able, state
from fedconcord.basis.errors import UserError
from fedconcord.jobs import Row
from fedconcord.report.load import Run, load_runs
from fedconcord.runs import lock
from fedconcord.runs.final import MODEL
from fedconcord.runs.folder import shrink
from fedconcord.runs.outcome import Finished
from fedconcord.runs.plan import Planned, plan_more, writing
from fedconcord.runs.pool import Crew, execute_all
from fedconcord.tuning import Asked as TuningAsked
from fedconcord.tuning import Tuning, Watch, plan_resumed_tuning, plan_tuning
from fedconcord.tuning.plan import NAME as SEARCH
from fedconcord.tuning.scores import series
from fedconcord.tuning.search import Found, alone, search, winners


class Doing(NamedTuple):
    """What is asked for, and what it is done with."""

    asked: Asked
    watch: Watch
    say: Callable[[str], None]
    crew: Crew


class Searched(NamedTuple):
    """A method tuned in a federation."""

    tuning: Tuning
    found: Found

    @property
    def text(self) -> str | None:
        """The method with its best values; None: no trial ended well."""
        return winners(self.tuning, [self.found]).get(self.found.space.method)

    @property
    def words(self) -> str:
        """Its best values."""
        if not self.found.space.places:
            return "nothing to tune"
        best = self.found.best
        return "no trial ended well" if best is None else ", ".join(f"{k} {v:.3g}" for k, v in best.values.items())


def arena(asked: Asked, watch: Watch, say: Callable[[str], None]) -> list[Result]:
    """Do an arena, or what is left of it; a result a federation.

    Raises:
        UserError: a federation cannot run, or its folder holds something else.
        KeyboardInterrupt: by Ctrl-C; the same call goes on.
    """
    done = []
    with lock.held(asked.out), Crew() as crew:
        for number, federation in enumerate(asked.federations, 1):
            say(f"[{number}/{len(asked.federations)}] {federation.name}")
            done.append(_federation(Doing(asked, watch, say, crew), federation))
            settings_module.forget_problem()
    return done


def _federation(doing: Doing, federation: Federation) -> Result:
    asked, course = doing.asked, Course(federation, doing.asked.out / federation.folder)
    methods, refused = able(federation, asked.methods, course.folder)
    state(course, asked.budget)
    reference = _search(doing, course, f"{REFERENCE}(label={REFERENCE})", None)
    if reference.text is None:
        raise UserError(
            f"federation {federation.name}: {REFERENCE}, which sets the target, diverges or fails in every trial; "
            "give it a smaller local.lr, from which tuning begins"
        )
    base, _ = _compare(doing, course, [reference.text], reference=True)
    goals, trial_target = targets(federation.target, base), _trial_target(federation, reference)
    doing.say(f"  target: {goals} ({REFERENCE} with {reference.words})")
    tuned: dict[str, Searched] = {}
    for label, text in methods.items():
        tuned[label] = _search(doing, course, text, trial_target, label)
        doing.say(f"  {label}: {tuned[label].words}")
    runs, failed = _compare(doing, course, [one.text for one in tuned.values() if one.text is not None])
    entries = [Entry(label, one.text, bool(one.found.space.places)) for label, one in tuned.items()]
    first = base[0].head
    return Result(
        federation=federation,
        size=Size(first.data, first.model, first.clients, first.cohort, first.rounds),
        trial_target=trial_target,
        goals=goals,
        reference=reference.text,
        outcomes=tuple(outcome(entry, asked.seeds, runs, failed, base, goals) for entry in entries),
        refused=refused,
    )


def _search(doing: Doing, course: Course, text: str, target: float | None, label: str | None = None) -> Searched:
    """A method tuned for its final value, or for the rounds to a target of the metric that judges trials."""
    folder = course.reference if label is None else course.search(label)
    if (folder / SEARCH).exists():
        tuning = plan_resumed_tuning(folder, TuningAsked())
    else:
        nested = {**course.federation.nested, "methods": [text], "seeds": list(TUNING_SEEDS), "out": str(folder)}
        given = settings_module.from_nested(nested, f"federation {course.federation.name}")
        tuning = plan_tuning(TuningAsked(budget=doing.asked.budget, target=target), given)
    with alone(tuning):
        (found,) = search(tuning, doing.asked.jobs, _Quiet(doing.watch), doing.crew)
    return Searched(tuning, found)


def _trial_target(federation: Federation, reference: Searched) -> float:
    """What trials are to reach, in the metric that judges them: the rule's, of its seeds the one that is worse."""
    rule, tuning, best = federation.target, reference.tuning, reference.found.best
    if not rule.by_reference:
        return rule.value
    assert best is not None  # the step size is looked for, and `text` is there
    metric = tuning.objective.metric
    found = []
    for seed in tuning.seeds:
        there = series(tuning.place(reference.found.space, best.number, seed), metric.column, tuning.config.rounds)
        assert there is not None  # the best trial ended well on every seed
        found.append(aim(there[1], metric, rule.value))
    return min(found) if metric.higher else max(found)


def _compare(
    doing: Doing, course: Course, texts: Sequence[str], reference: bool = False
) -> tuple[list[Run], dict[tuple[str, int], str]]:
    """(runs, why others failed by label and seed) of a comparison: a new one, or the one that is there with what it
    lacks."""
    asked = doing.asked
    folder = course.reference_runs if reference else course.final
    folder, planned, jobs = plan_more(folder, asked.jobs, course.federation.nested, texts, asked.seeds)
    with writing(folder, planned):
        doing.watch.begin(planned)
        results = execute_all(planned, jobs, doing.watch.see, doing.crew)
    if any(result.status == "interrupted" for result in results):
        raise KeyboardInterrupt
    for result in results:
        if result.status in ("complete", "diverged"):
            shrink(result.folder, MODEL)
    failed = {(one.label, one.seed): one.error or "" for one in results if one.status == "failed"}
    if len(failed) == len(results):
        raise UserError(f"every run in {folder} failed, the first because: {results[0].error}")
    runs = [run for run in load_runs([folder]) if run.head.seed in asked.seeds and run.round.size]
    return [run for run in runs if (run.head.label, run.head.seed) not in failed], failed


class _Quiet(NamedTuple):
    """A watch of rounds alone: a line a rung, method and federation would be too many."""

    watch: Watch

    def begin(self, planned: Sequence[Planned]) -> None:
        self.watch.begin(planned)

    def see(self, number: int, event: Row | Finished | None) -> None:
        self.watch.see(number, event)

    def say(self, line: str) -> None:
        """Nothing."""
