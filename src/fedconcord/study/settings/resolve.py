"""Sources merged, a later one over an earlier one, checked, and completed with defaults that depend on other keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives import PROBLEMS
from fedconcord.federation.objectives.losses import check_loss
from fedconcord.federation.objectives.metrics import metrics_of
from fedconcord.federation.partitions.simple import LABEL_FREE
from fedconcord.method.algorithms import plugins
from fedconcord.study.settings import problem
from fedconcord.study.settings.contents import kind_of
from fedconcord.study.settings.methods import (
    canonical_text,
    check_baselines,
    check_local,
    check_privacy,
    labelled,
    read_method,
    single,
)
from fedconcord.study.settings.parts import PARTS, call_of, canonical, part
from fedconcord.study.settings.settings import DEFAULT_MODEL, DEFAULT_PARTITION, NATURAL, Config, EvalSettings
from fedconcord.study.settings.sources import Source, merge, shaped, toml
from fedconcord.support import files, grammar, imports
from fedconcord.support.errors import UserError

SHARES = ("accuracy", "label_accuracy", "token_accuracy", "exact", "micro_f1", "macro_f1")  # metrics in [0, 1]


def resolve_run(*sources: Source) -> Config:
    """The settings of one run."""
    values, origin = merge(sources)
    for one, many in (("method", "methods"), ("seed", "seeds")):
        several = values.get(many)
        if not isinstance(several, list):  # none, or wrong: `_checked` says so
            continue
        del values[many]
        if len(several) != 1:
            raise UserError(
                f"a run takes one {one}, given {len(several)} ({origin[many]}); use fedconcord compare for several"
            )
        values[one], origin[one] = several[0], origin[many]
    config = _checked(values, origin)
    return single(config, config.method or "fedavg", config.seed or 0)


def resolve_compare(*sources: Source) -> Config:
    """The settings of a comparison: `methods` in canonical form, `seeds`."""
    values, origin = merge(sources)
    for one, many in (("method", "methods"), ("seed", "seeds")):
        if values.get(one) is not None:
            values[many] = [values.pop(one)]
            origin[many] = origin[one]
    if values.get("methods") is None:
        raise UserError(
            "a comparison needs methods: write --methods fedavg,scaffold, or methods = [...] in the settings file; "
            f"known: {', '.join(sorted(plugins.available()))}"
        )
    if isinstance(values["methods"], list) and len(values["methods"]) > 1:
        for key in values:
            if key == "label" or key.startswith("algorithm."):
                raise UserError(
                    f"{key} ({origin[key]}) belongs to a single method; for several write the parameters behind each, "
                    "as in fedprox(mu=0.1)"
                )
    config = _checked(values, origin)
    assert config.methods is not None
    check_baselines(config.baselines, config.methods, config)
    read = [read_method(method, config.algorithm) for method in config.methods]
    methods = [canonical_text(config, call, labelled(config, call, overrides)) for call, overrides in read]
    labels = [single(config, baseline, 0).label or "" for baseline in config.baselines]
    measured = config.eval.model_copy(update={"clients": True}) if labels else config.eval
    resolved = config.model_copy(
        update={
            "methods": methods,
            "baselines": labels,
            "algorithm": {},
            "label": None,
            "seeds": config.seeds or [0],
            "eval": measured,
        }
    )
    check_distinct(resolved)
    return resolved


def as_toml(*sources: Source) -> str:
    """Sources merged as a settings file, for who is to resolve them elsewhere."""
    return "".join(f"{key} = {toml('none' if value is None else value)}\n" for key, value in merge(sources)[0].items())


def check_distinct(config: Config) -> None:
    """Refuse a comparison in which two methods, or two seeds, would have one name and so one folder."""
    labels = [read_method(method)[1].get("label") or method for method in config.methods or []]
    seeds = [str(seed) for seed in config.seeds or []]
    for what, names in (("method", labels), ("baseline", config.baselines), ("seed", seeds)):
        folders = set()
        for name in names:
            folder = files.folder_name(name).casefold()
            if folder in folders:
                raise UserError(f"the {what} {name} is given twice; every {what} of a comparison must differ")
            folders.add(folder)


def _checked(values: Mapping[str, Any], origin: Mapping[str, str]) -> Config:
    """Validated settings with the defaults that depend on other keys."""
    config = _check_problem(shaped(values, origin), values)
    wire = next((key for key in values if key.startswith("wire.")), None)
    if wire is not None and config.engine.name != "wire":
        raise UserError(
            f"{wire} ({origin[wire]}) has no effect with engine {config.engine.name}; leave it out, or use engine wire"
        )
    update: dict[str, Any] = {key: canonical(key, getattr(config, key)) for key in PARTS if "." not in key}
    update |= {
        "local": check_local(config.local),
        "privacy": check_privacy(config.privacy),
        "eval": _check_eval(config),
    }
    if config.data_dir is not None:  # a run that is resumed from elsewhere must find the same files
        update["data_dir"] = str(Path(config.data_dir).expanduser().absolute())
    config = config.model_copy(update=update)
    return config.model_copy(
        update={"cohort": _cohort(config, origin.get("cohort", "") if "cohort" in values else None)}
    )


def _cohort(config: Config, origin: str | None) -> int:
    """Clients of a round: those that are expected where the sampling says a share of all, or everyone.

    Args:
        origin: where the key `cohort` was written; None where it was not.
    """
    share, cohort = call_of("sampling", config.sampling).given.get("share"), config.cohort
    if share is None and config.sampling != "everyone":
        if origin is not None and cohort > config.clients:
            larger = f"cohort {cohort} ({origin}) is larger than clients {config.clients}"
            raise UserError(f"{larger}; give a smaller cohort or more clients")
        return min(cohort, config.clients)
    expected = config.clients if share is None else max(1, round(share * config.clients))
    if origin is not None and cohort != expected:
        draws = "takes all who are there" if share is None else f"draws about {expected} of {config.clients} clients"
        raise UserError(f"sampling {config.sampling} {draws}, given cohort {cohort} ({origin}); leave cohort out")
    return expected


def _check_eval(config: Config) -> EvalSettings:
    """What is measured, with what depends on validation."""
    personalise = canonical("eval.personalise", config.eval.personalise)
    if personalise is not None and config.validation is None:
        raise UserError(
            f"eval.personalise {personalise} is judged on samples that clients set apart; set validation, as in 0.1"
        )
    for key in ("watch", "min_delta") if config.eval.patience is None else ():
        if (value := getattr(config.eval, key)) != getattr(EvalSettings(), key):
            raise UserError(f"eval.{key} {value} has no effect without eval.patience; give both or neither")
    if config.eval.stop_at_target and config.eval.target is None:
        raise UserError("eval.stop_at_target has no effect without eval.target; give a target, or leave it out")
    return config.eval.model_copy(update={"personalise": personalise})


def _check_problem(config: Config, keys: Collection[str]) -> Config:
    """Data, partition and model by name and parameters; a problem brings its own clients and takes neither.

    Data that are drawn for a number of clients (an option `clients`) and the key `clients` say the same number. Data of
    one's own are read here, for only they know their clients and their target.
    """
    config = problem.absolute(config)
    call = None
    if kind_of(config.data) == "named":
        problem.check_unused(config, keys)
        call = call_of("data", config.data)
        if call.name in PROBLEMS:
            return _check_own_clients(config, call.name)
    drawn_clients = None if call is None else call.resolved().get("clients")
    target: Target = "class"
    partition, natural = config.partition, None
    if call is None or (partition == NATURAL and drawn_clients is None):
        seed = config.seed or (config.seeds or [0])[0]
        dataset = problem.dataset_of(config.data, config.data_dir, seed, config.input)
        target, natural = dataset.target, dataset.natural
    if partition is None:
        comes_in_clients = natural is not None or drawn_clients is not None
        partition = NATURAL if comes_in_clients else DEFAULT_PARTITION if target == "class" else "iid"
    update: dict[str, Any] = {"model": config.model or DEFAULT_MODEL, "partition": partition}
    if partition != NATURAL:
        divider = grammar.parse(partition, "partition").name
        if target != "class" and divider not in LABEL_FREE and not imports.is_path(divider):  # one's own says it itself
            raise UserError(
                f"partition {partition} goes by class, and the target is {target}; use natural, "
                f"{' or '.join(LABEL_FREE)}"
            )
        count = getattr(call_of("partition", partition).factory, "clients", None)  # of one that lists their samples
        update["clients"] = config.clients if count is None else _clients(config, keys, f"partition {partition}", count)
    elif call is not None and drawn_clients is not None:
        count = call.given.get("clients", config.clients if "clients" in keys else drawn_clients)
        update["clients"] = _clients(config, keys, f"data {call}", count)
        update["data"] = str(replace(call, given={**call.given, "clients": count}))
    elif natural is None:
        way = "name their column with --client-column" if call is None else f"give another partition than {NATURAL}"
        raise UserError(f"data {config.data} does not come in clients; {way}")
    else:
        update["clients"] = _clients(config, keys, f"data {config.data}", len(natural))
    return _check_task(config, update, target)


def _check_own_clients(config: Config, name: str) -> Config:
    for key in ("partition", "skew", "model", "adapters", "norm", "labels", "task", "validation", "loss", "metrics"):
        value = getattr(config, key)
        if value not in (None, [], "auto", "pooled"):
            raise UserError(f"data {name} brings its own clients and takes no {key}, given {value}; leave it out")
    if config.eval.target is not None:
        raise UserError(f"eval.target is an accuracy, which data {name} does not have; leave it out")
    return config


def _clients(config: Config, keys: Collection[str], what: str, count: int) -> int:
    """The number of clients that something has by itself; the key may not say another one."""
    if "clients" in keys and config.clients != count:
        raise UserError(f"{what} has {count} clients, given clients {config.clients}; leave clients out")
    return count


def _check_task(config: Config, update: dict[str, Any], target: Target) -> Config:
    """Model, loss, metrics and task, for data with this kind of target."""
    if target != "class" and (config.task is not None or config.labels is not None):
        raise UserError(f"task {config.task or 'semi'} is of classes, and the target is {target}; leave it out")
    if config.loss is not None:
        check_loss(part("loss", config.loss), target)
    measured = metrics_of(config.metrics, target)
    if config.task is not None and (config.loss is not None or config.metrics):
        raise UserError(f"task {config.task} has its own loss and metrics; leave loss and metrics out")
    task = None if config.task is None else grammar.parse(config.task, "task").name
    if isinstance(config.validation, float) and (task is not None or config.labels is not None):
        raise UserError(
            f"validation {config.validation:g} sets samples with labels apart, which task {task or 'semi'} does not "
            "know; leave it out"
        )
    if config.norm != "pooled" and (config.task, config.labels) != (None, None):
        raise UserError(f"norm {config.norm} is of supervised models, and the task is {task or 'semi'}; leave it out")
    if task == "clustering":
        for key, value in (
            ("model", config.model),
            ("adapters", config.adapters),
            ("labels", config.labels),
            ("eval.target", config.eval.target),
        ):
            if value is not None:
                raise UserError(f"task clustering has no {key}, given {value}; leave it out")
        return config.model_copy(update=update | {"model": None})
    if config.eval.target is not None and config.eval.target > 1 and measured[0].name in SHARES:
        raise UserError(
            f"eval.target must be a number > 0 and <= 1, given {config.eval.target:g}: it is of {measured[0].name}"
        )
    update["model"] = str(call_of("model", update["model"]))
    if task == "semi" and config.labels is None:
        raise UserError("task semi needs samples without labels; say which keep theirs, as in labels labelled(0.1)")
    if task is None and config.labels is not None:
        update["task"] = "semi"
    return config.model_copy(update=update)
