"""From settings to data (registered, a file or folder, or a factory by import path), to clients, to their problem;
and the device that computes it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.inputs import Input, hold_out, together
from fedconcord.federation.data.published import data_folder
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.metrics import metrics_of
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.partitions.skew import skewed
from fedconcord.method.contract import Problem, rng
from fedconcord.method.wrappers.hostile import Attack
from fedconcord.method.wrappers.hostile import chosen as attackers
from fedconcord.study.settings.contents import kind_of, stamp
from fedconcord.study.settings.parts import call_of, part
from fedconcord.study.settings.settings import (
    DEFAULT_MODEL,
    MOST_TRAIN_SAMPLES,
    NATURAL,
    Config,
    EngineSettings,
    InputSettings,
)
from fedconcord.support import factories, files, grammar, imports, objects
from fedconcord.support.errors import UserError, in_words

LEADING = ("folder", "seed")  # what the program gives to a factory of data


def folder_name(data: str) -> str:
    """A short name of the data, for folders."""
    kind = kind_of(data)
    if kind == "file":
        return files.folder_name(Path(data).stem)
    return files.folder_name(objects.name_of(grammar.parse(data, "data set").name))


def absolute(config: Config) -> Config:
    """With paths that hold from wherever a run is resumed."""
    if kind_of(config.data) != "file":
        return config
    paths = {"data": config.data, "test": config.input.test, "statistics": config.input.statistics}
    full = {key: path if path is None else str(Path(path).expanduser().absolute()) for key, path in paths.items()}
    return config.model_copy(update={"data": full.pop("data"), "input": config.input.model_copy(update=full)})


def dataset_of(data: str, data_dir: str | None, seed: int, input: InputSettings) -> Dataset:
    """The data set. The last one of a file is kept: the seeds of a comparison share it.

    Raises:
        UserError: there is no such data set, or its files are missing or broken.
    """
    kind = kind_of(data)
    if kind == "named":
        dataset: Dataset = factories.build(DATASETS, "data set", data, data_folder(data_dir), seed)
        return dataset
    settings = input_of(input)
    if kind == "file":
        return _read(data, settings, stamp(data, input))
    from fedconcord.federation.data.own import checked  # pyarrow, which other data do not need

    call = factories.check(imports.open_factories(DATASETS, "data set", LEADING), "data set", data)
    try:
        product = call(data_folder(data_dir), seed)
    except (UserError, OSError):
        raise
    except (Exception, SystemExit) as error:  # whatever somebody else's function raises
        raise UserError(f"data {data} failed when they were made: {in_words(error)}") from error
    return checked(product, settings, data)


def input_of(settings: InputSettings) -> Input:
    """How data of one's own are read, as their readers take it."""
    fields = settings.model_dump().items()
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields}
    return Input(**values)


@functools.lru_cache(maxsize=1)
def _read(data: str, settings: Input, stamp: str) -> Dataset:
    from fedconcord.federation.data.own import read_own

    return read_own(Path(data), settings)


def notes(config: Config) -> list[str]:
    """What was guessed of data of the user's own, or left out of them."""
    if kind_of(config.data) != "file":
        return []
    dataset = dataset_of(config.data, config.data_dir, config.seed or 0, config.input)
    return [f"data {dataset.name}: {note}" for note in (dataset.preprocessing or {}).get("said", [])]


def metrics_note(config: Config) -> list[str]:
    """How a table of the user's own with two classes is judged by each of them, where no metrics were chosen."""
    if kind_of(config.data) != "file" or config.metrics or config.task is not None:
        return []
    dataset = dataset_of(config.data, config.data_dir, config.seed or 0, config.input)
    if dataset.target != "class" or dataset.classes != 2:
        return []
    first, second = dataset.output_names or ("0", "1")
    return [
        f"data {dataset.name}: two classes are judged by accuracy alone; --metrics accuracy,sensitivity,specificity "
        f"also measures which shares of {second} and of {first} are recognised"
    ]


def check_unused(config: Config, keys: Iterable[str]) -> None:
    """Refuse settings of one's own data where the data are others'."""
    for key in keys:
        name = key.removeprefix("input.")
        if key != name and getattr(config.input, name) != getattr(InputSettings(), name):
            raise UserError(
                f"{key} says how data of your own are read, and data {config.data} are known; leave it out, or give a "
                "file, a folder or package.module:factory as data"
            )


OF_SAMPLES = ("data", "data_dir", "partition", "clients", "skew", "input")  # what decides which samples a client has


@dataclass(frozen=True)
class Choice:
    """Settings that equal others where what they decide is the same."""

    decisive: str
    config: Config = field(compare=False)


def device_of(config: Config) -> torch.device:
    """The device of a run.

    Raises:
        UserError: cuda is asked for and not there.
    """
    device, has_cuda = config.engine.device, torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise UserError("engine.device is cuda, and torch finds no CUDA device here; use cpu or auto")
    if not has_cuda or device == "cpu":
        return torch.device("cpu")
    if config.engine.name != "distributed":
        return torch.device("cuda")
    local, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= devices:
        raise UserError(
            f"the distributed engine needs a CUDA device a process, found {devices}; start {devices}, or use cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def problem_of(config: Config) -> Problem:
    """The clients of a run. The last one is kept: the methods of one seed share it while its files stay as they are."""
    keys = (*OF_SAMPLES, "model", "adapters", "norm", "labels", "task", "validation", "loss", "metrics")
    numbers = {key: getattr(config.engine, key) for key in ("name", "device", "dtype", "precision")}
    problem = _problem(_choice(config, keys, {"engine": EngineSettings(**numbers)}, device_of(config)))
    if not isinstance(problem, Supervised | SemiSupervised | Streamed):
        return problem
    return _sampled(problem, config.eval.train_samples or MOST_TRAIN_SAMPLES)


def first_problem(config: Config) -> Problem:
    """The problem of a run, or of a comparison's first seed."""
    return problem_of(_first(config))


def forget_problem() -> None:
    """Let go of the problem that is kept."""
    _problem.cache_clear()
    _sampled.cache_clear()


def divided(config: Config) -> tuple[Dataset, list[np.ndarray]]:
    """The data of a run with the samples of each client [n_i], features skewed as the settings say.

    Raises:
        UserError: the data bring their own clients, or the partition does not suit the data.
    """
    if config.partition is None:
        raise UserError(
            f"data {config.data} brings its own clients, whose samples are not divided; use another data set"
        )
    dataset, parts = _divided(_samples(config))
    if dataset.streams is not None:
        raise UserError(
            f"the samples of {config.clients} clients of data {config.data} do not fit in memory to be described; "
            "use fewer clients"
        )
    return dataset, parts


def sizes_of(config: Config) -> np.ndarray | None:
    """How many samples each client has [N], in a run or a comparison's first seed; None where they are drawn as clients
    take part."""
    dataset, parts = _divided(_samples(_first(config)))
    return None if dataset.streams is not None else np.array([len(part) for part in parts])


def _first(config: Config) -> Config:
    return config.model_copy(update={"seed": config.seed or (config.seeds or [0])[0]})


def _samples(config: Config) -> Choice:
    """The settings, equal where each client has the same samples."""
    return _choice(config, OF_SAMPLES, {})


def _choice(config: Config, keys: Sequence[str], tables: Mapping[str, Any], *more: Any) -> Choice:
    """These settings, with the defaults of all others: what is read and not named has no effect, and is noticed."""
    attack = None if _label_attack(config) is None else config.hostile
    values = {key: getattr(config, key) for key in keys} | {"seed": config.seed or 0, "hostile": attack, **tables}
    return Choice(repr((values, stamp(config.data, config.input), *more)), Config().model_copy(update=values))


def _label_attack(config: Config) -> Attack | None:
    """What hostile clients do to their labels, if they do."""
    attack: Attack | None = None if config.hostile is None else part("hostile", config.hostile)
    return None if attack is None or attack.labels is None else attack


@functools.lru_cache(maxsize=1)
def _sampled(problem: Supervised | SemiSupervised | Streamed, train_samples: int) -> Problem:
    """The problem with a train loss of so many samples."""
    if isinstance(problem, Streamed):
        return Streamed(problem.judged.sampled(train_samples), problem.streams)
    return problem.sampled(train_samples)


@functools.lru_cache(maxsize=1)
def _problem(choice: Choice) -> Problem:
    config, seed = choice.config, choice.config.seed or 0
    numbers = getattr(torch, config.engine.dtype), device_of(config)
    task, validation = config.task, None if config.validation == "auto" else config.validation  # settled in plans
    _refuse_unlabelled(config)
    if config.partition is None:  # a problem with its own clients
        own_clients: Problem = part("data", config.data, seed, config.clients, *numbers)
        return own_clients
    dataset, parts = _divided(_samples(config))
    _divided.cache_clear()  # the problem has its own
    if dataset.streams is not None and (task, validation) != (None, None):
        key = f"task {task}" if task is not None else f"validation {validation:g}"
        raise UserError(
            f"{key} needs the samples of all clients in memory, and those of {config.clients} clients of data "
            f"{config.data} are drawn as they take part; use fewer clients"
        )
    if task is not None and grammar.parse(task, "task").name == "clustering":
        clusters: Problem = part("task", task, dataset, parts, *numbers)
        return clusters
    call = call_of("model", config.model or DEFAULT_MODEL)

    def network() -> nn.Module:
        model = _network(call, dataset)
        return model if config.adapters is None else part("adapters", config.adapters).attach(model)

    if task is not None:
        masks = part("labels", config.labels or "", parts, seed)
        partly: Problem = part("task", task, network, dataset, parts, masks, *numbers, MOST_TRAIN_SAMPLES)
        return partly
    validation_parts = None
    if validation is not None:
        parts, validation_parts = hold_out(parts, validation, seed)
    problem = Supervised(
        network,
        dataset,
        parts,
        dtype=numbers[0],
        device=numbers[1],
        held=validation_parts,
        loss=None if config.loss is None else part("loss", config.loss),
        metrics=metrics_of(config.metrics, dataset.target),
        numbers=config.engine.precision,
        norm=config.norm,
    )
    if dataset.persons is not None:  # in the order of the samples
        problem.data = problem.data._replace(persons=dataset.persons[np.concatenate(parts)])
    return problem if dataset.streams is None else Streamed(problem, dataset.streams)


def _refuse_unlabelled(config: Config) -> None:
    """Refuse what needs a model of labelled samples where there is none."""
    if config.partition is not None and config.task is None:
        return
    which = f"data {config.data}" if config.partition is None else f"task {config.task}"
    if _label_attack(config) is not None:
        raise UserError(
            f"hostile {config.hostile} lies about the labels of samples, which {which} lacks; use another attack"
        )
    if config.engine.precision != "full":
        raise UserError(
            f"engine.precision {config.engine.precision} is for models of labelled samples, and {which} computes in "
            "engine.dtype alone; use engine.precision full"
        )


def _network(call: factories.Call, dataset: Dataset) -> nn.Module:
    """A model for the data's samples; what a factory of one's own raises becomes a sentence."""
    try:
        network = call(dataset.shape, dataset.classes)
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) or call.name in MODELS:
            raise
        raise UserError(f"model {call.name} failed for samples of shape {dataset.shape}: {in_words(error)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"model {call.name} returned {type(network).__name__}; return a torch.nn.Module")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in network.parameters()):
        raise UserError(f"model {call.name} has lazy layers, whose sizes are not known yet; give them their sizes")
    return network


@functools.lru_cache(maxsize=1)
def _divided(choice: Choice) -> tuple[Dataset, list[np.ndarray]]:
    """The samples of each client [n_i]. Kept until the problem is made of them, which reads them next."""
    config, seed = choice.config, choice.config.seed or 0
    data, partition, skew = config.data, config.partition or NATURAL, config.skew
    dataset = dataset_of(data, config.data_dir, seed, config.input)
    if dataset.streams is not None and (partition, skew) != (NATURAL, None):
        raise UserError(
            f"data {data} are drawn as clients take part, for their samples do not fit in memory, so that they can be "
            "neither divided anew nor skewed; leave partition and skew out, or use fewer clients"
        )
    if partition != NATURAL:
        draw = rng.generator(seed, rng.Purpose.PARTITION)
        parts: list[np.ndarray] = part("partition", partition, dataset.train_y, config.clients, draw)
        parts = parts if dataset.persons is None else together(dataset.persons, parts)
        dataset = dataset._replace(client_names=None)  # which are those of the natural clients
    elif dataset.natural is None:
        raise UserError(f"data {data} does not come in clients; give another partition than {NATURAL}")
    else:
        parts = dataset.natural
    if skew is not None:
        dataset = dataset.scaled()
        if np.issubdtype(dataset.train_x.dtype, np.integer):
            raise UserError(f"skew {skew} changes numbers, and the samples of data {data} are symbols; leave it out")
        dataset = dataset._replace(train_x=skewed(dataset.train_x, parts, seed, call_of("skew", skew)))
    attack = _label_attack(config)
    if attack is None:
        return dataset, parts
    if dataset.target != "class" or dataset.streams is not None:
        raise UserError(
            f"hostile {config.hostile} lies about the classes of samples in memory, and these data have none; use "
            "another attack"
        )
    assert attack.labels is not None
    labels = dataset.train_y.copy()
    for i in attackers(attack, seed, len(parts)):
        labels[parts[i]] = attack.labels(labels[parts[i]], dataset.classes)
    return dataset._replace(train_y=labels), parts
