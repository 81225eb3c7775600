"""From settings to the clients of a job: their samples, and what they minimise."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedconcord.basis import factories, grammar
from fedconcord.basis.errors import UserError
from fedconcord.core import Problem, rng
from fedconcord.data import Dataset
from fedconcord.data.inputs import hold_out
from fedconcord.federation.features import skewed
from fedconcord.models import MODELS
from fedconcord.problems import Supervised
from fedconcord.problems.losses import metrics_of
from fedconcord.problems.precision import Precision
from fedconcord.problems.semi import SemiSupervised
from fedconcord.problems.streamed import Streamed
from fedconcord.settings.own import dataset_of, stamp
from fedconcord.settings.parts import call_of, part
from fedconcord.settings.sections import MOST_TRAIN_SAMPLES, InputSettings
from fedconcord.settings.settings import DEFAULT_MODEL, NATURAL, Config
from fedconcord.transforms.hostile import Attack, chosen


class Samples(NamedTuple):
    """The settings that decide which samples each client has."""

    data: str
    data_dir: str | None
    partition: str | None
    clients: int
    seed: int
    skew: str | None
    input: str  # JSON
    stamp: str  # of the files
    attack: str | None  # one on labels


class Task(NamedTuple):
    """The settings that decide what the clients minimise."""

    samples: Samples
    model: str | None
    dtype: torch.dtype
    device: torch.device
    labels: str | None
    task: str | None
    validation: float | None
    loss: str | None
    metrics: tuple[str, ...]
    precision: Precision


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
    problem = _problem(
        Task(
            _samples(config),
            config.model,
            getattr(torch, config.engine.dtype),
            device_of(config),
            config.labels,
            config.task,
            None if config.validation == "auto" else config.validation,  # which is settled where runs are planned
            config.loss,
            tuple(config.metrics),
            config.engine.precision,
        )
    )
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


def _samples(config: Config) -> Samples:
    attack = config.hostile
    return Samples(
        config.data,
        config.data_dir,
        config.partition,
        config.clients,
        config.seed or 0,
        config.skew,
        config.input.model_dump_json(),
        stamp(config.data, config.input),
        None if attack is None or part("hostile", attack).labels is None else attack,
    )


@functools.lru_cache(maxsize=1)
def _sampled(problem: Supervised | SemiSupervised | Streamed, train_samples: int) -> Problem:
    """The problem with a train loss of so many samples."""
    if isinstance(problem, Streamed):
        return Streamed(problem.judged.sampled(train_samples), problem.streams)
    return problem.sampled(train_samples)


@functools.lru_cache(maxsize=1)
def _problem(chosen: Task) -> Problem:
    samples, task, validation = chosen.samples, chosen.task, chosen.validation
    _refuse_unlabelled(chosen)
    if samples.partition is None:  # a problem with its own clients
        own_clients: Problem = part("data", samples.data, samples.seed, samples.clients, chosen.dtype, chosen.device)
        return own_clients
    dataset, parts = _divided(samples)
    _divided.cache_clear()  # the problem has its own
    if dataset.streams is not None and (task, validation) != (None, None):
        key = f"task {task}" if task is not None else f"validation {validation:g}"
        raise UserError(
            f"{key} needs the samples of all clients in memory, and those of {samples.clients} clients of data "
            f"{samples.data} are drawn as they take part; use fewer clients"
        )
    if task is not None and grammar.parse(task, "task").name == "clustering":
        clusters: Problem = part("task", task, dataset, parts, chosen.dtype, chosen.device)
        return clusters
    call = call_of("model", chosen.model or DEFAULT_MODEL)

    def network() -> nn.Module:
        return _network(call, dataset)

    if task is not None:
        masks = part("labels", chosen.labels or "", parts, samples.seed)
        device = chosen.dtype, chosen.device
        partly: Problem = part("task", task, network, dataset, parts, masks, *device, MOST_TRAIN_SAMPLES)
        return partly
    validation_parts = None
    if validation is not None:
        parts, validation_parts = hold_out(parts, validation, samples.seed)
    problem = Supervised(
        network,
        dataset,
        parts,
        dtype=chosen.dtype,
        device=chosen.device,
        held=validation_parts,
        loss=None if chosen.loss is None else part("loss", chosen.loss),
        metrics=metrics_of(chosen.metrics, dataset.target),
        numbers=chosen.precision,
    )
    return problem if dataset.streams is None else Streamed(problem, dataset.streams)


def _refuse_unlabelled(chosen: Task) -> None:
    """Refuse what needs a model of labelled samples where there is none."""
    samples = chosen.samples
    if samples.partition is not None and chosen.task is None:
        return
    which = f"data {samples.data}" if samples.partition is None else f"task {chosen.task}"
    if samples.attack is not None:
        raise UserError(
            f"hostile {samples.attack} lies about the labels of samples, which {which} lacks; use another attack"
        )
    if chosen.precision != "full":
        raise UserError(
            f"engine.precision {chosen.precision} is for models of labelled samples, and {which} computes in "
            "engine.dtype alone; use engine.precision full"
        )


def _network(call: factories.Call, dataset: Dataset) -> nn.Module:
    """A model for the data's samples; what a factory of one's own raises becomes a sentence."""
    try:
        network = call(dataset.shape, dataset.classes)
    except Exception as error:
        if isinstance(error, UserError) or call.name in MODELS:
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"model {call.name} failed for samples of shape {dataset.shape}: {why}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"model {call.name} returned {type(network).__name__}; return a torch.nn.Module")
    return network


@functools.lru_cache(maxsize=1)
def _divided(samples: Samples) -> tuple[Dataset, list[np.ndarray]]:
    """The samples of each client [n_i]. StoredState until the problem is made of them, which reads them next."""
    data, partition, skew = samples.data, samples.partition or NATURAL, samples.skew
    dataset = dataset_of(data, samples.data_dir, samples.seed, InputSettings.model_validate_json(samples.input))
    if dataset.streams is not None and (partition, skew) != (NATURAL, None):
        raise UserError(
            f"data {data} are drawn as clients take part, for their samples do not fit in memory, so that they can be "
            "neither divided anew nor skewed; leave partition and skew out, or use fewer clients"
        )
    if partition != NATURAL:
        draw = rng.generator(samples.seed, rng.Purpose.PARTITION)
        parts: list[np.ndarray] = part("partition", partition, dataset.train_y, samples.clients, draw)
        dataset = dataset._replace(client_names=None)  # which are those of the natural clients
    elif dataset.natural is None:
        raise UserError(f"data {data} does not come in clients; give another partition than {NATURAL}")
    else:
        parts = dataset.natural
    if skew is not None:
        dataset = dataset.scaled()
        if np.issubdtype(dataset.train_x.dtype, np.integer):
            raise UserError(f"skew {skew} changes numbers, and the samples of data {data} are symbols; leave it out")
        changed = skewed(dataset.train_x, parts, samples.seed, call_of("skew", skew))
        dataset = dataset._replace(train_x=changed)
    return (dataset if samples.attack is None else _attacked(dataset, parts, samples)), parts


def _attacked(dataset: Dataset, parts: list[np.ndarray], samples: Samples) -> Dataset:
    """The data with what hostile clients say of their labels."""
    if dataset.target != "class" or dataset.streams is not None:
        raise UserError(
            f"hostile {samples.attack} lies about the classes of samples in memory, and these data have none; use "
            "another attack"
        )
    attack: Attack = part("hostile", samples.attack or "")
    assert attack.labels is not None
    labels = dataset.train_y.copy()
    for i in chosen(attack, samples.seed, len(parts)):
        labels[parts[i]] = attack.labels(labels[parts[i]], dataset.classes)
    return dataset._replace(train_y=labels)
