"""What a search leaves: tune.json, and a TOML file a method that `compare --config` takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedconcord.basis import files
from fedconcord.report.again import to_toml
from fedconcord.runs.tables import rows_of
from fedconcord.settings.settings import Config
from fedconcord.tuning.plan import Tuning, save
from fedconcord.tuning.results import MethodSearch, Trial, edges, shown, winner, winners
from fedconcord.tuning.scores import Score
from fedconcord.tuning.space import text_of


class Spent(NamedTuple):
    """What the trials of a method took, all seeds together."""

    rounds: int
    gradient_steps: int
    bytes: int  # up and down
    seconds: float  # of training and evaluating, on one core each


def spent(tuning: Tuning, search: MethodSearch) -> Spent:
    """What the trials of a method took. Runs that began anew after an interruption count once."""
    rounds = steps = size = 0
    seconds = 0.0
    for trial in search.trials:
        for seed in tuning.seeds:
            folder = tuning.place(search.space, trial.number, seed)
            if not (folder / "metrics.csv").exists():
                continue
            rows = rows_of(folder / "metrics.csv", tuning.config.rounds)
            last = rows[-1] if rows else {"round": 0, "gradient_steps": 0, "bytes_up": 0, "bytes_down": 0}
            rounds += int(last["round"])
            steps += int(last["gradient_steps"])
            size += int(last["bytes_up"]) + int(last["bytes_down"])
            seconds += sum(float(row["seconds"]) for row in rows_of(folder / "timing.csv", tuning.config.rounds))
    return Spent(rounds, steps, size, seconds)


def write(tuning: Tuning, searches: Sequence[MethodSearch]) -> None:
    """The TOML files and tune.json. The same search writes the same bytes: there are no times in it."""
    texts = winners(tuning.config, searches)
    for search in searches:
        if search.space.method in texts:
            name = f"{files.folder_name(search.space.method)}.toml"
            files.write_text(tuning.folder / name, _toml(tuning, [texts[search.space.method]], _why(tuning, search)))
    comment = "The best settings of each method, for fedconcord compare --config"
    files.write_text(tuning.folder / "best.toml", _toml(tuning, list(texts.values()), comment))
    objective = tuning.objective
    save(
        tuning,
        {
            "status": "complete",
            "objective": {
                "column": objective.metric.column,
                "higher": objective.metric.higher,
                "target": objective.target,
                "held": objective.is_held_out,
            },
            "methods": [_method(tuning, search) for search in searches],
            "final": "final",
        },
    )


def _toml(tuning: Tuning, methods: Sequence[str], comment: str) -> str:
    """The job as it was asked for, where it is not the default, with these methods and the fresh seeds."""
    job = tuning.config.model_copy(update={"label": None, "seed": None, "methods": None, "seeds": None}).as_dict()
    job = _beyond(job, Config().model_dump(mode="json") | {"data": None})
    first = {"methods": list(methods), "seeds": list(tuning.spec.final_seeds or ())}
    return f"# {comment}\n{to_toml(first | job)}\n"


def _beyond(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, table by table."""
    different = {}
    for key, value in settings.items():
        beyond = _beyond(value, defaults[key]) if isinstance(value, dict) else value
        if beyond != defaults.get(key) and beyond != {}:
            different[key] = beyond
    return different


def _why(tuning: Tuning, search: MethodSearch) -> str:
    """Where the values of a method come from, on one line."""
    if search.best is None:
        return "nothing to tune"
    seeds = ", ".join(map(str, tuning.seeds))
    return (
        f"{shown(tuning.objective, search.best.last)} after {search.best.rounds} rounds, the best of "
        f"{len(search.trials)} trials with seed {seeds}; untuned: {shown(tuning.objective, search.trials[0].last)}"
    )


def _method(tuning: Tuning, search: MethodSearch) -> dict[str, Any]:
    cost = spent(tuning, search)
    return {
        "method": search.space.method,
        "winner": winner(tuning.config, search),
        "search": {key: list(place) for key, place in search.space.places.items()},
        "best": None if search.best is None else search.best.number,
        "extend": [edge.search for edge in edges(tuning.config, search) if edge.search],
        "rungs": [list(rung) for rung in tuning.rungs[search.space.method]] if search.trials else [],
        "trials": [_trial(tuning, search, trial) for trial in search.trials],
        "cost": {"rounds": cost.rounds, "gradient_steps": cost.gradient_steps, "bytes": cost.bytes},
    }


def _trial(tuning: Tuning, search: MethodSearch, trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "method": text_of(tuning.config, search.space.method, trial.values),
        "values": dict(trial.values),
        "scores": [{"rounds": rounds, **_score(score)} for rounds, score in trial.scores.items()],
        **({"errors": list(trial.errors)} if trial.errors else {}),
    }


def _score(score: Score) -> Mapping[str, Any]:
    value = score.value if math.isfinite(score.value) else None
    error = None if value is None else score.standard_error
    return {
        "value": value, "standard_error": error, "rounds_to_target": score.reached, "missed": score.missed,
        "broken": score.broken,
    }  # fmt: skip
