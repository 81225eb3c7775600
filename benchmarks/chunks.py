"""What chunks of every size cost: the evidence for the rule of `engines/chunk.py`; a row a model, batch and cohort.

    python benchmarks/chunks.py [--repeats 7] [--models logreg,2nn]

Five local steps of the cohort on noise of the data's shape, on one thread, in turns. Processor time counts, and the
least of the repeats: a busy machine says nothing of a chunk.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from fedconcord import MODELS, Dataset, Supervised

STEPS = 5
HOPELESS = 3.0  # what takes so many times the least is not tried again
CASES = (  # shape, model, batches, cohorts
    ((64,), "logreg", (10, 200), (10, 100)),
    ((64,), "2nn", (10, 200), (10, 100)),
    ((1, 28, 28), "logreg", (10, 50, 200), (5, 20, 100)),
    ((1, 28, 28), "2nn", (10, 50, 200), (5, 20, 100)),
    ((1, 28, 28), "lenet", (10, 50), (5, 20)),
    ((1, 28, 28), "cnn1", (10, 50), (4, 10)),
    ((3, 32, 32), "logreg", (10, 50), (10, 100)),
    ((3, 32, 32), "2nn", (10, 50), (10,)),
    ((3, 32, 32), "lenet", (10, 50), (5, 20)),
    ((3, 32, 32), "cnn2", (10, 50), (4, 10)),
)


def problem_of(shape: tuple[int, ...], model: str) -> Supervised:
    """A thousand samples of noise, dealt out to a hundred clients."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((1000, *shape)).astype(np.float32), draw.integers(0, 10, 1000)
    parts = np.split(np.arange(1000), 100)
    return Supervised(lambda: MODELS[model](shape, 10), Dataset("noise", x, y, x, y, 10), parts, dtype=torch.float32)


def step(problem: Supervised, samples: torch.Tensor, x: torch.Tensor) -> None:
    """Local steps of a chunk [chunk, dim]."""
    for _ in range(STEPS):
        if problem.accumulate is None:
            x.sub_(problem.gradients(x, samples[: len(x)], None), alpha=1e-12)
        else:
            problem.accumulate(x, 1.0, -1e-12, x, samples[: len(x)], None)


def chunks_of(cohort: int) -> list[int]:
    """The cohort, half of it and so on, down to one client."""
    found = [cohort]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def seconds(run: Callable[[torch.Tensor], None], start: torch.Tensor, cohort: int, chunk: int) -> float:
    """Processor seconds of the cohort, in chunks dealt out as the engine deals them."""
    number = -(-cohort // chunk)
    stacks = [start.expand(len(range(k, cohort, number)), -1).clone() for k in range(number)]
    begun = time.process_time()
    for x in stacks:
        run(x)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", default=",".join(sorted({case[1] for case in CASES})))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| input | model | numbers | batch | cohort | ms, by clients in a chunk |")
    print("|---|---|---|---|---|---|")
    for shape, model, batches, cohorts in CASES:
        if model not in args.models.split(","):
            continue
        problem = problem_of(shape, model)
        start = problem.init(0)
        for batch, cohort in itertools.product(batches, cohorts):
            samples = torch.randint(1000, (cohort, batch), generator=torch.Generator().manual_seed(0))
            once = partial(seconds, partial(step, problem, samples), start, cohort)
            took: dict[int, list[float]] = {chunk: [] for chunk in chunks_of(cohort)}
            for repeat in range(args.repeats):
                worth = HOPELESS * min((min(held) for held in took.values() if held), default=math.inf)
                for chunk, held in took.items():
                    if repeat == 0 or min(held) < worth:
                        held.append(once(chunk))
            cells = ", ".join(f"{chunk}: {1000 * min(held):.1f}" for chunk, held in took.items())
            print(
                f"| {'x'.join(map(str, shape))} | {model} | {problem.dim} | {batch} | {cohort} | {cells} |", flush=True
            )


if __name__ == "__main__":
    main()
