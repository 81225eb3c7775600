"""Settings that name a thing of a registry, as in `sampling = "bernoulli(0.1)"`: their canonical text, the thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedconcord.analysis.personalisation import PERSONALISE
from fedconcord.basis import factories, grammar
from fedconcord.basis.grammar import Value
from fedconcord.core import Problem
from fedconcord.federation.availability import AVAILABILITY
from fedconcord.federation.clock import DEVICES
from fedconcord.federation.dropout import DROPOUT
from fedconcord.federation.features import FEATURES
from fedconcord.federation.labels import LABELS
from fedconcord.federation.rates import WHAT, rates
from fedconcord.federation.sampling import samplers
from fedconcord.federation.work import WORK, Work
from fedconcord.local.gradients import ORACLES
from fedconcord.local.sizes import RULES
from fedconcord.problems.clustering import clustering
from fedconcord.problems.losses import losses
from fedconcord.problems.regularisers import REGULARISERS
from fedconcord.problems.semi import semi
from fedconcord.transforms.adaptive import CLIPS, Adaptive
from fedconcord.transforms.hostile import ATTACKS
from fedconcord.transforms.robust import AGGREGATES
from fedconcord.transforms.server import OPTIMIZERS
from fedconcord.transforms.uploads import COMPRESSORS

TASKS: dict[str, Callable[..., Problem]] = {"semi": semi, "clustering": clustering}
PARTS: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {  # keys that name a thing of a registry
    "sampling": ("sampling", samplers()),
    "lr_schedule": (WHAT, rates()),
    "availability": ("availability", AVAILABILITY),
    "dropout": ("dropout", DROPOUT),
    "devices": ("model of devices", DEVICES),
    "server": ("server optimiser", OPTIMIZERS),
    "upload": ("compressor", COMPRESSORS),
    "aggregate": ("aggregation rule", AGGREGATES),
    "hostile": ("attack", ATTACKS),
    "regulariser": ("regulariser", REGULARISERS),
    "skew": ("feature skew", FEATURES),
    "labels": ("removal of labels", LABELS),
    "task": ("task", TASKS),
    "loss": ("loss", losses()),
    "local.lr": ("rule of step sizes", RULES),
    "local.oracle": ("gradient oracle", ORACLES),
    "eval.personalise": ("personalisation", PERSONALISE),
}
PARTS_OF_METHOD = (
    "server",
    "upload",
    "aggregate",
)  # which a method of a comparison may have for itself, beside local.*


def work_of(work: float | str) -> Work:
    """Local work from its setting: a number, or a draw of the registry."""
    if isinstance(work, float):
        return lambda seed, round, client: work
    drawn: Work = factories.build(WORK, "local work", grammar.Spec("fixed", (work,)) if isinstance(work, int) else work)
    return drawn


def clipping_of(given: float | str) -> float | Adaptive:
    """A bound on messages from its setting: a number, or a rule of the registry."""
    if isinstance(given, float):
        return given
    rule: Adaptive = factories.build(CLIPS, "clipping", given)
    return rule


def canonical(key: str, value: Value) -> str | None:
    """The text of a part with its parameters by name, or None for none; `value` is a text or a `Spec`."""
    if value is None or value == "none":
        return None
    what, registry = PARTS[key]
    if key == "dropout" and isinstance(value, int | float):
        value = grammar.Spec("fixed", (value,))
    call = factories.check(registry, what, value if isinstance(value, str | grammar.Spec) else grammar.text(value))
    if "path" in call.given:  # a run that is resumed from elsewhere must find the same file
        call = replace(call, given={**call.given, "path": str(Path(call.given["path"]).expanduser().absolute())})
    return None if call.name == "none" else str(call)


def part(key: str, written: str) -> Any:
    """The thing that such a text stands for."""
    what, registry = PARTS[key]
    return factories.build(registry, what, written)
