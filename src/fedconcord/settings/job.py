"""From settings to a job."""

from __future__ import annotations

import functools
import warnings
from typing import Literal

import numpy as np
import torch
from torch import nn

from fedconcord.algorithms import family
from fedconcord.algorithms.alone import BASELINES
from fedconcord.basis import factories, grammar
from fedconcord.basis.errors import UserError
from fedconcord.core import Algorithm, Oracle, Problem, rng
from fedconcord.data import Dataset
from fedconcord.data.inputs import hold_out
from fedconcord.federation.features import FEATURES, skewed
from fedconcord.federation.labels import LABELS
from fedconcord.federation.partitions import partitions
from fedconcord.federation.rates import scaled
from fedconcord.federation.schedule import Schedule
from fedconcord.federation.work import WORK, epoch_steps
from fedconcord.jobs import Job
from fedconcord.local.solver import Solver
from fedconcord.models import MODELS, models
from fedconcord.problems import PROBLEMS, Regularised, Supervised
from fedconcord.problems.losses import metrics_of
from fedconcord.problems.precision import Precision
from fedconcord.problems.semi import SemiSupervised
from fedconcord.problems.streamed import Streamed
from fedconcord.settings import hostile
from fedconcord.settings.baselines import baseline, registry_of
from fedconcord.settings.machine import device_of, engine_of
from fedconcord.settings.own import dataset_of, stamp
from fedconcord.settings.parts import TASKS, part, work_of
from fedconcord.settings.privacy import protected, refuse_data
from fedconcord.settings.sections import MOST_TRAIN_SAMPLES, InputSettings
from fedconcord.settings.settings import DEFAULT_MODEL, NATURAL, Config
from fedconcord.state import Storage
from fedconcord.transforms.late import with_late_replies
from fedconcord.transforms.robust import with_aggregate
from fedconcord.transforms.server import with_server
from fedconcord.transforms.tables import with_table
from fedconcord.transforms.uploads import with_uploads


def problem_of(config: Config) -> Problem:
    """The clients of a run. The last one is kept: the methods of one seed share it while its files stay as they are."""
    found = _problem(
        config.data,
        config.data_dir,
        config.partition,
        config.model,
        config.clients,
        config.seed or 0,
        getattr(torch, config.engine.dtype),
        device_of(config),
        config.labels,
        config.task,
        None if config.validation == "auto" else config.validation,  # which is settled where runs are planned
        config.skew,
        config.loss,
        tuple(config.metrics),
        config.input.model_dump_json(),
        stamp(config.data, config.input),
        config.engine.precision,
        hostile.liars(config),
    )
    if not isinstance(found, Supervised | SemiSupervised | Streamed):
        return found
    return _sampled(found, config.eval.train_samples or MOST_TRAIN_SAMPLES)


@functools.lru_cache(maxsize=1)
def _sampled(problem: Supervised | SemiSupervised | Streamed, train_samples: int) -> Problem:
    """The problem with a train loss of so many samples."""
    if isinstance(problem, Streamed):
        return Streamed(problem.judged.sampled(train_samples), problem.streams)
    return problem.sampled(train_samples)


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
    labels: str | None,
    task: str | None,
    validation: float | None,
    skew: str | None,
    loss: str | None,
    metrics: tuple[str, ...],
    given: str,
    stamp: str,
    precision: Precision,
    liars: str | None,
) -> Problem:
    if liars is not None and (partition is None or task is not None):
        which = f"data {data}" if partition is None else f"task {task}"
        raise UserError(f"hostile {liars} lies about the labels of samples, which {which} lacks; use another attack")
    if precision != "full" and (partition is None or task is not None):
        which = f"data {data}" if partition is None else f"task {task}"
        raise UserError(
            f"engine.precision {precision} is for models of labelled samples, and {which} computes in engine.dtype "
            "alone; use engine.precision full"
        )
    if partition is None:  # a problem with its own clients
        brought: Problem = factories.build(PROBLEMS, "data set", data, seed, clients, dtype, device)
        return brought
    dataset, parts = _divided(data, data_dir, partition, clients, seed, skew, given, stamp, liars)
    _divided.cache_clear()  # the problem has its own
    if dataset.streams is not None and (task, validation) != (None, None):
        key = f"task {task}" if task is not None else f"validation {validation:g}"
        raise UserError(
            f"{key} needs the samples of all clients in memory, and those of {clients} clients of data {data} are "
            "drawn as they take part; use fewer clients"
        )
    if task is not None and grammar.parse(task, "task").name == "clustering":
        clusters: Problem = factories.build(TASKS, "task", task, dataset, parts, dtype, device)
        return clusters
    call = factories.check(models(), "model", model or DEFAULT_MODEL)

    def network() -> nn.Module:
        return _network(call, dataset)

    if task is not None:
        masks = factories.build(LABELS, "removal of labels", labels or "", parts, seed)
        partly: Problem = factories.build(
            TASKS, "task", task, network, dataset, parts, masks, dtype, device, MOST_TRAIN_SAMPLES
        )
        return partly
    held = None
    if validation is not None:
        parts, held = hold_out(parts, validation, seed)
    found = Supervised(
        network,
        dataset,
        parts,
        dtype=dtype,
        device=device,
        held=held,
        loss=None if loss is None else part("loss", loss),
        metrics=metrics_of(metrics, dataset.target),
        numbers=precision,
    )
    return found if dataset.streams is None else Streamed(found, dataset.streams)


def _network(call: factories.Call, dataset: Dataset) -> nn.Module:
    """A model for the data's samples; what a factory of one's own raises becomes a sentence."""
    try:
        made = call(dataset.shape, dataset.classes)
    except Exception as error:
        if isinstance(error, UserError) or call.name in MODELS:
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"model {call.name} failed for samples of shape {dataset.shape}: {why}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"model {call.name} returned {type(made).__name__}; return a torch.nn.Module")
    return made


def divided(config: Config) -> tuple[Dataset, list[np.ndarray]]:
    """The data of a run with the samples of each client [n_i], features skewed as the settings say.

    Raises:
        UserError: the data bring their own clients, or the partition does not suit the data.
    """
    if config.partition is None:
        raise UserError(
            f"data {config.data} brings its own clients, whose samples are not divided; use another data set"
        )
    dataset, parts = _division(config, config.partition)
    if dataset.streams is not None:
        raise UserError(
            f"the samples of {config.clients} clients of data {config.data} do not fit in memory to be described; "
            "use fewer clients"
        )
    return dataset, parts


def sizes_of(config: Config) -> np.ndarray | None:
    """How many samples each client has [N], in a run or a comparison's first seed; None where they are drawn as clients
    take part."""
    assert config.partition is not None
    first = config.model_copy(update={"seed": config.seed or (config.seeds or [0])[0]})
    dataset, parts = _division(first, config.partition)
    return None if dataset.streams is not None else np.array([len(part) for part in parts])


def _division(config: Config, partition: str) -> tuple[Dataset, list[np.ndarray]]:
    return _divided(
        config.data,
        config.data_dir,
        partition,
        config.clients,
        config.seed or 0,
        config.skew,
        config.input.model_dump_json(),
        stamp(config.data, config.input),
        hostile.liars(config),
    )


@functools.lru_cache(maxsize=1)
def _divided(
    data: str,
    data_dir: str | None,
    partition: str,
    clients: int,
    seed: int,
    skew: str | None,
    given: str,
    stamp: str,
    liars: str | None,
) -> tuple[Dataset, list[np.ndarray]]:
    """The samples of each client [n_i]. Kept until the problem is made of them, which reads them next."""
    dataset = dataset_of(data, data_dir, seed, InputSettings.model_validate_json(given))
    if dataset.streams is not None and (partition, skew) != (NATURAL, None):
        raise UserError(
            f"data {data} are drawn as clients take part, for their samples do not fit in memory, so that they can be "
            "neither divided anew nor skewed; leave partition and skew out, or use fewer clients"
        )
    if partition != NATURAL:
        draw = rng.generator(seed, rng.Purpose.PARTITION)
        parts: list[np.ndarray] = factories.build(partitions(), "partition", partition, dataset.train_y, clients, draw)
        dataset = dataset._replace(client_names=None)  # which are those of the natural clients
    elif dataset.natural is None:
        raise UserError(f"data {data} does not come in clients; give another partition than {NATURAL}")
    else:
        parts = dataset.natural
    if skew is not None:
        dataset = dataset.scaled()
        if np.issubdtype(dataset.train_x.dtype, np.integer):
            raise UserError(f"skew {skew} changes numbers, and the samples of data {data} are symbols; leave it out")
        changed = skewed(dataset.train_x, parts, seed, factories.check(FEATURES, "feature skew", skew))
        dataset = dataset._replace(train_x=changed)
    if liars is not None:
        dataset = hostile.lied(dataset, parts, seed, liars)
    return dataset, parts


def forget_problem() -> None:
    """Let go of the problem that is kept."""
    _problem.cache_clear()
    _sampled.cache_clear()


def build(config: Config) -> Job:
    """The job of one run's settings, as `resolve_run` or `Config.runs` gives them."""
    local = config.local
    unit: Literal["epochs", "steps", "seconds"] = (
        "steps" if local.steps is not None else "seconds" if local.seconds is not None else "epochs"
    )
    work = getattr(local, unit)
    called = grammar.Spec(config.method or "fedavg", (), config.algorithm)
    algorithm: Algorithm = factories.build(registry_of(called.name), "method", called)
    oracle: Oracle = part("local.oracle", local.oracle)
    if oracle.kind == "saga":
        algorithm, oracle = with_table(algorithm, oracle.blocks), Oracle()
    if algorithm.step.size is not None and local.lr is not None:
        raise UserError(
            f"{config.label}: the method finds its own step sizes, given local.lr {grammar.text(local.lr)}; leave it "
            "out, or write it behind the methods that take one, as in fedavg(local.lr=0.3)"
        )
    algorithm = protected(algorithm, config)  # inside the uploads: only what is clipped and noisy is compressed
    if config.aggregate is not None:
        algorithm = with_aggregate(algorithm, part("aggregate", config.aggregate))
    if config.upload is not None:
        algorithm = with_uploads(algorithm, part("upload", config.upload))
    if config.server is not None:
        if algorithm.facts.server_optimiser:
            raise UserError(
                f"{config.label}: the method has a server optimiser of its own, given server {config.server} as well; "
                f"leave it out, or write {config.method}(server=none)"
            )
        algorithm = with_server(algorithm, part("server", config.server))
    if config.late == "keep":
        algorithm = with_late_replies(algorithm)
    problem: Problem = problem_of(config)
    algorithm, attackers = hostile.among(algorithm, config, problem.roster.n)
    if config.regulariser is not None:
        problem = Regularised(problem, part("regulariser", config.regulariser))
    lr = local.lr if isinstance(local.lr, float) else 1.0  # a factor on what a rule finds
    job = Job(
        problem=problem,
        algorithm=algorithm,
        schedule=Schedule(
            seed=config.seed or 0,
            cohort=config.cohort,
            lr=scaled(lr, part("lr_schedule", config.lr_schedule)),
            work=work_of(1 if work is None else work),
            unit=unit,
            batch_size=None if local.batch_size == "full" else local.batch_size,
            lr_decay=local.lr_decay,
            lr_drops=tuple(local.lr_drops),
            sampler=part("sampling", config.sampling),
            availability=None if config.availability is None else part("availability", config.availability),
            dropout=None if config.dropout is None else part("dropout", str(config.dropout)),
            devices=None if config.devices is None else part("devices", config.devices),
            deadline=config.deadline,
            late=config.late,
        ),
        solver=Solver(
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            clip=local.clip,
            oracle=oracle,
            step_decay=local.step_decay,
            tolerance=local.tolerance,
            kind=local.solver,
            nesterov=local.nesterov,
            clip_direction=local.clip_direction,
            clip_form=local.clip_form,
            pace=part("local.lr", local.lr) if isinstance(local.lr, str) else None,
        ),
        engine=engine_of(config),
        storage=Storage(config.engine.store, config.engine.rows),
        hostile=attackers,
    )
    return job if config.method not in BASELINES else baseline(job, config.method)


def advise(config: Config) -> None:
    """Warn of early stopping on test data, and of step sizes outside FedVRA's sufficient condition (18).

    The condition is checked with the numbers of the longest round, and only for plain `fedvra` with numbers for d: the
    rules choose d by themselves.
    """
    watch = config.eval.watch or ("validation_loss" if config.validation is not None else "test_loss")
    if config.eval.patience is not None and watch.startswith("test_"):
        warnings.warn(
            f"eval.patience watches {watch}: a model chosen on test data makes its test figures too good; set "
            "validation, as in 0.1",
            stacklevel=2,
        )
    given = config.algorithm
    if config.method != "fedvra" or not isinstance(given["d"], int | float):
        return
    local, problem = config.local, problem_of(config)
    if local.seconds is not None or not isinstance(local.lr, float):
        return
    written = local.epochs if local.steps is None else local.steps
    amount = factories.check(WORK, "local work", written if isinstance(written, str) else f"fixed({written or 1})")
    drawn = amount.resolved()
    most: int = drawn.get("high") or drawn.get("value") or 1
    if local.steps is None:
        largest = int(problem.roster.samples.max())
        most *= epoch_steps(largest, None if local.batch_size == "full" else local.batch_size)
    gamma = max(given["gamma"]) if isinstance(given["gamma"], list) else given["gamma"]
    share = config.cohort / config.clients
    family.check(family.conditions(share, given["a"], given["d"], gamma, local.lr, most))


def refuse(job: Job, config: Config) -> None:
    """What a round would refuse of the settings, said before the first one; of the job itself, `jobs.refusals` does.

    Raises:
        UserError: lists of settings do not fit the job's clients.
    """
    refuse_data(config, job.problem)
    n, local = job.problem.roster.n, config.local
    for key, written in (("dropout", config.dropout), ("local work", local.epochs or local.steps or local.seconds)):
        call = grammar.parse(written, key) if isinstance(written, str) else None
        listed = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, list)] if call else []
        if call is not None and call.name == "per_client" and listed and len(listed[0]) != n:
            raise UserError(f"{key} per_client lists {len(listed[0])} values for {n} clients; give one for each")
