"""What an implementation answers: the model after each round and, if it has them, clients' models after their steps."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconcord.support.errors import UserError, reason
from fedconcord_referee.spec import Spec

HUGE = 1e100  # what is beyond counts as lost, before squares of it overflow


class Trajectory(NamedTuple):
    """An answer to a spec."""

    x: np.ndarray  # [R, d] the method's answer after each round
    local: tuple[dict[int, np.ndarray], ...] = ()  # of each round, client -> its model [d] after its steps; or none


def checked(answer: Any, spec: Spec, who: str) -> Trajectory:
    """An answer as it came, as a trajectory.

    Args:
        answer: a mapping with `x` and perhaps `local`, which has a vector for each client of each round's cohort.
        who: what gave it, for sentences.

    Raises:
        UserError: it is none: a wrong shape, or a number that is not finite, with the round.
    """
    if not isinstance(answer, Mapping) or "x" not in answer:
        raise UserError(
            f'{who} has no "x"; answer a JSON object with "x", the model after each round: a list of '
            f"{len(spec.rounds)} lists of {len(spec.x0)} numbers"
        )
    rows = list(answer["x"]) if isinstance(answer["x"], list | tuple | np.ndarray) else []
    if len(rows) == len(spec.rounds) + 1 and np.array_equal(vector(rows[0], spec, f"{who}: x[0]"), spec.x0):
        rows = rows[1:]  # the start stands before the first round
    if len(rows) != len(spec.rounds):
        raise UserError(
            f"{who}: x has {len(rows)} rows and the spec {len(spec.rounds)} rounds; answer the model after each round"
        )
    x = np.stack([vector(row, spec, f"{who}: x after round {t}") for t, row in enumerate(rows, 1)])
    local = answer.get("local")
    if local is None:
        return Trajectory(x)
    if not isinstance(local, list | tuple | np.ndarray) or len(local) != len(spec.rounds):
        raise UserError(f"{who}: local must have clients' models for each of {len(spec.rounds)} rounds, or be left out")
    return Trajectory(x, tuple(_models(one, spec, t, who) for t, one in enumerate(local)))


def _models(models: Any, spec: Spec, t: int, who: str) -> dict[int, np.ndarray]:
    ids = spec.rounds[t].clients
    if len(models) != len(ids):
        raise UserError(
            f"{who}: local has {len(models)} models in round {t + 1}; give those of clients {', '.join(map(str, ids))}"
        )
    return {i: vector(v, spec, f"{who}: client {i} in round {t + 1}") for i, v in zip(ids, models, strict=True)}


def vector(row: Any, spec: Spec, where: str) -> np.ndarray:
    """A row as a vector [d] of the spec's problem; anything else is one sentence, which begins with `where`."""
    d = len(spec.x0)
    try:
        vector = np.asarray(row, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise UserError(f"{where} is no vector of numbers; give {d} numbers") from None
    if len(vector) != d:
        raise UserError(f"{where} has {len(vector)} numbers and the problem {d}; give {d} numbers")
    if not (np.abs(vector) < HUGE).all():
        kind = "NaN" if np.isnan(vector).any() else "a number beyond 1e100"
        raise UserError(f"{where} has {kind}: the computation is lost there; look at that round first")
    return vector


def read(path: Path, spec: Spec) -> Trajectory:
    """A recorded trajectory: .npz with an array `x`, or JSON as programs answer it.

    Raises:
        UserError: the file cannot be read, or holds no trajectory of this spec.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                answer: Any = dict(file)
        elif path.suffix == ".npy":
            answer = {"x": np.load(path, allow_pickle=False)}
        else:
            answer = json.loads(path.read_text())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"cannot read the trajectory {path}: {reason(error)}; give .npz with an array x [rounds, d], or JSON"
        ) from error
    return checked(answer, spec, str(path))
