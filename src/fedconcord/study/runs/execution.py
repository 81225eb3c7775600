"""One run, done in this process."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

from fedconcord.execution.job import Row, has_own_models
from fedconcord.execution.run import readme
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.final_model import RunOptions
from fedconcord.execution.run.stopping import Patience
from fedconcord.federation.objectives import Regularised, Supervised
from fedconcord.federation.objectives.card import card
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Problem, weights
from fedconcord.study.runs import training
from fedconcord.study.runs.events import Entry, Finished
from fedconcord.study.runs.records import finished, not_done
from fedconcord.study.runs.training import prepare, threads
from fedconcord.study.settings import judging, objects
from fedconcord.study.settings.contents import contents
from fedconcord.study.settings.judging import evaluation, judged
from fedconcord.study.settings.parts import part
from fedconcord.study.settings.privacy import budget_of
from fedconcord.study.settings.settings import DEFAULT_MODEL, Config
from fedconcord.support import errors, files
from fedconcord.support.errors import UserError


def execute(
    entry: Entry,
    on_row: Callable[[Row], None] | None = None,
    clock: Clock | None = None,
    on_start: Callable[[], None] | None = None,
) -> Finished:
    """Do one run, in this process; `clock` has what it took until now, and `on_start` is called when it is sure that
    the run can start.

    Raises:
        UserError: it cannot start.
    """
    clock, folder = clock or Clock(), entry.folder
    with threads(entry.config.engine.threads):
        config, reason = judged(entry.config)
        prepared = prepare(config, folder)
        if on_start is not None:
            on_start()
        algorithm, problem, team = prepared.job.algorithm, prepared.job.problem, prepared.job.engine.team
        is_baseline, is_personal = config.method in BASELINES, has_own_models(prepared.job)
        info: dict[str, Any] = {
            "method": config.method,
            "label": config.label,
            "seed": config.seed,
            "models": list(algorithm.models(prepared.state.server)),
            "clients": config.clients,
            "cohort": config.cohort,
            "data": config.data,
            "model": config.model or "none",
            "partition": ", ".join(filter(None, [config.partition, config.skew])) or "none",
            "objective": weights.minimised(algorithm.weights),
            "target": config.eval.target,
            "ranking": ranking(problem),
            "config": entry.config.as_dict(),
            "evaluation": evaluation(config, problem, reason) | {"validation": entry.config.validation},
            "baseline": config.method if is_baseline else None,
        }
        if entry.validation_reason is not None:
            info["evaluation"]["validation_why"] = entry.validation_reason
        if digests := {key: digest for key, (_, digest) in contents(config).items()}:
            info["files"] = digests
        if (most := majority(problem)) is not None:
            info["majority"] = most
        if words := objects.words(info["config"]):
            info["objects"] = words
        if is_personal and not is_baseline:
            info["own"] = True
        clock.lap("load")
        options = options_of(config, problem)
        if is_personal and is_baseline:  # nobody asks for the models of clients alone
            options = options._replace(card=None)
        has_model = options.card is not None and not is_personal
        options = options._replace(readme=readme.of_run(has_model))
        rounds = config.rounds if options.budget is None else options.budget.rounds
        resume = entry.resume and (folder / "run.json").exists()
        keeps = entry.keep == "all"
        length = training.RunLength(rounds, config.eval.every or 1, config.checkpoint.every, resume, keeps_state=keeps)
        training.train(prepared, folder, length, info, on_row, options, clock)
    outcome = json.loads(team.tell(lambda: json.dumps([str(folder), *finished(folder)[1:]])))
    return Finished(folder, *outcome[1:])


def attempt(entry: Entry, on_row: Callable[[Row], None]) -> Finished:
    """`execute`, where every failure but Ctrl-C becomes a result; that of a defect leaves error.txt in the folder.

    Not so with the distributed engine: of its processes one alone may fail, and then they are no longer in step.
    """
    if entry.config.engine.name == "distributed":
        return execute(entry, on_row)
    try:
        return execute(entry, on_row)
    except (UserError, OSError) as error:
        return not_done(entry, "failed", errors.sentence(error))
    except KeyboardInterrupt:
        return not_done(entry, "interrupted")
    except Exception as error:
        entry.folder.mkdir(parents=True, exist_ok=True)
        files.write_text(entry.folder / "error.txt", traceback.format_exc())
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return not_done(entry, "failed", f"{text} (all of it in {entry.folder / 'error.txt'})")


def options_of(config: Config, problem: Problem) -> RunOptions:
    """What a run does besides training to its last round."""
    measures = config.eval
    patience = None
    if measures.patience is not None:
        patience = Patience(measures.patience, measures.min_delta, measures.watch)
    target = measures.target if measures.stop_at_target else None
    goal = None if target is None else (str(ranking(problem)[0]["column"]), target)
    finetune = None if measures.personalise is None else part("eval.personalise", measures.personalise)
    inner = modelled(problem)
    if finetune is not None and inner is not None and inner.replaced.normalises:
        raise UserError(
            f"layer {inner.replaced.normalises[0]!r} normalises by statistics of all clients' samples, and a model "
            "of a client's own has none; leave eval.personalise out, or use norm=frozen or torch.nn.GroupNorm"
        )
    about = None if inner is None else card(inner, config.model or DEFAULT_MODEL)
    looks, budget = judging.looks(config, problem), budget_of(config)
    return RunOptions(patience, goal, looks, measures.clients_every, finetune, about, budget)


def modelled(problem: Problem) -> Supervised | None:
    """What has the model: also where its clients cannot be judged one by one."""
    smooth = problem.smooth if isinstance(problem, Regularised) else problem
    return smooth.judged if isinstance(smooth, Streamed) else supervised(smooth)


def majority(problem: Problem) -> tuple[str, float] | None:
    """The class with half of the training samples or more, and its share, which one that learns nothing has right."""
    inner = modelled(problem)
    if inner is None or inner.target != "class" or not len(inner.y):
        return None
    counts = inner.y.flatten().bincount(minlength=inner.classes)
    most, share = int(counts.argmax()), float(counts.max()) / len(inner.y)
    names = inner.data.output_names or [str(k) for k in range(inner.classes)]
    return (names[most], share) if share >= 0.5 else None


def ranking(problem: Problem) -> list[dict[str, object]]:
    """The test metrics, the one that ranks first, each with whether more is better."""
    inner = modelled(problem)
    return [] if inner is None else [{"column": f"test_{m.name}", "higher": m.higher} for m in inner.metrics]
