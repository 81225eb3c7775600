"""How many clients to train at once, chosen by a short measurement and remembered.

The choice changes the time and the last bits of float32 results, never the meaning. It is kept in the user's cache by
(model size, batch, cohort, device, threads, torch), so that a job repeated on a machine gives the same bits.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from fedconcord import files
from fedconcord.core import Plan, Problem

CLEARLY = 0.9  # a smaller chunk must take less than this share of a larger one's time


def auto(problem: Problem, plan: Plan) -> int:
    """The chunk for rounds like this one: the cached choice, or the fastest of S, S/2, S/4, ..., 1."""
    width = _batch_width(problem, plan)
    key = "/".join(
        map(
            str,
            (
                type(problem).__name__,
                problem.dim,
                width,
                len(plan.ids),
                problem.dtype,
                problem.device.type,
                torch.get_num_threads(),
                torch.__version__,
            ),
        )
    )
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedconcord" / "chunk.json"
    known = _read(path)
    choice = known.get(key)
    if choice is None:
        known[key] = choice = measure(problem, plan, width)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, known)
        except OSError:
            pass  # a read-only home costs a second measurement, nothing else
    return choice


def measure(problem: Problem, plan: Plan, width: int) -> int:
    """The chunk with the least time a client step; the larger one unless the smaller is clearly faster."""
    size, x = len(plan.ids), problem.init(0)
    best, least = size, float("inf")
    chunk = size
    while True:
        first = torch.as_tensor(problem.offsets[plan.ids[:chunk]])[:, None]
        samples = (first + torch.arange(width)[None, :]).clamp(max=int(problem.offsets[-1]) - 1).to(problem.device)
        stacked = x.expand(chunk, -1).clone()
        problem.gradients(stacked, samples, None)
        seconds = min(_time(problem, stacked, samples) for _ in range(3)) / chunk
        if seconds < (CLEARLY * least if chunk < size else float("inf")):
            best, least = chunk, seconds
        if chunk == 1:
            return best
        chunk //= 2


def _time(problem: Problem, x: torch.Tensor, samples: torch.Tensor) -> float:
    begin = time.perf_counter()
    problem.gradients(x, samples, None)
    if problem.device.type == "cuda":
        torch.cuda.synchronize(problem.device)
    return time.perf_counter() - begin


def _batch_width(problem: Problem, plan: Plan) -> int:
    if plan.batches is not None:
        return int(max(batch.shape[1] for batch in plan.batches))
    return int(min(512, np.diff(problem.offsets).max()))


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, int) and v >= 1}
