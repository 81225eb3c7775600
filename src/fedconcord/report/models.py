"""Which of the models that methods offer are compared: like with like.

A method names its models (`models` in run.json) and answers with the first. The server's iterate is called `server`, a
mean of the clients' models `mean`. These are of different kinds: a mean moves less, and its curve is smoother.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedconcord.report.load import Run

SERVER = "server"  # which every method of the registry has


def kind_of(runs: Sequence[Run]) -> str | None:
    """The kind of model that all runs offer, of several the one that most methods answer with; None without any."""
    common = set.intersection(*(_judged(r) for r in runs)) if runs else set()
    answers = [model for _, model in {(r.name, r.models[0]) for r in runs}]
    return max(sorted(common), key=lambda kind: (answers.count(kind), kind == SERVER), default=None)


def _judged(run: Run) -> set[str]:
    """The models that the run has columns of; before its first evaluation all."""
    first, *others = run.models
    return {first, *(kind for kind in others if not run.metrics or any(c.startswith(f"{kind}:") for c in run.metrics))}


def alike(runs: Sequence[Run]) -> list[Run]:
    """The runs with the columns of `kind_of` as the plain ones; as they are where there is no such kind."""
    kind = kind_of(runs)
    return list(runs) if kind is None else [_as(r, kind) for r in runs]


def _as(run: Run, kind: str) -> Run:
    before = run.models[0]
    if kind == before:
        return run
    mark = f"{kind}:"
    judged = {name.removeprefix(mark) for name in run.metrics if name.startswith(mark)}
    metrics = {}
    for name, values in run.metrics.items():
        if name.startswith(mark):
            metrics[name.removeprefix(mark)] = values
        else:
            metrics[f"{before}:{name}" if name in judged else name] = values
    return replace(run, metrics=metrics, models=(kind, *(model for model in run.models if model != kind)))
