"""An arena as a study: federation by federation, FedAvg first, which sets the target, then every method tuned for it
and all compared with fresh seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedconcord.execution.run import lock
from fedconcord.study.runs.plan import alone, comparison, plan_more
from fedconcord.study.runs.pool import Stages
from fedconcord.study.search import SearchSpec, Tuning, plan_resumed_tuning, plan_tuning
from fedconcord.study.search.plan import NAME as SEARCH
from fedconcord.study.search.scores import MethodSearch, series, winners
from fedconcord.study.search.search import search
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.sources import from_nested
from fedconcord.study.statistics.load import Run, load_runs
from fedconcord.support.errors import UserError
from fedconcord_papers.arena.federations import REFERENCE, Federation
from fedconcord_papers.arena.kept import beside, joined
from fedconcord_papers.arena.outcome import Entry, Result, Size, aim, outcome, targets
from fedconcord_papers.arena.plan import CONTROLS, TUNING_SEEDS, ArenaSpec, FederationFolder, able, settle_federation

Say = Callable[[str], None]


class TunedHere(NamedTuple):
    """A method tuned in a federation."""

    tuning: Tuning
    result: MethodSearch

    @property
    def text(self) -> str | None:
        """The method with its best values; None: no trial ended well."""
        return winners(self.tuning.config, [self.result]).get(self.result.space.method)

    @property
    def words(self) -> str:
        """Its best values."""
        if not self.result.space.places:
            return "nothing to tune"
        best = self.result.best
        return "no trial ended well" if best is None else ", ".join(f"{k} {v:.3g}" for k, v in best.values.items())


def arena(spec: ArenaSpec, say: Say) -> Stages[list[Result]]:
    """An arena; a result a federation, and a line a federation and method.

    Raises:
        UserError: a federation cannot run, or its folder holds something else.
    """
    results = []
    with lock.held(spec.out):
        for number, federation in enumerate(spec.federations, 1):
            say(f"[{number}/{len(spec.federations)}] {federation.name}")
            results.append((yield from _federation(spec, federation, say)))
            forget_problem()
    return results


def _federation(spec: ArenaSpec, federation: Federation, say: Say) -> Stages[Result]:
    place = FederationFolder(federation, spec.out / federation.folder)
    methods, refused = able(federation, spec.methods, place.folder)
    settle_federation(place, spec.budget)
    reference = yield from _tuned(spec, place, f"{REFERENCE}(label={REFERENCE})", None)
    if reference.text is None:
        raise UserError(
            f"federation {federation.name}: {REFERENCE}, which sets the target, diverges or fails in every trial; "
            "give it a smaller local.lr, from which tuning begins"
        )
    base, _ = yield from _compared(spec, place, [reference.text], is_reference=True)
    goals, trial_target = targets(federation.target, base), _trial_target(federation, reference)
    say(f"  target: {goals} ({REFERENCE} with {reference.words})")
    tuned: dict[str, TunedHere] = {}
    for label, text in methods.items():
        tuned[label] = yield from _tuned(spec, place, text, trial_target, label)
        say(f"  {label}: {tuned[label].words}")
    runs, failed = yield from _compared(spec, place, [one.text for one in tuned.values() if one.text is not None])
    entries = [Entry(label, one.text, bool(one.result.space.places)) for label, one in tuned.items()]
    first = base[0].head
    result = Result(
        federation=federation,
        size=Size(first.data, first.model, first.clients, first.cohort, first.rounds),
        trial_target=trial_target,
        goals=goals,
        reference=reference.text,
        outcomes=tuple(outcome(entry, spec.seeds, runs, failed, base, goals) for entry in entries),
        refused=refused,
    )
    table = beside(spec, federation)
    return result if table is None else joined(result, table)


def _tuned(
    spec: ArenaSpec, place: FederationFolder, text: str, target: float | None, label: str | None = None
) -> Stages[TunedHere]:
    """A method tuned for its final value, or for the rounds to a target of the metric that judges trials."""
    folder = place.reference if label is None else place.search(label)
    if (folder / SEARCH).exists():
        tuning = plan_resumed_tuning(folder, SearchSpec())
    else:
        nested = {**place.federation.nested, "methods": [text], "seeds": list(TUNING_SEEDS), "out": str(folder)}
        source = from_nested(nested, f"federation {place.federation.name}")
        more = [CONTROLS[label]] if label in CONTROLS else []
        tuning = plan_tuning(SearchSpec(budget=spec.budget, search=more, target=target), source)
    with lock.held(folder):
        (result,) = yield from search(tuning, lambda line: None)  # a line a rung too would be too many
    return TunedHere(tuning, result)


def _trial_target(federation: Federation, reference: TunedHere) -> float:
    """What trials are to reach, in the metric that judges them: the rule's, of its seeds the one that is worse."""
    rule, tuning, best = federation.target, reference.tuning, reference.result.best
    if not rule.by_reference:
        return rule.value
    assert best is not None  # the step size is looked for, and `text` is there
    metric = tuning.objective.metric
    values = []
    for seed in tuning.seeds:
        folder = tuning.place(reference.result.space, best.number, seed)
        there = series(folder, metric.column, tuning.config.rounds)
        assert there is not None  # the best trial ended well on every seed
        values.append(aim(there[1], metric, rule.value))
    return min(values) if metric.higher else max(values)


def _compared(
    spec: ArenaSpec, place: FederationFolder, texts: Sequence[str], is_reference: bool = False
) -> Stages[tuple[list[Run], dict[tuple[str, int], str]]]:
    """(runs, why others failed by label and seed) of a comparison: a new one, or the one that is there with what it
    lacks."""
    folder = place.reference_runs if is_reference else place.final
    planned = plan_more(folder, spec.jobs, place.federation.nested, texts, spec.seeds, keep="tables")
    with alone(planned):
        results = yield from comparison(planned)
    failed = {(one.label, one.seed): one.error or "" for one in results if one.status == "failed"}
    if len(failed) == len(results):
        raise UserError(f"every run in {folder} failed, the first because: {results[0].error}")
    runs = [run for run in load_runs([folder]) if run.head.seed in spec.seeds and run.round.size]
    return [run for run in runs if (run.head.label, run.head.seed) not in failed], failed
