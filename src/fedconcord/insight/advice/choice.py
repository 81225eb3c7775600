"""From facts, wishes and rules to methods: what to tune first, what it costs, what not to try.

The rules say which methods to tune first where what is seen of a federation holds, and why. Their conditions are stated
here; each method says itself (`Algorithm.facts`) where it is worth tuning, and where it is not. The first rule that
holds names the methods, best first; those that cannot run there or break a wish are passed over, and the rules after it
fill up. docs/choosing.md is this table for people; benchmarks/federations.json holds what became of its first choices.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from fedconcord.execution.job import Job, refusals, row_bytes
from fedconcord.insight.advice.facts import FederationFacts, facts_of
from fedconcord.insight.methods import catalogue
from fedconcord.method import contract as core
from fedconcord.method.algorithms import plugins
from fedconcord.method.contract import tree_bytes
from fedconcord.study.settings.job import build
from fedconcord.study.settings.methods import single
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source, searched
from fedconcord.support import factories, grammar
from fedconcord.support.errors import UserError
from fedconcord.support.factories import search_of

MOST = 3  # methods that are named
OF_METHODS = ("method", "methods", "algorithm", "label", "server")  # settings that advice leaves out
SMALLER = ("quantise", "topk(0.1)", "topk(0.01)")  # compressors, largest messages first

SELDOM, FEW, UNEQUAL, SKEWED, APART = 2, 20, 0.1, 0.3, 0.1  # where the conditions below begin


class Condition(NamedTuple):
    """What can hold in a federation."""

    words: str
    holds: Callable[[FederationFacts], bool]
    source: str = "measured"  # of what is recommended where it holds


CONDITIONS: dict[core.Condition, Condition] = {
    "seldom": Condition("clients that come less than twice", lambda facts: facts.visits < SELDOM),
    "rare": Condition("clients that come less than 20 times", lambda facts: facts.visits < FEW),
    "skewed": Condition(
        "labels or features that differ by client",
        lambda facts: facts.label_skew > SKEWED or (facts.features or 0) > APART,
        "measured; A-FedPD, NeurIPS 2024; FedDyn, Acar et al. 2021",
    ),
    "equal work": Condition("clients whose local steps hardly differ", lambda facts: facts.step_spread < UNEQUAL),
    "any": Condition("any federation", lambda facts: True),
}


class Pick(NamedTuple):
    """A method to tune."""

    method: str  # with the settings to begin with
    why: str


class Rule(NamedTuple):
    """Where a condition holds, these methods first."""

    condition: Condition
    picks: tuple[Pick, ...]  # best first


class Caution(NamedTuple):
    """Where a condition holds, not this method."""

    condition: Condition
    method: str  # its name
    why: str
    source: str


def rules() -> list[Rule]:
    """The rules of all methods of this installation; the last one holds everywhere."""
    listed: dict[core.Condition, list[tuple[int, Pick]]] = {condition: [] for condition in CONDITIONS}
    for name, facts in catalogue.stated().items():
        for one in facts.recommendations:
            for condition, place in one.places.items():
                listed[condition].append((place, Pick(f"{name}({one.settings})", one.why)))
    ordered = {condition: sorted(picks, key=lambda pick: pick[0]) for condition, picks in listed.items()}
    return [Rule(CONDITIONS[key], tuple(pick for _, pick in picks)) for key, picks in ordered.items() if picks]


def cautions() -> list[Caution]:
    """What all methods of this installation warn of, by condition."""
    stated = catalogue.stated()
    return [
        Caution(condition, name, one.why, one.source)
        for key, condition in CONDITIONS.items()
        for name, facts in stated.items()
        for one in facts.cautions
        if one.condition == key
    ]


def methods_of(rules: list[Rule]) -> tuple[str, ...]:
    """Every method that some rule names, with the settings to begin with."""
    return tuple(dict.fromkeys(pick.method for rule in rules for pick in rule.picks))


class Wishes(NamedTuple):
    """What the data do not say."""

    stateless: bool = False  # clients keep nothing between rounds
    private: bool = False  # the server learns a sum of updates alone: a client sends one vector, and keeps none
    uplink: int | Literal["slow"] | None = None  # bytes that a client may send in a round; slow: one model


NO_WISHES = Wishes()


class Named(NamedTuple):
    """A method to tune, by its messages and rows as they are in this federation."""

    method: str  # with the settings to begin with
    tune: dict[str, str]  # parameter -> range
    where: str  # the rule's condition
    why: str
    source: str
    up: int  # bytes that a client sends in a round
    down: int  # bytes that it gets
    kept: int  # bytes that it keeps between rounds
    gradients: float  # of a local step
    slower: tuple[float, float] | None  # a round's time over FedAvg's, least and most of the jobs of docs/cost.md


class Advice(NamedTuple):
    """What came of the rules."""

    facts: FederationFacts
    named: list[Named]  # best first
    against: dict[str, str]  # method -> why not
    config: Config  # of the federation, with a compressor where messages must be smaller

    def __str__(self) -> str:
        """As the command says it."""
        from fedconcord.insight.advice.words import lines_of  # which knows this

        return "\n".join(lines_of(self))


def federation_of(*sources: Source) -> Config:
    """The settings of a run or a comparison without its methods, for the first of its seeds.

    Raises:
        UserError: a setting is wrong, or the data cannot be read.
    """
    kept = []
    for source in sources:
        values = {key: value for key, value in source.values.items() if key.partition(".")[0] not in OF_METHODS}
        seeds = values.pop("seeds", None)
        if isinstance(seeds, list) and seeds:
            values["seed"] = seeds[0]
        kept.append(Source(values, {"seed": "seeds", **source.origin}))
    return without_method(resolve_run(*kept))


def without_method(config: Config) -> Config:
    return config.model_copy(update={"method": None, "algorithm": {}, "label": None, "server": None})


def advise(config: Config, wishes: Wishes = NO_WISHES) -> Advice:
    """Two or three methods for the federation of a run's settings, whatever its method.

    Where no method's messages are small enough for the uplink, uploads are compressed as much as that takes.

    Raises:
        UserError: the data cannot be read, no client ever replies, or no method meets the wishes.
    """
    if wishes.uplink not in (None, "slow") and not (type(wishes.uplink) is int and wishes.uplink >= 1):
        raise UserError(f"uplink must be slow or a number of bytes >= 1, given {wishes.uplink!r}")
    config = fitting = without_method(config)
    facts = facts_of(config)
    every = rules()
    methods = methods_of(every)
    why_not = {text: refused(fitting, text, wishes) for text in methods}
    for upload in SMALLER if isinstance(wishes.uplink, int) and config.upload is None else ():
        if None in why_not.values():
            break
        fitting = config.model_copy(update={"upload": upload})
        why_not = {text: refused(fitting, text, wishes) for text in methods}
    chosen = choose(every, facts, {text for text, why in why_not.items() if why is None})
    if not chosen:
        last = methods[-1]
        raise UserError(f"no method can be advised, not even {last}: {why_not[last]}")
    named = [_named(fitting, pick, rule) for pick, rule in chosen]
    against = {name_of(text): why for text, why in why_not.items() if why is not None}
    for caution in cautions():
        if caution.condition.holds(facts):
            against.setdefault(caution.method, f"{caution.why} ({caution.source})")
    names = [name_of(one.method) for one in named]
    return Advice(facts, named, {name: why for name, why in against.items() if name not in names}, fitting)


def choose(rules: list[Rule], facts: FederationFacts, possible: set[str]) -> list[tuple[Pick, Rule]]:
    """The methods to tune with the rule that named each, best first: those of the first rule that holds, filled up from
    the rules after it. `possible` are the texts that can run."""
    chosen: dict[str, tuple[Pick, Rule]] = {}
    for rule in rules:
        for pick in rule.picks:
            if rule.condition.holds(facts) and pick.method in possible:
                chosen.setdefault(name_of(pick.method), (pick, rule))
    return list(chosen.values())[:MOST]


def name_of(method: str) -> str:
    return grammar.parse(method, "method").name


def refused(config: Config, method: str, wishes: Wishes) -> str | None:
    """Why a method cannot run in a federation or breaks a wish, or None."""
    try:
        job = _job(config, method)
        for reason in refusals.reasons(job):
            return reason
    except UserError as error:
        return str(error)
    costs, kept = catalogue.describe(name_of(method)), row_bytes(job)
    if (wishes.stateless or wishes.private) and kept:
        return f"its clients keep {_models(kept / _model_bytes(job))} between rounds"
    if (wishes.private or wishes.uplink == "slow") and costs.up > 1:
        return f"its clients send {_models(costs.up)} a round"
    if isinstance(wishes.uplink, int) and (up := _sent(config, job, costs)) > wishes.uplink:
        return f"its clients send {up:,} bytes a round, and {wishes.uplink:,} are allowed"
    return None


def _named(config: Config, pick: Pick, rule: Rule) -> Named:
    name = name_of(pick.method)
    job, costs = _job(config, pick.method), catalogue.describe(name)
    return Named(
        method=pick.method,
        tune=ranges(name),
        where=rule.condition.words,
        why=pick.why,
        source=rule.condition.source,
        up=_sent(config, job, costs),
        down=job.cost.down if job.algorithm.facts.factors else round(costs.down * _model_bytes(job)),
        kept=row_bytes(job),
        gradients=1 + costs.step_gradients,
        slower=slower(name),
    )


def slower(name: str) -> tuple[float, float] | None:
    """A round's time over that of FedAvg with the same local steps: the least and the most of the jobs of docs/cost.md,
    as `benchmarks/cost.py` measured them; None for a method that it did not."""
    ratios = [
        job[name]["ratio"] for key, job in _measured().items() if key != "memory" and isinstance(job.get(name), dict)
    ]
    return (min(ratios), max(ratios)) if ratios else None


@cache
def _measured() -> dict[str, Any]:
    text = resources.files("fedconcord.insight.advice").joinpath("cost.json").read_text(encoding="utf-8")
    jobs: dict[str, Any] = json.loads(text)
    return jobs


def ranges(name: str) -> dict[str, str]:
    """What `tune` looks for of a method with its defaults, and where: `0.01 to 1, log`."""
    options = factories.options(plugins.available()[name])
    parameters = {
        option.name: place for option in options if (place := search_of(option.annotation)) and option.default
    }
    return {key: str(place) for key, place in {**searched(), **parameters}.items()}


def _sent(config: Config, job: Job, costs: catalogue.Costs) -> int:
    """Bytes that a client sends in a round; `job.cost`, which knows compressed ones and factors, imports torch's
    compiler."""
    if config.upload is not None or job.algorithm.facts.factors:
        return job.cost.up
    return round(costs.up * _model_bytes(job)) + int(costs.up_scalars) * job.problem.objective.dtype.itemsize


def _model_bytes(job: Job) -> int:
    return tree_bytes(job.problem.init(job.schedule.seed))


def _job(config: Config, method: str) -> Job:
    return build(single(config, method, config.seed or 0))


def _models(count: float) -> str:
    return "a vector as large as the model" if count == 1 else f"{count:.3g} vectors as large as the model"
