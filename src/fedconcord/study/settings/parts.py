"""Settings that name a thing of a registry, as in `sampling = "bernoulli(0.1)"`: one table of them, and what they name.

The table says for each key what a sentence calls such a thing, where its names are looked up, and under which topic
`fedconcord list` shows them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.execution.job.personalisation import PERSONALISE
from fedconcord.federation.adapters import ADAPTERS
from fedconcord.federation.data import DATASETS
from fedconcord.federation.models import models
from fedconcord.federation.objectives import PROBLEMS
from fedconcord.federation.objectives.losses import losses
from fedconcord.federation.objectives.metrics import METRICS
from fedconcord.federation.objectives.regularisers import REGULARISERS
from fedconcord.federation.objectives.semi import semi
from fedconcord.federation.objectives.two_block import clustering
from fedconcord.federation.participation.availability import AVAILABILITY
from fedconcord.federation.participation.clock import DEVICES
from fedconcord.federation.participation.dropout import DROPOUT
from fedconcord.federation.participation.events import CLOCKS
from fedconcord.federation.participation.sampling import samplers
from fedconcord.federation.participation.servers import TREES
from fedconcord.federation.participation.work import BATCHES, WHAT, WORK, Size, Work, rates
from fedconcord.federation.partitions import partitions
from fedconcord.federation.partitions.skew import FEATURES, LABELS
from fedconcord.method.algorithms import METHODS, plugins
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Algorithm, Problem
from fedconcord.method.step.sizes import RULES
from fedconcord.method.step.solver import ORACLES
from fedconcord.method.wrappers.code import codes
from fedconcord.method.wrappers.factors import FACTORS
from fedconcord.method.wrappers.hostile import ATTACKS
from fedconcord.method.wrappers.optimisers import OPTIMISERS
from fedconcord.method.wrappers.privacy import CLIPS, Adaptive
from fedconcord.method.wrappers.robust import AGGREGATES
from fedconcord.method.wrappers.server import OPTIMIZERS
from fedconcord.method.wrappers.terms import terms
from fedconcord.method.wrappers.uploads import COMPRESSORS
from fedconcord.support import factories, grammar
from fedconcord.support.grammar import Value

TASKS: dict[str, Callable[..., Problem]] = {"semi": semi, "clustering": clustering}


class Registry(NamedTuple):
    """Where the things that a setting may name are looked up."""

    what: str  # what a sentence calls one of them
    things: Mapping[str, Any]  # factories by name, and by import path where users may bring their own
    topic: str  # of `fedconcord list`


PARTS = {  # keys whose text stands for a thing by itself
    "sampling": Registry("sampling", samplers(), "sampling"),
    "lr_schedule": Registry(WHAT, rates(), "lr_schedule"),
    "availability": Registry("availability", AVAILABILITY, "availability"),
    "dropout": Registry("dropout", DROPOUT, "dropout"),
    "tree": Registry("tree of servers", TREES, "trees"),
    "devices": Registry("model of devices", DEVICES, "devices"),
    "clock": Registry("clock", CLOCKS, "clocks"),
    "server": Registry("server optimiser", OPTIMIZERS, "server"),
    "upload": Registry("compressor", COMPRESSORS, "upload"),
    "aggregate": Registry("aggregation rule", {**AGGREGATES, **FACTORS}, "aggregate"),
    "hostile": Registry("attack", ATTACKS, "hostile"),
    "regulariser": Registry("regulariser", REGULARISERS, "regularisers"),
    "skew": Registry("feature skew", FEATURES, "skew"),
    "labels": Registry("removal of labels", LABELS, "labels"),
    "task": Registry("task", TASKS, "tasks"),
    "adapters": Registry("adapters", ADAPTERS, "adapters"),
    "loss": Registry("loss", losses(), "losses"),
    "local.batch_size": Registry("batches", BATCHES, "batches"),
    "local.step_schedule": Registry(WHAT, rates(), "lr_schedule"),
    "local.lr": Registry("rule of step sizes", RULES, "lr"),
    "local.optimiser": Registry("local optimiser", OPTIMISERS, "optimisers"),
    "local.code": Registry("client code", codes(), "optimisers"),
    "local.term": Registry("term", terms(), "terms"),
    "local.oracle": Registry("gradient oracle", ORACLES, "oracles"),
    "eval.personalise": Registry("personalisation", PERSONALISE, "personalise"),
}
REGISTRIES = {  # and those whose things need more: data, a seed, a number
    **PARTS,
    "method": Registry("method", METHODS, "methods"),
    "baselines": Registry("baseline", BASELINES, "baselines"),
    "data": Registry("data set", ChainMap(PROBLEMS, DATASETS), "data"),
    "partition": Registry("partition", partitions(), "partitions"),
    "model": Registry("model", models(), "models"),
    "metrics": Registry("metric", METRICS, "metrics"),
    "local.epochs": Registry("local work", WORK, "work"),
    "privacy.clip": Registry("clipping", CLIPS, "clipping"),
}
PARTS_OF_METHOD = ("server", "upload", "aggregate")  # which a method may have for itself, beside local.*


def registry_of(method: str) -> Mapping[str, Callable[..., Algorithm]]:
    """Where what a run trains by is looked up: the baselines, or the methods."""
    return BASELINES if method in BASELINES else plugins.available()


def method_of(name: str, parameters: Mapping[str, Value]) -> Algorithm:
    """The method, or baseline, with its parameters."""
    algorithm: Algorithm = factories.build(registry_of(name), "method", grammar.Spec(name, (), parameters))
    return algorithm


def work_of(work: float | str) -> Work:
    """Local work from its setting: a number, or a draw of the registry."""
    if isinstance(work, float):
        return lambda seed, round, client: work
    rule: Work = part("local.epochs", f"fixed({work})" if isinstance(work, int) else work)
    return rule


def most_work(work: float | str, clients: int) -> float:
    """The most that a client does in a round, from its setting of local work."""
    if not isinstance(work, str):
        return work
    options = call_of("local.epochs", work).resolved()
    most: float | None = options.get("high") or options.get("value")
    return most or max(work_of(work)(0, 0, client) for client in range(clients))  # the same in every round


def batch_of(size: int | str) -> Size:
    """The samples of a local step from their setting: a number, full, or a draw of the registry."""
    of: Size = part("local.batch_size", size) if isinstance(size, str) else size
    return of


def clipping_of(clip: float | str) -> float | Adaptive:
    """A bound on messages from its setting: a number, or a rule of the registry."""
    if isinstance(clip, float):
        return clip
    rule: Adaptive = part("privacy.clip", clip)
    return rule


def canonical(key: str, value: Value) -> str | None:
    """The text of a part with its parameters by name, or None for none; `value` is a text or a `Spec`."""
    if value is None or value == "none":
        return None
    if key == "dropout" and isinstance(value, int | float):
        value = grammar.Spec("fixed", (value,))
    call = call_of(key, value if isinstance(value, str | grammar.Spec) else grammar.text(value))
    if "path" in call.given:  # a run that is resumed from elsewhere must find the same file
        call = replace(call, given={**call.given, "path": str(Path(call.given["path"]).expanduser().absolute())})
    return None if call.name == "none" else str(call)


def call_of(key: str, text: str | grammar.Spec) -> factories.Call:
    """What such a text says, looked up and checked.

    Raises:
        UserError: there is no such name, or its parameters are wrong.
    """
    registry = REGISTRIES[key]
    return factories.check(registry.things, registry.what, text)


def part(key: str, text: str | grammar.Spec, *leading: Any) -> Any:
    """The thing that such a text stands for; `leading` is what the program gives to its factory."""
    return call_of(key, text)(*leading)
