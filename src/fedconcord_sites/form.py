"""What both ends of a deployment make of the job's settings: one job, on samples that are not there.

Server and sites build the same job from the same text. Where a simulation has its samples, it has one zero a client of
the same form; the server never sees others, a site puts its own in their place.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, has_own_models, population_of
from fedconcord.execution.messages.terms import FEWEST, Scale, Terms
from fedconcord.federation.data import federated
from fedconcord.federation.data.dataset import Dataset, Target
from fedconcord.federation.data.inputs import Input
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.judging import supervised
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Roster
from fedconcord.method.contract.grid import whole_bits
from fedconcord.method.wrappers.forms import unsummable
from fedconcord.study.settings.job import build
from fedconcord.study.settings.objects import named
from fedconcord.study.settings.parts import part
from fedconcord.study.settings.problem import input_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config, InputSettings, SecureSettings
from fedconcord.study.settings.sources import Source, from_nested, prepare, validated
from fedconcord.support import grammar
from fedconcord.support.errors import UserError
from fedconcord_sites.judging import check_summed

ENDS = (  # settings of where samples lie and how a simulation computes, which a deployment has its own way of
    *("data", "data_dir", "partition", "skew", "clients", "validation", "out", "track", "wire.", "input."),
    *("engine.name", "engine.chunk", "engine.workers", "engine.kernel", "engine.graphs", "engine.store"),
    *("checkpoint.", "eval.train_samples", "eval.clients"),
)
SIMULATED: Mapping[str, str] = {  # settings that a deployment cannot have, and why
    "devices": "sites take the time they take",
    "deadline": "it is in simulated seconds",
    "tree": "a deployment's edge servers are named with its sites, by --tree",
    "dropout": "sites are lost by themselves",
    "late": "late replies are not kept",
    "local.seconds": "it is in simulated seconds",
    "task": "private blocks of two-block tasks are not deployed",
    "labels": "every sample of a site has its label",
    "baselines": "they need other sites' samples",
    "input.test": "each site tests on a share of its own samples",
    "eval.patience": "the best model of earlier rounds is not judged again",
    "eval.stop_at_target": "a deployment ends after its rounds",
    "eval.personalise": "sites judge the one model",
    "eval.clients_every": "sites are looked at in every evaluation",
    "hostile": "sites attack by themselves",
}
UNJUDGED = "no figures leave a site whose noise is its own: they are exact sums over its rows, and epsilon covers none"


class Form(NamedTuple):
    """What a model needs to know of samples; plain values."""

    shape: list[int]  # of a sample
    inputs: Literal["numbers", "bytes", "symbols"]
    target: Target
    outputs: int
    names: list[str] | None  # of the outputs; a vocabulary's are its numbers
    unit: list[list[float]] | None  # mean and scale of targets that are numbers
    preprocessing: dict[str, Any] | None
    token: int | None = None  # the largest that has a class, where each token has: it stands for all of them


def form_of(dataset: Dataset) -> Form:
    """What a model needs to know of a data set."""
    kind: Literal["numbers", "bytes", "symbols"] = "numbers"
    if np.issubdtype(dataset.train_x.dtype, np.integer):
        kind = "bytes" if dataset.train_x.dtype == np.uint8 else "symbols"
    unit = None if dataset.unit is None else [list(part) for part in dataset.unit]
    preprocessing = None if dataset.preprocessing is None else dict(dataset.preprocessing)
    token = None
    if dataset.target == "tokens":
        token = federated.described(dataset.train_x, dataset.train_y, None)["largest"]
    return Form(
        list(dataset.shape), kind, dataset.target, dataset.classes, dataset.output_names, unit, preprocessing, token
    )


def source_of(settings: str) -> Source:
    """The settings of a job from their text.

    Raises:
        UserError: it is no TOML, has an unknown key, or a setting that a deployment cannot have.
    """
    try:
        nested = tomllib.loads(settings)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the job's settings are not valid TOML: {str(error).splitlines()[0]}") from None
    source = from_nested(nested, "the job's settings")
    for key, value in source.values.items():
        why = SIMULATED.get(key) or SIMULATED.get(f"{key.partition('.')[0]}.")
        if why is not None and value not in (None, "none", [], (), "discard"):
            raise UserError(f"{key} is for simulations ({why}), given {grammar.shown(value)}; leave it out")
    validation = source.values.get("validation")
    if validation not in (None, "none", "auto"):
        raise UserError(
            f"validation {validation} sets training samples apart, and sites judge on their test share; leave it out"
        )
    return source


def input_settings(source: Source) -> Input:
    """How sites read their files."""
    values = {
        key.removeprefix("input."): prepare(key, value)
        for key, value in source.values.items()
        if key.startswith("input.")
    }
    return input_of(validated(InputSettings, values, "input.", dict(source.origin)))


def shell(source: Source, form: Form, clients: int) -> tuple[Config, Job]:
    """The settings of a run and its job, whose samples are zeros, one a client.

    Raises:
        UserError: the settings are wrong, or the job cannot be deployed.
    """
    text, objects = named("data", _zeros(form, clients))
    values = {key: value for key, value in source.values.items() if not key.startswith(ENDS)}
    values |= {"data": text, "partition": "natural", "validation": None, "engine.name": "serial"}
    if source.values.get("data") is not None and values.get("objective", "auto") == "auto":
        values["objective"] = "paper"  # known data that the job cuts, and no site's own
    config = resolve_run(Source(values, {**source.origin, **dict.fromkeys(values, "")}, tuple(objects)))
    if config.method in BASELINES:
        raise UserError(f"method {config.method} needs other sites' samples or none; give a federated method")
    job = build(config)
    why = None if job.algorithm.facts.protection is None else job.algorithm.refuse(population_of(job), config.cohort)
    if why is not None:
        raise UserError(f"{config.label}: {why}")
    inner = supervised(job.problem)
    if inner is None:
        raise UserError(f"{config.label}: sites judge models of labelled samples, and this job has none such")
    if has_own_models(job) and job.algorithm.phases.communicates is not None:
        raise UserError(
            f"{config.label}: sites hear of rounds without messages with their next orders, so that their own models "
            "would be judged before they have moved; use another method, or one model for all"
        )
    without = {  # sums for the statistics of layers that normalise by all clients' samples
        "privacy.clip covers no sums of a site's rows": config.privacy.clip is not None,
        "a site's own model has none": has_own_models(job),
        "without rounds (clock) those at work would be missing in them": config.clock is not None,
    }
    if inner.replaced.normalises and (why := next((why for why, is_so in without.items() if is_so), None)):
        raise UserError(
            f"{config.label}: layer {inner.replaced.normalises[0]!r} normalises by statistics of all sites' rows, and "
            f"{why}; use norm=frozen, or torch.nn.GroupNorm in its place"
        )
    check_summed(inner.metrics)
    _check_secure(source, config, job)
    if config.clock is not None and config.availability is not None:
        raise UserError(
            "sites come and go by themselves, and availability is of rounds that wait; leave it out, or clock"
        )
    return config, replace(job, engine=Serial())


def is_secure(source: Source) -> bool:
    """Whether the job has secure sums, for which sites know each other."""
    return source.values.get("secure.clip") is not None


def by_edge(source: Source) -> bool:
    """Whether secure sums are made below each edge server."""
    return is_secure(source) and source.values.get("secure.group") == "edge"


def without(site: str, lacking: Sequence[str]) -> str:
    """That a site has no key of these sites."""
    files = ", ".join(f"{name}.{'key' if name == site else 'pub'}" for name in lacking)
    return f"secure sums need a key of each site, and it has none of {', '.join(lacking)}; put {files} into its --keys"


def is_private(source: Source) -> bool:
    """Whether the job protects its clients' messages, so that sums beside them are refused."""
    return source.values.get("privacy.clip") is not None


def has_secret_cohorts(source: Source) -> bool:
    """Whether nobody but the server may know who is in a round, as what is spent counts on it."""
    return is_private(source) and bool(part("sampling", source.values.get("sampling", "uniform")).poisson)


def has_own_noise(source: Source) -> bool:
    """Whether a site's noise is its own, so that it trusts no server: no exact figure of a model leaves it."""
    kind, unit = (source.values.get(f"privacy.{key}") for key in ("kind", "unit"))
    return is_private(source) and (kind == "local" or unit in ("sample", "person"))


def terms_of(config: Config, roster: Roster, homes: Sequence[int] | None = None) -> Terms | None:
    """The terms of secure sums of these sites; None where the server sees every message.

    Args:
        homes: the number of each site's edge server, where sums are made below these.
    """
    secure, bits = config.secure, _whole_bits(config)
    if secure.clip is None:
        return None
    scale = Scale(secure.clip, secure.bits) if bits is None else Scale(2.0**bits, bits)
    samples, sizes = roster.samples.tolist(), [int(size) for size in roster.sizes]
    weighed = samples if sizes == samples else zip(samples, sizes, strict=True)
    return Terms(scale, secure.threshold, config.cohort, tuple(weighed), None if homes is None else tuple(homes))


def _whole_bits(config: Config) -> int | None:
    """Bits of the whole numbers that contributions with noise are already; None without noise."""
    return whole_bits(config.privacy.noise) if config.privacy.clip is not None and config.privacy.noise else None


def _check_secure(source: Source, config: Config, job: Job) -> None:
    """Refuse secure sums of a job whose server must see single clients.

    Raises:
        UserError: it is one, or its cohorts are too small.
    """
    if config.secure.clip is None:
        return
    if config.clock is not None:
        raise UserError("secure sums are of sites that reply in one round; leave secure.clip out, or clock")
    why = unsummable(job.algorithm)
    if why is not None:
        raise UserError(f"secure sums do not cover {config.label}: {why}; use another method, or leave secure.clip out")
    if part("sampling", config.sampling).by_loss:
        raise UserError(
            f"sampling {config.sampling} asks single sites for their loss, which secure sums hide; use another sampling"
        )
    if has_own_noise(source):
        raise UserError(
            "a site whose noise is its own (privacy.kind local, or privacy.unit sample or person) sends one noisy "
            "message a round, and secure sums may have to mask it anew for each try; use central noise of unit client, "
            "or leave secure.clip out"
        )
    if config.privacy.clip is not None and part("sampling", config.sampling).poisson:
        raise UserError(
            f"sampling {config.sampling} protects by nobody knowing who was drawn, and secure sums tell it to those "
            "who were; use sampling uniform, or leave secure.clip out"
        )
    if (bits := _whole_bits(config)) is not None and config.secure.bits != SecureSettings().bits:
        raise UserError(
            f"secure.bits is {config.secure.bits}, and the noise of a private job says how many bits its whole numbers "
            f"have, {bits}; leave secure.bits out"
        )
    if config.cohort < FEWEST:
        raise UserError(
            f"a sum of {config.cohort} sites hides nobody, and secure sums need {FEWEST}; raise cohort, or leave "
            "secure.clip out"
        )


def model_of(job: Job) -> Supervised:
    """The model, loss and metrics of a shell."""
    inner = supervised(job.problem)
    assert inner is not None
    return inner


def facts(job: Job, config: Config) -> dict[str, str]:
    """What both ends must have alike, in words."""
    inner = model_of(job)
    return {
        "the method": str(job.algorithm.identity),
        "the model": str(config.model),
        "the number of parameters": str(inner.dim),
        "the loss": inner.loss_of.name,
        "the metrics": ", ".join(metric.name for metric in inner.metrics),
        "the regulariser": str(config.regulariser),
        "the number type": f"{config.engine.dtype}, precision {config.engine.precision}",
        "the local steps": str(job.solver),
        "the batches": str(job.schedule.draws),
        **({} if config.local.private is None else {"the private part of the model": config.local.private}),
        "the secure sums": "none" if config.secure.clip is None else f"{config.secure} of {config.cohort}",
        **({} if config.privacy.unit != "person" else {"what is protected": "all rows of a person"}),
        **({} if inner.layout.digest is None else {"the frozen part of the model": inner.layout.digest}),
        "the outputs": f"{inner.target}: {', '.join(inner.data.output_names or [str(inner.classes)])}",
    }


def _zeros(form: Form, clients: int) -> Dataset:
    kind = {"numbers": np.float32, "bytes": np.uint8, "symbols": np.int64}[form.inputs]
    few = max(form.outputs, 2)
    y: np.ndarray = np.zeros((clients, form.outputs), np.float32)
    test_y: np.ndarray = np.eye(few, form.outputs, dtype=np.float32)
    if form.target == "class":
        y, test_y = np.zeros(clients, np.int64), np.arange(form.outputs)
        few = form.outputs
    if form.target == "tokens":
        y, test_y = np.zeros((clients, *form.shape), np.int64), np.zeros((few, *form.shape), np.int64)
    unit = None if form.unit is None else (form.unit[0], form.unit[1])
    return Dataset(
        "sites",
        np.full((clients, *form.shape), form.token or 0, kind),
        y,
        np.full((few, *form.shape), form.token or 0, kind),
        test_y,
        form.outputs,
        natural=[np.array([i]) for i in range(clients)],
        persons=np.arange(clients),
        target=form.target,
        output_names=form.names,
        preprocessing=form.preprocessing,
        unit=unit,
    )
