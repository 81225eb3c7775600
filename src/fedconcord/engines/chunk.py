"""How many clients to train at once and on how many threads, chosen by a short measurement and remembered.

The choice changes the time and the last bits of float32 results, never the meaning. It is kept in the user's cache by
(model size, batch, cohort, device, threads, torch), so that a job repeated on a machine gives the same bits.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedconcord import files
from fedconcord.core import Accumulates, Plan, Problem
from fedconcord.engines import workers as side

CLEARLY = 0.9  # a later choice must take less than this share of an earlier one's time
ALONE = 1.4  # as much more counts one worker on several threads: how long these wait changes from run to run
STEPS = 3  # timed at once

Choice = tuple[int, int]
"""(clients in a chunk, workers)."""


def auto(
    problem: Problem, plan: Plan, chunk: int | Literal["auto"] | None = "auto", workers: int | Literal["auto"] = "auto"
) -> Choice:
    """The (chunk, workers) for rounds like this one: what is given, the cached choice for the rest, or the fastest."""
    options = candidates(len(plan.ids), chunk, workers, torch.get_num_threads() if has_kernel(problem) else 1)
    if len(options) == 1:
        return options[0]
    width = _batch_width(problem, plan)
    key = "/".join(
        map(
            str,
            (
                type(problem).__name__,
                problem.dim,
                width,
                len(plan.ids),
                chunk,
                workers,
                problem.dtype,
                problem.device.type,
                torch.get_num_threads(),
                torch.__version__,
            ),
        )
    )
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedconcord" / "stacked.json"
    known = _read(path)
    choice = known.get(key)
    if choice not in options:
        known[key] = choice = measure(problem, plan, width, options)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, known)
        except OSError:
            pass  # a read-only home costs a second measurement, nothing else
    return choice


def has_kernel(problem: Problem) -> bool:
    """Whether several threads may compute gradients at once: hand-written kernels may, torch.nn modules may not."""
    return isinstance(problem, Accumulates) and problem.accumulate is not None and problem.device.type == "cpu"


def candidates(
    size: int, chunk: int | Literal["auto"] | None, workers: int | Literal["auto"], threads: int
) -> list[Choice]:
    """With a worker a thread, a worker's share of the clients in one chunk, half of it, ...; then with one worker.

    Clients side by side wait for each other once a round, where torch's own threads wait in every product; but tiny
    models leave too little between two turns at Python's lock.

    Args:
        size: clients in the cohort.
        chunk, workers: "auto" or what is given.
        threads: the most workers that "auto" may take.
    """
    fixed = None if chunk == "auto" else min(chunk or size, size)
    chunks = size if fixed is None else -(-size // fixed)
    found = []
    for number in sorted({1, min(threads, chunks)} if workers == "auto" else {workers}, reverse=True):
        width = -(-size // number) if fixed is None else fixed
        found.append((width, number))
        while fixed is None and width > 1:
            width = -(-width // 2)
            found.append((width, number))
    return found


def measure(problem: Problem, plan: Plan, width: int, options: Sequence[Choice]) -> Choice:
    """The first choice that no other beats clearly in the time that a step of the whole cohort takes."""
    size = len(plan.ids)
    together = torch.get_num_threads() > 1 and any(workers > 1 for _, workers in options)
    seconds = [
        _time(problem, plan, width, chunk, workers)
        * -(-size // (chunk * workers))
        * (ALONE if together and workers == 1 else 1.0)
        for chunk, workers in options
    ]
    return next(choice for choice, s in zip(options, seconds, strict=True) if s * CLEARLY <= min(seconds))


def _time(problem: Problem, plan: Plan, width: int, chunk: int, workers: int) -> float:
    """Seconds for a step of `chunk` clients on every worker."""
    first = torch.as_tensor(problem.offsets[plan.ids[:chunk]])[:, None]
    samples = (first + torch.arange(width)[None, :]).clamp(max=int(problem.offsets[-1]) - 1).to(problem.device)
    accumulate = problem.accumulate if isinstance(problem, Accumulates) else None
    stacks = [problem.init(0).expand(chunk, -1).clone() for _ in range(workers)]

    def work(x: torch.Tensor) -> None:
        for _ in range(STEPS):
            if accumulate is None:
                problem.gradients(x, samples, None)
            else:
                accumulate(x, 1.0, -1e-12, x, samples, None)

    found = []
    for _ in range(6):  # the first warms up
        begin = time.perf_counter()
        list(side.ordered(work, stacks, workers))
        if problem.device.type == "cuda":
            torch.cuda.synchronize(problem.device)
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:]) / STEPS  # not the least: threads that wait for a busy core must not look fast


def _batch_width(problem: Problem, plan: Plan) -> int:
    if plan.batches is not None:
        return int(max(batch.shape[1] for batch in plan.batches))
    return int(min(512, np.diff(problem.offsets).max()))


def _read(path: Path) -> dict[str, Choice]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: (v[0], v[1]) for k, v in found.items() if isinstance(v, list) and len(v) == 2}
