"""The methods of a job and its baselines: their text with parameters, and the settings of one run of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from fedconcord.execution.job import Job
from fedconcord.federation.objectives.judging import pooled, supervised
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.federation.participation.schedule import Pooled, Schedule
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Algorithm
from fedconcord.method.wrappers.factors import FACTORS
from fedconcord.method.wrappers.terms import KNOWN_AS
from fedconcord.study.settings.contents import kind_of
from fedconcord.study.settings.parts import (
    PARTS,
    PARTS_OF_METHOD,
    call_of,
    canonical,
    method_of,
    part,
    registry_of,
    work_of,
)
from fedconcord.study.settings.privacy import calibrated
from fedconcord.study.settings.settings import LR, NATURAL, Config, LocalSettings, PrivacySettings, WireSettings
from fedconcord.study.settings.sources import prepare, validated
from fedconcord.support import factories, grammar, objects
from fedconcord.support.errors import UserError, closest, unknown
from fedconcord.support.grammar import Value


def read_method(method: str, algorithm: Mapping[str, Any] | None = None) -> tuple[factories.Call, dict[str, Value]]:
    """A method's text, with the parameters of the `algorithm` table, as a checked call and its settings by full key:
    `local.*`, `privacy.*`, parts such as `server`, canonical, and the `label` that reports call it by. A parameter of
    the method goes before a part of the same name."""
    parsed = grammar.parse(method, "method")
    methods = registry_of(parsed.name)
    if parsed.name not in methods:
        _refuse_term(parsed.name)
    takes = [option.name for option in factories.options(methods[parsed.name])] if parsed.name in methods else []
    overrides = {
        key: value
        for key, value in parsed.kwargs.items()
        if key.startswith(("local.", "privacy.")) or (key in (*PARTS_OF_METHOD, "label") and key not in takes)
    }
    parameters = {key: value for key, value in parsed.kwargs.items() if key not in overrides}
    for key, value in (algorithm or {}).items():
        if parameters.get(key, value) != value:
            raise UserError(
                f"method {parsed.name}: {key} is given twice, as {grammar.text(parameters[key])} and as "
                f"algorithm.{key} = {grammar.text(value)}; give it once"
            )
        parameters[key] = value
    call = factories.check(methods, "method", grammar.Spec(parsed.name, parsed.args, parameters))
    local_for(LocalSettings(), call.name, overrides)
    privacy_for(PrivacySettings(), call.name, overrides)
    for key in PARTS.keys() & overrides.keys():
        if isinstance(overrides[key], int | float):  # a step size, no rule of them
            continue
        text = canonical(key, overrides[key])
        overrides[key] = None if text is None else grammar.parse(text)
    if "label" in overrides:
        overrides["label"] = _label(call.name, overrides["label"])
    return call, overrides


def _refuse_term(name: str) -> None:
    """Say of what papers call a method how it is had here."""
    terms = {paper.lower(): (paper, term) for paper, term in KNOWN_AS.items()}
    if name.lower() in terms:
        paper, options = terms[name.lower()]
        term, settings = options.partition(" ")[0], options.replace(" --local-private ", ",local.private=")
        raise UserError(
            f"{paper} is the term {term} in the clients' loss, which goes with every method; use method fedavg and "
            f"--term {options}, or fedavg(local.term={settings}) in a comparison"
        )


def _label(method: str, value: Value) -> str:
    label = value if isinstance(value, str) else grammar.text(value)
    if not label.strip() or not label.isprintable():
        raise UserError(f"method {method}: label must be a line of text, given {label!r}; write label='FedVRA (tuned)'")
    return label.strip()


def local_for(base: LocalSettings, method: str, overrides: Mapping[str, Any]) -> LocalSettings:
    """The local settings of one method: the job's, with the method's own `local.*` over them."""
    units = [key for key in ("epochs", "steps", "seconds") if overrides.get(f"local.{key}") is not None]
    if len(units) > 1:
        raise UserError(f"method {method}: local.{units[0]} and local.{units[1]} exclude each other; give one of them")
    without = dict.fromkeys(("epochs", "steps", "seconds")) if units else {}
    local: LocalSettings = _over("local", base, method, overrides, without)
    return check_local(local)


def privacy_for(base: PrivacySettings, method: str, overrides: Mapping[str, Any]) -> PrivacySettings:
    """The privacy of one method: the job's, with the method's own `privacy.*` over it."""
    privacy: PrivacySettings = _over("privacy", base, method, overrides, {})
    return check_privacy(privacy)


def check_privacy(privacy: PrivacySettings) -> PrivacySettings:
    """With the text of a rule for the clip canonical."""
    if not isinstance(privacy.clip, str):
        return privacy
    return privacy.model_copy(update={"clip": str(call_of("privacy.clip", privacy.clip))})


def _over(section: str, base: BaseModel, method: str, overrides: Mapping[str, Any], without: Mapping[str, None]) -> Any:
    """A table of settings with a method's own values over it, and over those that are `without`."""
    keys, values = [f"{section}.{name}" for name in type(base).model_fields], {**base.model_dump(), **without}
    for key, value in overrides.items():
        if key.startswith(f"{section}."):
            if key not in keys:
                near = closest(key, keys)
                raise UserError(f"method {method}: unknown key {key!r}{near}; known: {', '.join(keys)}")
            values[key.removeprefix(f"{section}.")] = prepare(key, grammar.plain(value))
    return validated(type(base), values, f"method {method}: {section}.", {})


def check_local(local: LocalSettings) -> LocalSettings:
    for work in (local.epochs, local.steps, local.seconds):
        if work is not None:
            work_of(work)
    lr = canonical("local.lr", local.lr) if isinstance(local.lr, str) else local.lr
    size = local.batch_size
    batch = size if isinstance(size, int) else str(call_of("local.batch_size", size))
    keys = ("oracle", "optimiser", "term", "step_schedule")
    texts = {key: canonical(f"local.{key}", getattr(local, key)) for key in keys}
    return local.model_copy(update={"lr": lr, "batch_size": batch, **texts})


def with_lr(local: LocalSettings, call: factories.Call) -> LocalSettings:
    """The local settings of a method with the step size that is usual where none is given; none if it has a rule."""
    if local.lr is not None:
        return local
    method = method_of(call.name, call.given)
    has_rule = isinstance(method, Algorithm) and method.step.size is not None  # what is no method is refused later
    usual = LR if local.optimiser is None else part("local.optimiser", local.optimiser).lr
    return local if has_rule else local.model_copy(update={"lr": usual})


def labelled(config: Config, call: factories.Call, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """A method's settings with the label of its job, which has no other method."""
    label = overrides.get("label", config.label)
    if objects.is_object(call.name) and config.label is not None:  # it has a label by itself
        label = config.label
    if config.label not in (None, label):
        raise UserError(
            f"label is given twice, as {config.label!r} and as {label!r} behind the method {call.name}; give it once"
        )
    return dict(overrides) if label is None else {**overrides, "label": label}


def single(config: Config, method: str, seed: int) -> Config:
    """The settings of one run: its method's parameters with defaults, its own other settings, its label."""
    config = settings_for(config, grammar.parse(method, "method").name)
    call, overrides = read_method(method, config.algorithm)
    overrides = labelled(config, call, overrides)
    parts = {key: canonical(key, overrides.get(key, getattr(config, key))) for key in PARTS_OF_METHOD}
    privacy = privacy_for(config.privacy, call.name, overrides)
    weights = weights_by(config, call, privacy, parts["aggregate"])
    one = config.model_copy(
        update={
            "method": call.name,
            "methods": None,
            "baselines": [],
            "algorithm": {**call.resolved(), **weights},
            "label": overrides.get("label") or canonical_text(config, call, overrides).removeprefix(objects.PREFIX),
            "seed": seed,
            "seeds": None,
            "local": with_lr(local_for(config.local, call.name, overrides), call),
            "privacy": privacy,
            **parts,
        }
    )
    return calibrated(one)


def weights_by(
    config: Config, call: factories.Call, privacy: PrivacySettings, aggregate: str | None
) -> dict[str, Value]:
    """The `weights` of a method that takes them and whose text leaves them open, as the objective has it.

    `auto` weighs by samples where data of the user's own come in clients, but not where that is protected (privacy),
    counts for nothing (aggregation rules) or is in the draw already.

    Raises:
        UserError: an objective and a sampling by size, which are two answers to one question.
    """
    kind = config.objective
    if kind == "paper" or "weights" in call.given or "weights" not in call.resolved():
        return {}
    by_size = part("sampling", config.sampling).by_size
    if kind == "auto":
        is_robust = aggregate is not None and grammar.parse(aggregate).name not in FACTORS
        is_own_data = config.partition == NATURAL and kind_of(config.data) != "named"
        return {"weights": "size"} if is_own_data and not by_size and privacy.clip is None and not is_robust else {}
    if by_size:
        raise UserError(
            f"objective {kind} weighs the clients of a cohort, and sampling {config.sampling} draws them by size; "
            f"leave objective out, or say the weights of the method, as in {call.name}(weights=uniform)"
        )
    return {"weights": "size" if kind == "samples" else "uniform"}


def canonical_text(config: Config, call: factories.Call, overrides: Mapping[str, Any]) -> str:
    """The canonical text of a method: its parameters, the server optimiser and compressor that it runs with
    whoever set them, the local settings of its own, and its label."""
    common = {key: grammar.parse(text) for key in PARTS_OF_METHOD if (text := getattr(config, key)) is not None}
    every = {**common, **overrides}
    tables: dict[str, type[BaseModel]] = {"local": LocalSettings, "privacy": PrivacySettings}
    inner = [f"{table}.{name}" for table, model in tables.items() for name in model.model_fields]
    order = [*PARTS_OF_METHOD, *inner, "label"]
    parameters = {key: every[key] for key in order if key in every and key not in call.given}
    return str(grammar.Spec(call.name, (), {**call.given, **parameters}))


def runs(config: Config) -> list[Config]:
    """The runs of this job, methods of one seed side by side and its baselines after them."""
    methods, seeds = config.methods or [config.method or "fedavg"], config.seeds or [config.seed or 0]
    return [single(config, method, seed) for seed in seeds for method in (*methods, *config.baselines)]


# -- baselines ---------------------------------------------------------------------------------------------------------


ORACLES = ("minibatch", "full", "sam")  # gradients that know no server's model and keep nothing between rounds


def check_baselines(baselines: Sequence[str], methods: Sequence[str], config: Config) -> None:
    """Refuse what is no baseline, a baseline among the methods, and a job whose clients are not judged.

    Raises:
        UserError: the first of these.
    """
    for text in baselines:
        if (name := grammar.parse(text, "baseline").name) not in BASELINES:
            raise unknown("baseline", name, BASELINES)
    for text in methods:
        if (name := grammar.parse(text, "method").name) in BASELINES:
            raise UserError(
                f"{name} is no method of a comparison but what methods are judged against; write --baselines {name}"
            )
    if baselines and config.eval.clients is False:
        raise UserError("baselines are judged client by client, given eval.clients false; leave it out")
    if baselines and config.engine.name == "distributed":
        raise UserError("baselines take one process, given engine distributed; leave them out, or use stacked")
    if baselines and (config.partition is None or config.task is not None):
        what = f"data {config.data}" if config.partition is None else f"task {config.task}"
        raise UserError(f"baselines are judged on labelled samples, and {what} has none of its own; leave them out")


def settings_for(config: Config, name: str) -> Config:
    """The job's settings as a baseline takes them: nobody sends, is hostile, late or lost, no rounds are
    saved or asynchronous, and the loss has no term.

    Clients' own models cost a pass each over the test set: they are judged at the start and the end.
    """
    if name not in BASELINES:
        return config
    measured: dict[str, object] = {**dict.fromkeys(("target", "patience", "watch", "personalise")), "clients": True}
    if name == "local":
        measured |= {"every": config.rounds, "clients_every": None}
    update: dict[str, object] = {"eval": config.eval.model_copy(update=measured), "late": "discard", "algorithm": {}}
    update |= dict.fromkeys(
        ("server", "upload", "aggregate", "hostile", "dropout", "deadline", "clock", "label", "tree")
    )
    update |= {"wire": WireSettings(), "privacy": PrivacySettings()}
    update["local"] = config.local.model_copy(update={"term": None})
    if config.engine.name == "wire":
        update["engine"] = config.engine.model_copy(update={"name": "stacked"})
    return config.model_copy(update=update)


def baseline(job: Job, name: str) -> Job:
    """The job of a baseline, from that of a federation's settings.

    Raises:
        UserError: the data or the settings have no such baseline.
    """
    schedule, solver = job.schedule, job.solver
    if job.algorithm.step.term is not None:
        raise UserError(f"{name} is plain training, without a server's model that a term could look at; leave it out")
    assert isinstance(schedule, Schedule)
    if supervised(job.problem) is None:
        raise UserError(f"{name} is judged on labelled samples in memory, and these data have none; leave it out")
    if schedule.sampler.by_loss:
        raise UserError(
            f"{name} has no federated model whose losses the sampling goes by; leave it out, or use another sampling"
        )
    if solver.oracle.kind not in ORACLES or (job.algorithm.step.blocks is not None):
        raise UserError(
            f"{name} takes local.oracle {', '.join(ORACLES)}, and the job's needs a server or a table; write "
            f"{name}(local.oracle=minibatch)"
        )
    if name == "local":  # of which nothing is shared
        problem = job.problem
        return replace(job, problem=problem.whole) if isinstance(problem, PrivateParts) else job
    if solver.kind != "sgd" or solver.tolerance is not None:
        raise UserError(
            "pooled takes as many steps as the clients together, which L-BFGS or a tolerance would count otherwise; "
            "leave it out"
        )
    return replace(job, problem=pooled(job.problem), schedule=Pooled(schedule, job.problem.roster))
