"""What chunks of every size cost on all cores: the evidence for the rule of `execution/engines/chunk.py`; a row a case.

    python benchmarks/chunks.py [--rounds 7]

Whole rounds of FedAvg on noise, all choices in turn within one process, so that a machine that gets slower does so for
all. Seconds of a round, median; the rule's own choice is marked.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedconcord import METHODS, WORK, Dataset, Job, Schedule, Stacked, Supervised, advance, start
from fedconcord.execution.job import resolved


class Case(NamedTuple):
    """A dense network with one hidden layer, or none."""

    features: int
    hidden: int
    cohort: int
    batch: int
    steps: int


CASES = (
    Case(64, 0, 100, 10, 30),
    Case(784, 0, 100, 10, 30),
    Case(784, 100, 100, 10, 10),
    Case(784, 200, 10, 10, 60),
    Case(784, 200, 50, 10, 20),
    Case(784, 1000, 10, 10, 20),
    Case(784, 1000, 10, 100, 10),
    Case(784, 4000, 10, 10, 6),
)


def job_of(case: Case) -> Job:
    """Clients with two batches of noise each."""
    draw, n = np.random.default_rng(0), case.cohort * case.batch * 2
    x = draw.standard_normal((n, case.features)).astype(np.float32)
    y = draw.integers(0, 10, n)
    width = case.hidden or case.features
    hidden = [nn.Linear(case.features, case.hidden), nn.ReLU()] if case.hidden else []
    data, parts = Dataset("noise", x, y, x[:2], y[:2], 10), np.split(np.arange(n), case.cohort)
    problem = Supervised(lambda: nn.Sequential(*hidden, nn.Linear(width, 10)), data, parts)
    schedule = Schedule(0, case.cohort, 0.01, WORK["fixed"](case.steps), "steps", case.batch)
    return Job(problem, METHODS["fedavg"](), schedule)


def choices(job: Job) -> list[Stacked]:
    """The rule's choice first, then halves of a worker's share of the cohort, and one worker with all of it."""
    own, size, threads = resolved(job).engine, job.schedule.cohort, torch.get_num_threads()
    assert isinstance(own, Stacked)
    found, width = [own], -(-size // threads)
    while width >= 1:
        found.append(Stacked(width, threads))
        width = -(-width // 2) if width > 1 else 0
    found.append(Stacked(size, 1))
    return [engine for k, engine in enumerate(found) if engine not in found[:k]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print("| features | hidden | numbers | cohort | batch | ms a round: chunk x workers, the rule's first |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        job = job_of(case)
        jobs = [replace(job, engine=engine) for engine in choices(job)]
        states, seconds = [start(one) for one in jobs], [list[float]() for _ in jobs]
        for _ in range(rounds + 1):
            for k, one in enumerate(jobs):
                begun = time.perf_counter()
                states[k] = advance(one, states[k])
                seconds[k].append(time.perf_counter() - begun)
        cells = (
            f"{one.engine.chunk}x{one.engine.workers}: {1000 * statistics.median(took[1:]):.0f}"
            for one, took in zip(jobs, seconds, strict=True)
            if isinstance(one.engine, Stacked)
        )
        dim = job.problem.objective.dim
        print(f"| {case.features} | {case.hidden} | {dim} | {case.cohort} | {case.batch} | {', '.join(cells)} |")


if __name__ == "__main__":
    main()
