"""The settings of a job: every key with its meaning, merged from defaults, a file, options and --set, and checked.

A later source wins over an earlier one. Two keys that exclude each other (`local.epochs` and `local.steps`) may not
come from one source; across sources the later one replaces the other.
"""

from __future__ import annotations

import difflib
import functools
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from fedconcord import rng, spec
from fedconcord.algorithms import family, plugins
from fedconcord.core import Algorithm, Oracle, Population, Problem, n_clients
from fedconcord.data import DATASETS, Dataset, data_folder
from fedconcord.engines import Engine, Serial, Stacked
from fedconcord.errors import UserError, closest
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.labels import LABELS
from fedconcord.heterogeneity.partitions import PARTITIONS
from fedconcord.heterogeneity.sampling import SAMPLERS
from fedconcord.heterogeneity.schedule import Schedule
from fedconcord.heterogeneity.work import WORK, Work, epoch_steps
from fedconcord.models import MODELS
from fedconcord.oracles import ORACLES, with_table
from fedconcord.problems import PROBLEMS, Regularised, Supervised
from fedconcord.problems.clustering import clustering
from fedconcord.problems.semi import semi
from fedconcord.regularisers import REGULARISERS
from fedconcord.server import OPTIMIZERS, with_server
from fedconcord.solvers import Solver
from fedconcord.training import Job
from fedconcord.uploads import COMPRESSORS, with_uploads

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Value = spec.Value
WORK_TEXT = {"wanted": "an integer >= 1 or a draw such as uniform(1,5)"}


class LocalSettings(BaseModel):
    """What a client does in a round."""

    model_config = STRICT
    epochs: Annotated[
        Count | str | None,
        Field(description="passes over its samples", json_schema_extra=WORK_TEXT),
    ] = 1
    steps: Annotated[
        Count | str | None, Field(description="local steps, instead of epochs", json_schema_extra=WORK_TEXT)
    ] = None
    batch_size: Annotated[Count | Literal["full"], Field(description="samples a step, or full")] = 10
    lr: Annotated[float, Field(gt=0, description="local step size")] = 0.1
    lr_decay: Annotated[float, Field(gt=0, le=1, description="factor on the local step size after each round")] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="heavy-ball momentum, fresh each round")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="l2 pull to zero, added to the gradient")] = 0.0
    clip: Annotated[
        Annotated[float, Field(gt=0)] | None, Field(description="largest l2 norm of a stochastic gradient")
    ] = None
    oracle: Annotated[
        str,
        Field(
            description="which gradient a local step uses",
            json_schema_extra={"wanted": "a gradient oracle such as full or sam(0.1)"},
        ),
    ] = "minibatch"
    solver: Annotated[
        Literal["sgd", "lbfgs"], Field(description="gradient steps, or L-BFGS on the client's full objective")
    ] = "sgd"
    step_decay: Annotated[
        float, Field(gt=0, le=1, description="factor on the local step size after each step of a round")
    ] = 1.0
    tolerance: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="a client stops early at ||gradient of its local problem||^2 <= this; epochs are the cap"),
    ] = None


class EngineSettings(BaseModel):
    """How the rounds are computed; results do not depend on it."""

    model_config = STRICT
    name: Annotated[Literal["stacked", "serial"], Field(description="many clients at once, or one by one")] = "stacked"
    chunk: Annotated[Count | Literal["auto"], Field(description="clients in one batch of the stacked engine")] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to compute")] = "cpu"
    dtype: Annotated[Literal["float32", "float64"], Field(description="precision of models and data")] = "float32"
    threads: Annotated[Count | None, Field(description="CPU threads of one run; all cores if none")] = None


class EvalSettings(BaseModel):
    """What is measured between rounds."""

    model_config = STRICT
    every: Annotated[int, Field(ge=1, description="rounds between evaluations")] = 1
    target: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None, Field(description="test accuracy whose first round is reported")
    ] = None
    train_samples: Annotated[int, Field(ge=1, description="size of the fixed sample for the train loss")] = 10_000


class CheckpointSettings(BaseModel):
    """How much work an interruption may cost."""

    model_config = STRICT
    every: Annotated[float, Field(ge=0, description="seconds between checkpoints; 0 is every round")] = 30.0


class Config(BaseModel):
    """A whole job: one run (`method`, `seed`) or a comparison (`methods` x `seeds`)."""

    model_config = STRICT
    method: Annotated[str | None, Field(description="the method of a run, fedavg or fedprox(mu=0.1)")] = None
    methods: Annotated[
        Annotated[list[str], Field(min_length=1)] | None,
        Field(
            description="the methods of a comparison; fedprox(mu=0.1, local.lr=0.05) sets a local key for one, "
            "as do server= and upload=",
            json_schema_extra={"wanted": "a list of methods such as fedavg,fedprox(mu=0.1)"},
        ),
    ] = None
    algorithm: Annotated[dict[str, Any], Field(description="parameters of the one method: algorithm.mu = 0.1")] = {}
    label: Annotated[str | None, Field(description="name of the run in reports; the method's text if none")] = None
    data: Annotated[str, Field(description="data set or problem; `list data` shows all")] = "digits"
    data_dir: Annotated[str | None, Field(description="folder of data files; else $FEDCONCORD_DATA, else a cache")] = (
        None
    )
    partition: Annotated[str | None, Field(description="which client holds which samples")] = None
    model: Annotated[str | None, Field(description="the model")] = None
    labels: Annotated[
        str | None,
        Field(
            description="which samples keep their label; all if none",
            json_schema_extra={"wanted": "a removal of labels such as labelled(0.1)"},
        ),
    ] = None
    task: Annotated[
        str | None,
        Field(
            description="semi or clustering, with a private block a client; classification if none, semi with labels",
            json_schema_extra={"wanted": "a task such as semi(alpha_r=0.1) or clustering(k=10)"},
        ),
    ] = None
    regulariser: Annotated[
        str | None,
        Field(
            description="a non-smooth term of the objective, met by proximal steps; none if none",
            json_schema_extra={"wanted": "a regulariser such as l1(0.001)"},
        ),
    ] = None
    clients: Annotated[int, Field(ge=1, description="clients N")] = 50
    cohort: Annotated[int, Field(ge=1, description="clients that take part in a round; 10, or all if fewer")] = 10
    rounds: Annotated[int, Field(ge=1, description="communication rounds")] = 100
    sampling: Annotated[
        str,
        Field(
            description="which clients take part in a round",
            json_schema_extra={"wanted": "a sampling such as uniform or bernoulli(0.1)"},
        ),
    ] = "uniform"
    server: Annotated[
        str | None,
        Field(
            description="what the method's step at the server goes through; the step as it is if none",
            json_schema_extra={"wanted": "a server optimiser such as momentum(0.9)"},
        ),
    ] = None
    upload: Annotated[
        str | None,
        Field(
            description="how the clients' messages are compressed; not at all if none",
            json_schema_extra={"wanted": "a compressor such as quantise(8) or topk(0.1)"},
        ),
    ] = None
    seed: Annotated[
        Seed | None, Field(description="the seed of a run", json_schema_extra={"wanted": "an integer >= 0"})
    ] = None
    seeds: Annotated[
        Annotated[list[Seed], Field(min_length=1)] | None,
        Field(
            description="the seeds of a comparison; all methods of a seed meet the same clients and batches",
            json_schema_extra={"wanted": "a list of integers >= 0 such as 0,1,2"},
        ),
    ] = None
    out: Annotated[str | None, Field(description="folder of the results; a new one below runs/ if none")] = None
    local: LocalSettings = LocalSettings()
    engine: EngineSettings = EngineSettings()
    eval: EvalSettings = EvalSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values without the keys that are not set: JSON, and TOML but for a parameter that is none."""
        full = self.model_dump(mode="json")
        nested = {k: {i: v for i, v in x.items() if v is not None} for k, x in full.items() if k in SECTIONS}
        flat = {k: v for k, v in full.items() if k not in SECTIONS and v is not None and v != {}}
        return {k: full["algorithm"] if k == "algorithm" else v for k, v in (flat | nested).items()}

    def single(self, method: str, seed: int) -> Config:
        """The settings of one run: its method's parameters with defaults, its own other settings, its label."""
        call, overrides = read_method(method, self.algorithm)
        parts = {key: canonical(key, overrides.get(key, getattr(self, key))) for key in PARTS_OF_METHOD}
        return self.model_copy(
            update={
                "method": call.name,
                "methods": None,
                "algorithm": call.resolved(),
                "label": self.label or self.label_of(call, overrides),
                "seed": seed,
                "seeds": None,
                "local": local_for(self.local, call.name, overrides),
                **parts,
            }
        )

    def label_of(self, call: spec.Call, overrides: Mapping[str, Any]) -> str:
        """The canonical text of a method: its parameters, the server optimiser and compressor that it runs with
        whoever set them, and the local settings of its own."""
        common = {key: spec.parse(written) for key in PARTS_OF_METHOD if (written := getattr(self, key)) is not None}
        every = {**common, **overrides}
        order = [*PARTS_OF_METHOD, *(f"local.{name}" for name in LocalSettings.model_fields)]
        own = {key: every[key] for key in order if key in every and key not in call.given}
        return str(spec.Spec(call.name, (), {**call.given, **own}))

    def runs(self) -> list[Config]:
        """The runs of this job, methods of one seed side by side."""
        methods, seeds = self.methods or [self.method or "fedavg"], self.seeds or [self.seed or 0]
        return [self.single(method, seed) for seed in seeds for method in methods]


SECTIONS: dict[str, type[BaseModel]] = {
    "local": LocalSettings,
    "engine": EngineSettings,
    "eval": EvalSettings,
    "checkpoint": CheckpointSettings,
}
TASKS: dict[str, Callable[..., Problem]] = {"semi": semi, "clustering": clustering}
PARTS: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {  # keys that name a thing of a registry
    "sampling": ("sampling", SAMPLERS),
    "server": ("server optimiser", OPTIMIZERS),
    "upload": ("compressor", COMPRESSORS),
    "regulariser": ("regulariser", REGULARISERS),
    "labels": ("removal of labels", LABELS),
    "task": ("task", TASKS),
    "local.oracle": ("gradient oracle", ORACLES),
}
PARTS_OF_METHOD = ("server", "upload")  # which a method of a comparison may have for itself, beside local.*
RIVALS = (("method", "methods"), ("seed", "seeds"), ("local.epochs", "local.steps"))
DEFAULT_PARTITION, DEFAULT_MODEL = "dirichlet(0.1)", "2nn"
NATURAL = "natural"  # the partition of data that come in clients


@functools.cache
def keys() -> dict[str, dict[str, Any]]:
    """Every key in dotted form with its JSON schema; `algorithm` stands for the method's own parameters."""
    found: dict[str, dict[str, Any]] = dict(Config.model_json_schema()["properties"])
    for section, model in SECTIONS.items():
        del found[section]
        found |= {f"{section}.{k}": v for k, v in model.model_json_schema()["properties"].items()}
    return found


# -- sources -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Settings from one place, by dotted key, and where each was written."""

    values: Mapping[str, Any]
    origin: Mapping[str, str]


def from_nested(nested: Mapping[str, Any], origin: str) -> Source:
    """Settings as nested tables (dotted keys are understood as well), all from one place."""
    values = dict(_flat(nested, origin))
    return Source(values, dict.fromkeys(values, origin))


def from_file(path: Path) -> Source:
    """Settings from a TOML file, or a JSON file as a result folder holds it."""
    try:
        content = path.read_text(encoding="utf-8")
        nested = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except OSError as error:
        raise UserError(f"cannot read the settings {path}: {error.strerror}") from None
    except (ValueError, UnicodeDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UserError(f"{path} is not valid {kind}: {str(error).splitlines()[0]}") from None
    if not isinstance(nested, dict):
        raise UserError(f"{path} must hold a table of settings")
    return from_nested(nested, path.name)


def from_options(options: Mapping[str, tuple[str, Any]], settings: Sequence[str] = ()) -> Source:
    """Settings from named options, dotted key -> (option, value), and over them `--set key=value` texts.

    Options with value None were not given.
    """
    given = {key: (name, value) for key, (name, value) in options.items() if value is not None}
    for setting in settings:
        key, mark, value = setting.partition("=")
        if not mark or not key.strip():
            raise UserError(f"--set needs key=value, given {setting!r}; write for example --set local.lr=0.05")
        given[key.strip()] = ("--set", toml_value(value))
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, (name, value) in given.items():
        flat = dict(_flat({key: value}, name))
        values |= flat
        origin |= dict.fromkeys(flat, name)
    return Source(values, origin)


def toml_value(written: str) -> Any:
    """A value as TOML reads it; a bare word or a call is text."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return spec.scalar(written.strip())


def _flat(nested: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        full = f"{prefix}{key}"
        if full == "algorithm" or full in SECTIONS:
            if not isinstance(value, Mapping):
                inside = "rho = 0.1" if full == "algorithm" else ", ".join(SECTIONS[full].model_fields)
                raise UserError(f"{full} is a table of keys ({inside}), given {spec.shown(value)} ({origin})")
            yield from _flat(value, origin, f"{full}.")
        elif full in keys() or full.startswith("algorithm."):
            yield full, value
        else:
            raise UserError(f"unknown key {full!r} ({origin}){_near(full)}; `fedconcord list settings` shows all keys")


def _near(given: str) -> str:
    """The closest full key: one with the same last part, else one with similar text, else a similar last part."""
    last = given.rsplit(".", 1)[-1]
    ends = {known.rsplit(".", 1)[-1]: known for known in reversed(keys())}
    similar = difflib.get_close_matches(given, [*keys(), *SECTIONS], n=1) or [
        ends[end] for end in difflib.get_close_matches(last, ends, n=1)
    ]
    match = [ends[last]] if last in ends else similar
    return f" (did you mean {match[0]!r}?)" if match else ""


# -- merging and checking ------------------------------------------------------------------------------------------


def resolve_run(*sources: Source) -> Config:
    """The settings of one run."""
    values, origin = _merge(sources)
    for one, many in (("method", "methods"), ("seed", "seeds")):
        given = values.get(many)
        if not isinstance(given, list):  # none, or wrong: `_checked` says so
            continue
        del values[many]
        if len(given) != 1:
            raise UserError(
                f"a run takes one {one}, given {len(given)} ({origin[many]}); use fedconcord compare for several"
            )
        values[one], origin[one] = given[0], origin[many]
    config = _checked(values, origin)
    return config.single(config.method or "fedavg", config.seed or 0)


def resolve_compare(*sources: Source) -> Config:
    """The settings of a comparison: `methods` in canonical form, `seeds`."""
    values, origin = _merge(sources)
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
    labels = [config.label_of(*read_method(method, config.algorithm)) for method in config.methods]
    _distinct("method", labels)
    seeds = config.seeds or [0]
    _distinct("seed", [str(seed) for seed in seeds])
    return config.model_copy(update={"methods": labels, "algorithm": {}, "seeds": seeds})


def _distinct(what: str, names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        folder = spec.folder_name(name)
        if folder in seen:
            raise UserError(f"the {what} {name} is given twice; every {what} of a comparison must differ")
        seen[folder] = name


def _merge(sources: Iterable[Source]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source in sources:
        given = {key: _prepare(key, value) for key, value in source.values.items()}
        for pair in RIVALS:
            set_here = [key for key in pair if given.get(key) is not None]
            if len(set_here) == 2:
                a, b = pair
                places = " and ".join(dict.fromkeys(source.origin[key] for key in pair))
                raise UserError(f"{a} and {b} exclude each other ({places}); give one of them")
            for rival in pair:
                if set_here and rival not in given:
                    values.pop(rival, None)
        values |= given
        origin |= source.origin
    if values.get("local.steps") is not None:
        values["local.epochs"] = None
    return values, origin


def _prepare(key: str, value: Any) -> Any:
    """Lists may be written as 'a,b', a single value stands for a list of it, and none unsets what may be unset."""
    if key in ("methods", "seeds"):
        if isinstance(value, str):
            parts = spec.split_list(value)
            return parts if key == "methods" else [spec.scalar(part) for part in parts]
        if isinstance(value, tuple | range):
            return list(value)
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if value == "none" and key in keys() and {"type": "null"} in keys()[key].get("anyOf", ()):
        return None
    return value


def _validated(model: type[BaseModel], values: Mapping[str, Any], prefix: str, origin: Mapping[str, str]) -> Any:
    """The values as a model; the first wrong one becomes a sentence."""
    try:
        # JSON mode is strict about numbers, texts and booleans alike
        return model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        loc = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
        full = prefix + loc[0] + (f".{loc[1]}" if loc[0] in SECTIONS and len(loc) > 1 else "")
        value: Any = values
        for part in full.removeprefix(prefix).split("."):
            value = value[part]
        place = f" ({origin[full]})" if full in origin else ""
        schema = keys()[full.split(": ")[-1]]
        given = f"{spec.shown(value)}{spec.near_choice(schema, value)}{place}"
        raise UserError(f"{full} must be {spec.must_be(schema)}, given {given}") from None


def _checked(values: Mapping[str, Any], origin: Mapping[str, str]) -> Config:
    """Validated settings with the defaults that depend on other keys."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, _, tail = key.partition(".")
        if tail:
            nested.setdefault(head, {})[tail] = value
        else:
            nested[key] = value
    config = _check_problem(_validated(Config, nested, "", origin), values)
    parts = {key: canonical(key, getattr(config, key)) for key in PARTS if "." not in key}
    config = config.model_copy(update={**parts, "local": _check_local(config.local)})
    share = spec.check(SAMPLERS, "sampling", config.sampling).given.get("share")
    if share is not None:  # it says the cohort that is to be expected
        expected = max(1, round(share * config.clients))
        if config.cohort != expected and "cohort" in values:
            raise UserError(
                f"sampling {config.sampling} draws about {expected} of {config.clients} clients, given cohort "
                f"{config.cohort} ({origin['cohort']}); give one of them"
            )
        config = config.model_copy(update={"cohort": expected})
    elif "cohort" not in values:
        config = config.model_copy(update={"cohort": min(config.cohort, config.clients)})
    if config.cohort > config.clients:
        place = f" ({origin['cohort']})" if "cohort" in origin else ""
        raise UserError(
            f"cohort {config.cohort}{place} is larger than clients {config.clients}; "
            "give a smaller cohort or more clients"
        )
    if config.data_dir is not None:  # a run that is resumed from elsewhere must find the same files
        config = config.model_copy(update={"data_dir": str(Path(config.data_dir).expanduser().absolute())})
    return config


def work_of(work: int | str) -> Work:
    """Local work from its setting: a number, or a draw of the registry."""
    drawn: Work = spec.build(WORK, "local work", spec.Spec("fixed", (work,)) if isinstance(work, int) else work)
    return drawn


def _check_local(local: LocalSettings) -> LocalSettings:
    for work in (local.epochs, local.steps):
        if work is not None:
            work_of(work)
    return local.model_copy(update={"oracle": canonical("local.oracle", local.oracle)})


def canonical(key: str, value: Value) -> str | None:
    """The text of a part with its parameters by name, or None for none; `value` is a text or what `spec` read."""
    if value is None or value == "none":
        return None
    what, registry = PARTS[key]
    call = spec.check(registry, what, value if isinstance(value, str | spec.Spec) else spec.text(value))
    return None if call.name == "none" else str(call)


def part(key: str, written: str) -> Any:
    """The thing that such a text stands for."""
    what, registry = PARTS[key]
    return spec.build(registry, what, written)


def _check_problem(config: Config, given: Collection[str]) -> Config:
    """Data, partition and model by name and parameters; a problem brings its own clients and takes neither.

    Data that are drawn for a number of clients (an option `clients`) and the key `clients` say the same number.
    """
    name = spec.parse(config.data, "data set").name
    if name in PROBLEMS:
        spec.check(PROBLEMS, "data set", config.data)
        for key in ("partition", "model", "labels", "task"):
            value = getattr(config, key)
            if value is not None:
                raise UserError(f"data {name} brings its own clients and takes no {key}, given {value}; leave it out")
        if config.eval.target is not None:
            raise UserError(f"eval.target is an accuracy, which data {name} does not have; leave it out")
        return config
    call = spec.check({**DATASETS, **PROBLEMS}, "data set", config.data)
    update: dict[str, Any] = {
        "model": config.model or DEFAULT_MODEL,
        "partition": config.partition or DEFAULT_PARTITION,
    }
    if "clients" in call.resolved():
        update["partition"] = config.partition or NATURAL
        own = call.given.get("clients", config.clients if "clients" in given else call.resolved()["clients"])
        if "clients" in given and own != config.clients and update["partition"] == NATURAL:
            raise UserError(f"data {call} has {own} clients, given clients {config.clients}; give the number once")
        if update["partition"] == NATURAL:
            update |= {"clients": own, "data": str(replace(call, given={**call.given, "clients": own}))}
    if update["partition"] != NATURAL:
        spec.check(PARTITIONS, "partition", update["partition"])
    task = None if config.task is None else spec.parse(config.task, "task").name
    if task == "clustering":
        for key, value in (("model", config.model), ("labels", config.labels), ("eval.target", config.eval.target)):
            if value is not None:
                raise UserError(f"task clustering has no {key}, given {value}; leave it out")
        return config.model_copy(update=update | {"model": None})
    spec.check(MODELS, "model", update["model"])
    if task == "semi" and config.labels is None:
        raise UserError("task semi needs samples without labels; say which keep theirs, as in labels labelled(0.1)")
    if task is None and config.labels is not None:
        update["task"] = "semi"
    return config.model_copy(update=update)


# -- methods -------------------------------------------------------------------------------------------------------


def read_method(written: str, algorithm: Mapping[str, Any] | None = None) -> tuple[spec.Call, dict[str, Value]]:
    """A method's text, with the parameters of the `algorithm` table, as a checked call and its settings by full key:
    `local.*` and parts such as `server`, canonical. A parameter of the method goes before a part of the same name."""
    methods, parsed = plugins.available(), spec.parse(written, "method")
    takes = [option.name for option in spec.options(methods[parsed.name])] if parsed.name in methods else []
    overrides = {
        key: value
        for key, value in parsed.kwargs.items()
        if key.startswith("local.") or (key in PARTS_OF_METHOD and key not in takes)
    }
    own = {key: value for key, value in parsed.kwargs.items() if key not in overrides}
    for key, value in (algorithm or {}).items():
        if own.get(key, value) != value:
            raise UserError(
                f"method {parsed.name}: {key} is given twice, as {spec.text(own[key])} and as "
                f"algorithm.{key} = {spec.text(value)}; give it once"
            )
        own[key] = value
    call = spec.check(methods, "method", spec.Spec(parsed.name, parsed.args, own))
    local_for(LocalSettings(), call.name, overrides)
    for key in PARTS.keys() & overrides.keys():
        text = canonical(key, overrides[key])
        overrides[key] = None if text is None else spec.parse(text)
    return call, overrides


def local_for(base: LocalSettings, method: str, overrides: Mapping[str, Any]) -> LocalSettings:
    """The local settings of one method: the job's, with the method's own `local.*` over them."""
    plain = {k.removeprefix("local."): spec.plain(v) for k, v in overrides.items() if k.startswith("local.")}
    if plain.get("epochs") is not None and plain.get("steps") is not None:
        raise UserError(f"method {method}: local.epochs and local.steps exclude each other; give one of them")
    for key in plain:
        if key not in LocalSettings.model_fields:
            known = [f"local.{name}" for name in LocalSettings.model_fields]
            near = closest(f"local.{key}", known)
            raise UserError(f"method {method}: unknown key 'local.{key}'{near}; known: {', '.join(known)}")
    values = base.model_dump()
    if plain.get("steps") is not None:
        values["epochs"] = None
    if plain.get("epochs") is not None:
        values["steps"] = None
    values |= {k: _prepare(f"local.{k}", v) for k, v in plain.items()}
    local: LocalSettings = _validated(LocalSettings, values, f"method {method}: local.", {})
    return _check_local(local)


# -- from settings to a job ----------------------------------------------------------------------------------------


def problem_of(config: Config) -> Problem:
    """The clients of a run. The last one is kept: the methods of one seed share it."""
    return _problem(
        config.data,
        config.data_dir,
        config.partition,
        config.model,
        config.clients,
        config.seed or 0,
        getattr(torch, config.engine.dtype),
        device_of(config),
        config.eval.train_samples,
        config.labels,
        config.task,
    )


@functools.lru_cache(maxsize=1)
def _problem(
    data: str,
    data_dir: str | None,
    partition: str | None,
    model: str | None,
    clients: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    train_samples: int,
    labels: str | None,
    task: str | None,
) -> Problem:
    if partition is None:  # a problem with its own clients
        brought: Problem = spec.build(PROBLEMS, "data set", data, seed, clients, dtype, device)
        return brought
    dataset: Dataset = spec.build(DATASETS, "data set", data, data_folder(data_dir), seed)
    if partition != NATURAL:
        draw = rng.generator(seed, rng.Purpose.PARTITION)
        parts = spec.build(PARTITIONS, "partition", partition, dataset.train_y, clients, draw)
    elif dataset.natural is None:
        raise UserError(f"data {data} does not come in clients; give another partition than {NATURAL}")
    else:
        parts = dataset.natural
    if task is not None and spec.parse(task, "task").name == "clustering":
        clusters: Problem = spec.build(TASKS, "task", task, dataset, parts, dtype, device)
        return clusters
    call = spec.check(MODELS, "model", model or DEFAULT_MODEL)

    def network() -> nn.Module:
        made: nn.Module = call(dataset.shape, dataset.classes)
        return made

    if task is not None:
        masks = spec.build(LABELS, "removal of labels", labels or "", parts, seed)
        partly: Problem = spec.build(TASKS, "task", task, network, dataset, parts, masks, dtype, device, train_samples)
        return partly
    return Supervised(
        network,
        dataset,
        parts,
        dtype=dtype,
        device=device,
        train_samples=train_samples,
    )


def forget_problem() -> None:
    """Let go of the problem that is kept."""
    _problem.cache_clear()


def device_of(config: Config) -> torch.device:
    """The device of a run.

    Raises:
        UserError: cuda is asked for and not there.
    """
    wanted, there = config.engine.device, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError("engine.device is cuda, and torch finds no CUDA device here; use cpu or auto")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def build(config: Config) -> Job:
    """The job of one run's settings, as `resolve_run` or `Config.runs` gives them."""
    local = config.local
    work = local.epochs if local.steps is None else local.steps
    engine: Engine = Serial()
    if config.engine.name == "stacked":
        engine = Stacked() if config.engine.chunk == "auto" else Stacked(config.engine.chunk)
    called = spec.Spec(config.method or "fedavg", (), config.algorithm)
    algorithm: Algorithm = spec.build(plugins.available(), "method", called)
    oracle: Oracle = part("local.oracle", local.oracle)
    if oracle.kind == "saga":
        algorithm, oracle = with_table(algorithm, oracle.blocks), Oracle()
    if config.upload is not None:
        algorithm = with_uploads(algorithm, part("upload", config.upload))
    if config.server is not None:
        if algorithm.served:
            raise UserError(
                f"{config.label}: the method has a server optimiser of its own, given server {config.server} as well; "
                f"leave it out, or write {config.method}(server=none)"
            )
        algorithm = with_server(algorithm, part("server", config.server))
    problem: Problem = problem_of(config)
    if config.regulariser is not None:
        problem = Regularised(problem, part("regulariser", config.regulariser))
    return Job(
        problem=problem,
        algorithm=algorithm,
        schedule=Schedule(
            seed=config.seed or 0,
            cohort=config.cohort,
            lr=local.lr,
            work=work_of(1 if work is None else work),
            unit="epochs" if local.steps is None else "steps",
            batch_size=None if local.batch_size == "full" else local.batch_size,
            lr_decay=local.lr_decay,
            sampler=part("sampling", config.sampling),
        ),
        solver=Solver(
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            clip=local.clip,
            oracle=oracle,
            step_decay=local.step_decay,
            tolerance=local.tolerance,
            kind=local.solver,
        ),
        engine=engine,
    )


def advise(config: Config) -> None:
    """Warn of step sizes outside FedVRA's sufficient condition (18), with the numbers of the longest round.

    Only for plain `fedvra` with numbers for d: the rules choose d by themselves.
    """
    given = config.algorithm
    if config.method != "fedvra" or not isinstance(given["d"], int | float):
        return
    local, problem = config.local, problem_of(config)
    written = local.epochs if local.steps is None else local.steps
    amount = spec.check(WORK, "local work", written if isinstance(written, str) else f"fixed({written or 1})")
    drawn = amount.resolved()
    most: int = drawn.get("high") or drawn.get("value") or 1
    if local.steps is None:
        largest = int((problem.offsets[1:] - problem.offsets[:-1]).max())
        most *= epoch_steps(largest, None if local.batch_size == "full" else local.batch_size)
    gamma = max(given["gamma"]) if isinstance(given["gamma"], list) else given["gamma"]
    share = config.cohort / config.clients
    family.check(family.conditions(share, given["a"], given["d"], gamma, local.lr, most))


def refuse(job: Job, config: Config) -> None:
    """What a round would refuse, said before the first one.

    Raises:
        UserError: rounds may lack clients that the method needs, a client is smaller than its blocks, or a Hessian is
            too large.
    """
    problem, algorithm = job.problem, job.algorithm
    n = n_clients(problem)
    if config.sampling != "uniform" and n > 1:
        population = Population(n, torch.as_tensor(weights.objective(algorithm.weights, problem.sizes)))
        if algorithm.refuse(population, n) is None and algorithm.refuse(population, n - 1) is not None:
            raise UserError(
                f"the method needs all {n} clients every round, and sampling {config.sampling} may leave some out; "
                f"use sampling uniform with cohort {n}"
            )
    if algorithm.blocks is not None:
        smallest = int((problem.offsets[1:] - problem.offsets[:-1]).argmin())
        job.schedule.members(smallest, algorithm, problem.offsets)
    if algorithm.hessian_at is not None:
        problem.hessian(problem.init(job.schedule.seed), torch.tensor([0], device=problem.device))
