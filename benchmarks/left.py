"""Where a round of a method goes, in milliseconds, beside FedAvg's: what docs/cost.md says is left over it.

    python benchmarks/left.py C --methods scaffold,feddyn,losac [--rounds 40]

One worker on one thread, so that the parts add up: the local steps in compiled code; the clients' rows in and out of
the store, new rows that a pass writes there among them; the method's own functions (`start`, `finish`, `contribute`,
`update`) and the passes that make what they note; and the rest: plans, draws, sums, Python. Medians over rounds of all
methods in turn, on clients that all have rows before the first round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from jobs import chosen, job_of, method, parser, started
from problems import problem_of
from turns import in_turn

from fedconcord import METHODS, Algorithm, Job, State, UserError, advance
from fedconcord.execution.engines import stacked
from fedconcord.execution.job import resolved
from fedconcord.execution.rows import MemoryStore
from fedconcord.method.step import compiled
from fedconcord.method.step.compiled.loading import Code

CALLS = (
    (Code, "__call__", "steps"),
    *((MemoryStore, name, "rows") for name in ("gather", "look", "scatter")),
    *((module, name, "functions") for module, name in ((stacked, "compute"), (compiled, "there"))),
)
FUNCTIONS = ("start", "finish", "contribute", "update")
BLOCKS = 5  # of methods with a table


class Contestant:
    """A method on a job, with the seconds of each part of every round."""

    def __init__(self, job: Job, state: State) -> None:
        self.job, self.state, self.rounds = job, state, list[dict[str, float]]()

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with its time added to a part of the round."""

        def timing(*args: Any) -> Any:
            begun = time.perf_counter()
            result = call(*args)
            self.rounds[-1][part] += time.perf_counter() - begun
            return result

        return timing

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, what `CALLS` names is timed."""
        own = [getattr(kind, name) for kind, name, _ in CALLS]
        for (kind, name, part), call in zip(CALLS, own, strict=True):
            setattr(kind, name, self.timed(part, call))
        try:
            yield
        finally:
            for (kind, name, _), call in zip(CALLS, own, strict=True):
                setattr(kind, name, call)

    def more(self) -> None:
        """One round."""
        self.rounds.append(dict.fromkeys(("steps", "rows", "functions", "all"), 0.0))
        algorithm = self.job.algorithm
        own = {name: self.timed("functions", getattr(algorithm, name)) for name in FUNCTIONS}
        job = replace(self.job, algorithm=replace(algorithm, **own))
        with self.watched():
            self.state = self.timed("all", partial(advance, job))(self.state)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("job", choices=["A", "C"], help="whose local steps are compiled")
    options.add_argument(
        "--methods", default="scaffold,feddyn,afedpd,fedadmm_inexact,auto,losac", help="separated by commas"
    )
    options.add_argument("--rounds", default="20", help="measured rounds")
    options.add_argument("--warmup", default="2", help="rounds before them that are not measured")
    options.add_argument("--quick", action="store_true", help="a small form of the job, for tests")
    own = options.parse_args()
    names = own.methods.split(",")
    if unknown := {*names} - {*METHODS}:
        options.error(f"unknown method {min(unknown)!r}; `fedconcord list methods` shows them")
    numbers = ["--rounds", own.rounds, "--warmup", own.warmup]
    args = parser().parse_args([own.job, "--kernel", "compiled", "--fill", *numbers, *["--quick"] * own.quick])
    torch.set_num_threads(1)
    setting = chosen(args)
    with_blocks = setting._replace(batch=setting.samples // BLOCKS)
    problem = problem_of(setting, args)
    contestants = {}
    for name in ("fedavg", "fedavg, blocks", *names):
        algorithm: Algorithm = method(name.split(",")[0])
        has_table = "," in name or algorithm.step.blocks is not None
        job = resolved(job_of(with_blocks if has_table else setting, problem, algorithm, args))
        contestants[name] = Contestant(job, started(job, args))
    in_turn({name: one.more for name, one in contestants.items()}, args.rounds, args.warmup)
    print("| ms a round | all | steps | rows | its functions | the rest |\n|---|---|---|---|---|---|")
    for name, one in contestants.items():
        rows = [[r["all"], r["steps"], r["rows"], r["functions"]] for r in one.rounds[args.warmup :]]
        rows = [[*row, row[0] - sum(row[1:])] for row in rows]
        print(f"| {name} | {' | '.join(f'{1e3 * median(column):.2f}' for column in zip(*rows, strict=True))} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
