"""How many clients to train at once and on how many threads: a rule on counted work, the same on every machine.

No clock decides: a busy moment must not cost a job its second core, and a job repeated gives the same bits. The numbers
below come from benchmarks/chunks.py (docs/speed.md has the table).
"""

from __future__ import annotations

from typing import Literal

import torch

from fedconcord.method.contract import Objective, Plan
from fedconcord.method.step import compiled
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.samples import SLICE

CACHED = 8 * 2**20  # bytes of a chunk's models and batches: more leaves the cache between two products of a step
ON_GPU = 2**30  # the same on a GPU, where only memory bounds it; not measured
WORTHWHILE = 2_000_000  # multiplications of a worker's share in a layer, below which workers wait for Python's lock
AWAKE = 8 * 10**6  # multiplications of a chunk's step, below which one thread of torch's is faster than two
COMPILING = 3 * 10**10  # multiplications of a job that is worth loading compiled steps, or compiling them
ALONE = 5 * 10**6  # multiplications of a worker's share in a round of compiled steps, which need no lock

Kernel = Literal["torch", "compiled"]
Choice = tuple[int, int]
"""(clients in a chunk, workers)."""


def kernel(objective: Objective, assignment: Assignment, plan: Plan, rounds: int) -> Kernel:
    """What computes the local steps of so many rounds like this one: `step.compiled`, where it knows them, is worth
    its start of a second, or a quarter of a minute the first time on a machine, and numba is installed.
    """
    if rounds * _multiplications(objective, assignment, plan) < COMPILING or not compiled.suits(objective, assignment):
        return "torch"
    return "compiled" if compiled.installed() else "torch"


def _multiplications(objective: Objective, assignment: Assignment, plan: Plan) -> int:
    """Of a round's forward passes."""
    width = assignment.draws.width(assignment.algorithm, int(objective.counts(plan.ids).max()))
    return int(plan.steps.sum()) * width * objective.dim


def auto(
    objective: Objective,
    assignment: Assignment,
    plan: Plan,
    chunk: int | Literal["auto"] | None = "auto",
    workers: int | Literal["auto"] = "auto",
    by: Kernel = "torch",
) -> Choice:
    """The (chunk, workers) for rounds like this one: what is given, the rule for the rest.

    A worker a thread of torch's, where kernels let them run at once and each has enough to do: workers wait for each
    other once a round, torch's own threads in every product. Chunks as large as stay in the cache, about equal and as
    many for each worker. Compiled steps take a client after the other: only the vectors around them count.
    """
    size = len(plan.ids)
    width = min(SLICE, assignment.draws.width(assignment.algorithm, int(objective.counts(plan.ids).max())))
    fixed = None if chunk == "auto" else min(chunk or size, size)
    threads = 1
    if workers != "auto":
        threads = workers
    elif has_kernel(objective):
        chunks = size if fixed is None else -(-size // fixed)
        layers = 1 if objective.network is None else len(objective.network.widths) - 1
        enough = size * width * objective.dim // (WORTHWHILE * layers)
        if by == "compiled":
            enough = _multiplications(objective, assignment, plan) // ALONE
        threads = max(1, min(torch.get_num_threads(), chunks, enough))
    if fixed is not None:
        return fixed, threads
    bound = CACHED if objective.device.type == "cpu" else ON_GPU
    numbers = objective.dim + (0 if by == "compiled" else width * objective.sample_size)
    most = max(1, bound // (objective.dtype.itemsize * numbers))
    turns = -(-size // (threads * most))  # chunks of each worker
    return -(-size // (threads * turns)), threads


def has_small_products(objective: Objective, assignment: Assignment, plan: Plan, chunk: int, is_full: bool) -> bool:
    """Whether a thread of torch's has done a chunk's step, or `is_full` gradients, before a second one is awake."""
    most = int(objective.counts(plan.ids).max())
    width = min(SLICE, most if is_full else assignment.draws.width(assignment.algorithm, most))
    return objective.network is not None and chunk * width * objective.dim < AWAKE  # convolutions are not counted


def has_kernel(objective: Objective) -> bool:
    """Whether several threads may compute gradients at once: hand-written kernels may, torch.nn modules may not."""
    return objective.accumulate is not None and objective.device.type == "cpu"
