"""One run, done in this process."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

from fedconcord import config as settings_module
from fedconcord import files, results, spec
from fedconcord.errors import UserError
from fedconcord.runs.outcome import Finished, finished, not_done
from fedconcord.runs.plan import Planned, prepared, threads
from fedconcord.training import Row


def execute(planned: Planned, on_row: Callable[[Row], None] | None = None) -> Finished:
    """Do one run, in this process.

    Raises:
        UserError: it cannot start.
    """
    config, folder = planned.config, planned.folder
    with threads(config.engine.threads):
        job, models = prepared(config, folder)
        info = {
            "method": config.method,
            "label": config.label,
            "seed": config.seed,
            "models": models,
            "clients": config.clients,
            "cohort": config.cohort,
            "data": config.data,
            "model": config.model or "none",
            "partition": ", ".join(filter(None, [config.partition, config.skew])) or "none",
            "target": config.eval.target,
            "ranking": settings_module.ranking(job.problem),
            "config": config.as_dict(),
        }
        results.execute(
            job,
            folder,
            rounds=config.rounds,
            info=info,
            eval_every=config.eval.every,
            checkpoint_every=config.checkpoint.every,
            resume=planned.resume and (folder / "run.json").exists(),
            on_row=on_row,
            wanted=settings_module.wanted(config, job.problem),
        )
    said = json.loads(job.engine.team.tell(lambda: json.dumps([str(folder), *finished(folder)[1:]])))
    return Finished(folder, *said[1:])


def attempt(entry: Planned, on_row: Callable[[Row], None]) -> Finished:
    """`execute`, where every failure but Ctrl-C becomes a result; that of a defect leaves error.txt in the folder.

    Not so with the distributed engine: of its processes one alone may fail, and then they are no longer in step.
    """
    if entry.config.engine.name == "distributed":
        return execute(entry, on_row)
    try:
        return execute(entry, on_row)
    except (UserError, OSError) as error:
        return not_done(entry, "failed", spec.sentence(error))
    except KeyboardInterrupt:
        return not_done(entry, "interrupted")
    except Exception as error:
        entry.folder.mkdir(parents=True, exist_ok=True)
        files.write_text(entry.folder / "error.txt", traceback.format_exc())
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return not_done(entry, "failed", f"{text} (all of it in {entry.folder / 'error.txt'})")
