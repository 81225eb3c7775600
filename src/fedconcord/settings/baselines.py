"""What a comparison's methods are judged against: the settings of such a run, and its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedconcord.algorithms.alone import BASELINES
from fedconcord.basis import grammar
from fedconcord.basis.errors import UserError, unknown
from fedconcord.federation.pooled import Pooled
from fedconcord.federation.schedule import Schedule
from fedconcord.jobs import Job
from fedconcord.problems.judging import pooled, supervised
from fedconcord.settings.sections import PrivacySettings, WireSettings
from fedconcord.settings.settings import Config

ORACLES = ("minibatch", "full", "sam")  # gradients that know no server's model and keep nothing between rounds


def check(baselines: Sequence[str], methods: Sequence[str], config: Config) -> None:
    """Refuse what is no baseline, a baseline among the methods, and a job whose clients are not judged.

    Raises:
        UserError: the first of these.
    """
    for text in baselines:
        name = grammar.parse(text, "baseline").name
        if name not in BASELINES:
            raise unknown("baseline", name, BASELINES)
    for text in methods:
        name = grammar.parse(text, "method").name
        if name in BASELINES:
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
    """The job's settings as a baseline takes them: nobody sends, is hostile, late or lost, and no rounds are saved.

    Clients' own models cost a pass each over the test set: they are judged at the start and the end.
    """
    if name not in BASELINES:
        return config
    measured: dict[str, object] = {
        "target": None,
        "patience": None,
        "watch": None,
        "personalise": None,
        "clients": True,
    }
    if name == "local":
        measured |= {"every": config.rounds, "clients_every": None}
    engine = config.engine
    if engine.name == "wire":
        engine = engine.model_copy(update={"name": "stacked"})
    alone = dict.fromkeys(("server", "upload", "aggregate", "hostile", "dropout", "deadline"))
    return config.model_copy(
        update={
            **alone,
            "late": "discard",
            "label": None,
            "algorithm": {},
            "engine": engine,
            "wire": WireSettings(),
            "privacy": PrivacySettings(),
            "eval": config.eval.model_copy(update=measured),
        }
    )


def baseline(job: Job, name: str) -> Job:
    """The job of a baseline, from that of a federation's settings.

    Raises:
        UserError: the data or the settings have no such baseline.
    """
    schedule, solver = job.schedule, job.solver
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
    if name == "local":
        return job
    if solver.kind != "sgd" or solver.tolerance is not None:
        raise UserError(
            "pooled takes as many steps as the clients together, which L-BFGS or a tolerance would count otherwise; "
            "leave it out"
        )
    return replace(job, problem=pooled(job.problem), schedule=Pooled(schedule, job.problem.roster))
