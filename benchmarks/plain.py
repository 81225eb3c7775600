"""The loop that a careful user writes for jobs A, B and C: data as tensors, one model, torch.optim.SGD, slices.

    python benchmarks/plain.py A --threads 1
    python benchmarks/plain.py A --processes 2      the cohort split over processes, models summed in shared memory

Prints one JSON line. Without --federation it reads the data as jobs.py does.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
from networks import NETWORKS, accuracy
from settings import Federation, Setting, arguments, load
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from turns import Turns

Work = Sequence[tuple[int, Sequence[Tensor | None]]]
"""Clients of a round, each with the order of its samples in every pass over them (None: as they lie)."""


class Loop(NamedTuple):
    """One process's model and data."""

    setting: Setting
    clients: list[tuple[Tensor, Tensor]]
    model: nn.Sequential
    optimizer: torch.optim.Optimizer


def loop_of(setting: Setting, federation: Federation) -> Loop:
    clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in federation.clients]
    model = NETWORKS[setting.model]()
    return Loop(setting, clients, model, torch.optim.SGD(model.parameters(), setting.lr))


def draw(setting: Setting, federation: Federation, rng: np.random.Generator) -> Work:
    """A round's cohort and the order of its samples."""
    ids = rng.choice(setting.clients, setting.cohort, replace=False).tolist()
    if setting.batch is None:
        return [(i, [None] * (setting.steps or 1)) for i in ids]
    sizes = np.diff(federation.offsets)
    return [(i, [torch.from_numpy(rng.permutation(sizes[i])) for _ in range(setting.epochs or 1)]) for i in ids]


def train(loop: Loop, start: Sequence[Tensor], total: Sequence[Tensor], work: Work) -> None:
    """Train these clients from `start` and add their models, over the size of the cohort, to `total`."""
    model, batch = loop.model, loop.setting.batch
    parameters = [p.data for p in model.parameters()]
    for i, passes in work:
        torch._foreach_copy_(parameters, start)
        for order in passes:
            x, y = loop.clients[i]
            if order is not None:
                x, y = x[order], y[order]
            for k in range(0, len(y), batch or len(y)):
                end = k + (batch or len(y))
                loop.optimizer.zero_grad()
                F.cross_entropy(model(x[k:end]), y[k:end]).backward()
                loop.optimizer.step()
        torch._foreach_add_(total, parameters, alpha=1.0 / loop.setting.cohort)


def views(vector: Tensor, model: nn.Module) -> list[Tensor]:
    """A vector as the model's parameters."""
    shapes = [p.shape for p in model.parameters()]
    parts = vector.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class Shared(NamedTuple):
    """What the processes of a run have in common."""

    x: Tensor  # [d] the server's model
    totals: Tensor  # [processes, d]
    go: list[Semaphore]
    done: Semaphore


def helper(rank: int, shared: Shared, setting: Setting, federation: Federation, args: argparse.Namespace) -> None:
    """A second process: every round trains its share of the cohort."""
    torch.set_num_threads(args.threads)
    loop = loop_of(setting, federation)
    start, total = views(shared.x, loop.model), views(shared.totals[rank], loop.model)
    rng = np.random.default_rng(args.seed)
    for _ in range(args.warmup + args.rounds):
        shared.go[rank].acquire()
        shared.totals[rank].zero_()
        train(loop, start, total, draw(setting, federation, rng)[rank :: args.processes])
        shared.done.release()


def run(setting: Setting, federation: Federation, args: argparse.Namespace) -> None:
    """All rounds; prints the record."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    loop = loop_of(setting, federation)
    x = parameters_to_vector(loop.model.parameters()).detach().clone()
    context = mp.get_context("fork" if args.processes == 1 else "spawn")
    count = args.processes
    shared = Shared(
        x.share_memory_(),
        torch.zeros(count, len(x)).share_memory_(),
        [context.Semaphore(0) for _ in range(count)],
        context.Semaphore(0),
    )
    helpers = [
        context.Process(target=helper, args=(rank, shared, setting, federation, args), daemon=True)
        for rank in range(1, count)
    ]
    for process in helpers:
        process.start()
    rng = np.random.default_rng(args.seed)
    start, total = views(shared.x, loop.model), views(shared.totals[0], loop.model)
    turns = Turns(args.warmup + args.rounds)
    turns.begin()
    for _ in range(args.warmup + args.rounds):
        for rank in range(1, count):
            shared.go[rank].release()
        shared.totals[0].zero_()
        train(loop, start, total, draw(setting, federation, rng)[::count])
        for _ in helpers:
            shared.done.acquire()
        torch.sum(shared.totals, 0, out=shared.x)
        turns.lap()
    for process in helpers:
        process.join()
    torch._foreach_copy_([p.data for p in loop.model.parameters()], start)
    turns.finish(
        args.warmup,
        accuracy=accuracy(loop.model, federation),
        job=args.job,
        setting={**setting._asdict(), "client_steps": setting.client_steps},
        threads=args.threads,
        processes=count,
        versions={"torch": torch.__version__, "python": platform.python_version()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    args, setting = arguments(parser)
    if args.federation:
        federation = load(Path(args.federation))
    else:
        import problems

        federation = problems.federation(setting, args.seed, args.quick)
    run(setting, federation, args)


if __name__ == "__main__":
    main()
