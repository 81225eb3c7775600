"""What is diagnosed: a run's folder or settings, as a job to train again, and the rounds that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedconcord.execution.job import Job, State, blank, checkpoint, resolved
from fedconcord.execution.rows import tensors
from fedconcord.execution.run.final_model import MODEL
from fedconcord.execution.run.folder import CHECKPOINT, read_description, versions
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.study.runs.training import PreparedRun, with_choices_of
from fedconcord.study.settings import problem
from fedconcord.study.settings.job import advise, build, refuse
from fedconcord.study.settings.judging import held
from fedconcord.study.settings.objects import unchanged
from fedconcord.study.settings.problem import folder_name
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source, from_nested
from fedconcord.study.statistics.load import data_name
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_diagnosis.look import MOST_SAMPLES, ROUNDS_OF_A_LOOK, chosen, steps_of

MOST_THREADS = 1024  # that a folder may ask for
ENGINES = ("stacked", "serial")
WHERE = ("engine.name", "engine.device", "engine.threads", "data_dir", "out")


class Subject(NamedTuple):
    """A job, and what is known of it."""

    job: Job
    config: Config
    rounds: tuple[int, ...]  # that are looked at, rising
    run: Path | None  # the run's folder
    saved: dict[str, Any]  # its run.json
    state: State | None = None  # after the first of the rounds, where the run's checkpoint has it

    @property
    def title(self) -> str:
        """The method, the data and the seed."""
        return f"{self.config.label} on {self.data}, seed {self.config.seed}"

    @property
    def data(self) -> str:
        """The data as reports call them: a file of the user's own without its folder."""
        return data_name(self.config.data)


def of_run(folder: Path, rounds: Sequence[int] | None, *changes: Source) -> Subject:
    """The run of a folder; `changes` may say where it computes, and nothing else.

    Raises:
        UserError: it holds no run, a comparison, or one that cannot be looked at; or a round it has not done.
    """
    if not (folder / "run.json").exists() and (folder / "compare.json").exists():
        runs = sorted(str(path.parent) for path in folder.rglob("run.json"))
        raise UserError(
            f"{folder} holds a comparison; diagnose one of its runs: {', '.join(runs) or 'it has none yet'}"
        )
    saved = read_description(folder)
    changes = tuple(unchanged(source, saved.get("config", {}), folder) for source in changes)
    for source in changes:
        for key in source.values:
            if key not in WHERE:
                raise UserError(
                    f"{key} ({source.origin[key]}) is the run's own in {folder}, which is trained again as it was; "
                    "leave it out, or diagnose settings of your own without RUN"
                )
    nested = dict(saved.get("config", {}))
    if any("engine.name" in source.values for source in changes):
        nested.pop("wire", None)
    config = resolve_run(from_nested(nested, "run.json"), *changes)
    threads = saved.get("threads")  # as many as the run found where it was
    if config.engine.threads is None and isinstance(threads, int) and 0 < threads <= MOST_THREADS:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"threads": threads})})
    rounds_done = int(saved.get("rounds_done", 0))
    at = _rounds(rounds, rounds_done, f"{folder} has done {rounds_done} rounds")
    job = _job(config)
    fresh = blank(job)
    job = with_choices_of(folder, PreparedRun(job, fresh, 0), resolved(job, fresh, int(saved["rounds"])))
    # whether who took part can be known without the models of those rounds
    plannable = isinstance(job.schedule, Schedule) and not job.schedule.sampler.by_loss
    has_checkpoint = (folder / CHECKPOINT).exists() and job.storage.kind != "disk"
    state = None
    if at == (rounds_done,) and rounds_done > 0 and has_checkpoint and plannable:
        state = checkpoint.load(job, folder / CHECKPOINT, fresh)
        state = state if state.round == rounds_done else None
    return Subject(job, config, at, folder, saved, state)


def of_settings(sources: Sequence[Source], rounds: Sequence[int] | None) -> Subject:
    """What settings say, to be trained now.

    Raises:
        UserError: a setting is wrong, or a round lies beyond the last.
    """
    config, _ = held(resolve_run(*sources))
    advise(config)
    job = _job(config)
    refuse(job, config)
    at = _rounds(rounds, config.rounds, f"rounds is {config.rounds}")
    return Subject(resolved(job, rounds=config.rounds), config, at, None, {})


def folder_of(subject: Subject, out: str | None) -> Path:
    """Where the page goes: the folder asked for, the run's own, or a new one below runs/."""
    if out is not None:
        return Path(out).expanduser()
    if subject.run is not None:
        return subject.run
    return files.free_folder(Path("runs"), f"{folder_name(subject.config.data)}-diagnosis")


def notes(subject: Subject) -> list[str]:
    """What was guessed of data of the user's own, and what is going to be computed, from counted work."""
    job, ids = subject.job, chosen(subject.job, subject.rounds)
    last, each = subject.rounds[-1], steps_of(subject.job, ids)
    training = 0.0 if subject.state is not None else last * min(job.schedule.cohort, job.problem.roster.n) * each
    some = "" if len(ids) == job.problem.roster.n else f", a sample of {job.problem.roster.n}"
    capped = int((job.problem.roster.samples[ids] > MOST_SAMPLES).sum())
    part = f"; gradients of {capped} clients are of {MOST_SAMPLES} of their samples" if capped else ""
    trains = f"trains {last} round{'' if last == 1 else 's'}"
    where = trains if subject.state is None else "goes on from the run's checkpoint"
    looks = len(subject.rounds) * ROUNDS_OF_A_LOOK * len(ids) * each
    cost = (
        f"{where} (about {training:,.0f} mini-batch gradients) and looks at {len(ids)} clients{some} "
        f"after round{'s' if len(subject.rounds) > 1 else ''} {', '.join(map(str, subject.rounds))} "
        f"(about {looks:,.0f} more for local steps, and full gradients){part}"
    )
    return [*problem.notes(subject.config), f"{subject.title}: {cost}"]


def same_model(subject: Subject, state: State) -> bool | None:
    """Whether the rounds trained again end at the run's own model, bit for bit; None where that cannot be said."""
    if subject.run is None or state.round != subject.saved.get("rounds_done"):
        return None
    path = subject.run / MODEL
    if subject.config.eval.patience is not None or not path.exists():
        return None
    named, _ = tensors.read(path)
    x = next(iter(subject.job.algorithm.models(state.server).values()))
    if not bool(torch.isfinite(x).all()):  # NaN is not itself
        return None
    ours = subject.job.problem.evaluator.export(x)
    return all(torch.equal(named[name], tensor.cpu()) for name, tensor in ours.items())


def why_other(subject: Subject) -> str:
    """What may have moved the last bits between the run and its rounds trained again."""
    here = {"threads": subject.config.engine.threads or torch.get_num_threads(), **versions()}
    then = {"threads": subject.saved.get("threads"), **subject.saved.get("versions", {})}
    parts = [
        f"{name} {then[name]} then and {now} now" for name, now in here.items() if then.get(name) not in (None, now)
    ]
    return ", ".join(parts) or "on another processor, or in parts with other threads or versions"


def _job(config: Config) -> Job:
    if config.local.private is not None:
        raise UserError("a diagnosis knows one model for all, and local.private keeps parts of it; leave it out")
    if config.clock is not None:
        raise UserError(
            "a diagnosis knows rounds that wait for replies, and clock makes them asynchronous; leave it out"
        )
    if config.engine.name not in ENGINES:
        raise UserError(
            f"a diagnosis asks all clients in one process, and engine.name is {config.engine.name}; diagnose the same "
            "settings with --engine stacked, whose results agree to rounding"
        )
    job = build(config)
    if (layer := job.problem.objective.normalises) is not None:
        raise UserError(
            f"a diagnosis looks at clients' full gradients, and {layer}, so that they have none; diagnose the same "
            "settings with norm=frozen, or a model with torch.nn.GroupNorm"
        )
    return job


def _rounds(rounds: Sequence[int] | None, last: int, why: str) -> tuple[int, ...]:
    """The rounds to look at: those given, or the start, a quarter, half and the end."""
    if rounds is None:
        return tuple(sorted({0, round(last / 4), round(last / 2), last}))
    beyond = [t for t in rounds if t > last]
    if beyond:
        raise UserError(f"--at {beyond[0]} lies beyond the last round: {why}; give rounds from 0 to {last}")
    return tuple(sorted(set(rounds)))
