"""What one core of this machine can do, and the products of a local step of jobs A and B beside it; prints tables.

    python benchmarks/ceilings.py

The last table has job B's step in float32 and, where the processor multiplies it itself, in bfloat16: its products,
the library's kernel whole, and what autograd takes for the same gradient.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedconcord.support import process

process.settle()  # as the command does, before torch is loaded

import numpy as np
import torch
from torch.nn import functional as F

from fedconcord import MODELS, Dataset, Solver, Supervised
from fedconcord.federation.objectives import quadratics, winograd
from fedconcord.federation.objectives.kernels import product
from fedconcord.federation.objectives.precision import Precision, native_bf16
from fedconcord.federation.participation.work import Keyed
from fedconcord.method.contract import Constant, Dual, Local, Network, Oracle, Pull, Snapshot, Table
from fedconcord.method.step import compiled
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.samples import Batches, Samples

CLIENTS = 5  # at once, as on two workers


STEPS = 60  # of a client in job A


def whole_steps() -> dict[str, Callable[[], Any]]:
    """A client's round of job A in one compiled call, by what its local step adds to the gradient."""
    from fedconcord import METHODS

    widths, draw = (784, 200, 200, 10), torch.Generator().manual_seed(0)
    d = sum(m * (n + 1) for n, m in itertools.pairwise(widths))
    x = torch.randn(d, generator=draw) * 0.03
    inputs, labels = torch.randn(600, 784, generator=draw), torch.randint(10, (600,), generator=draw)
    network = Network(widths, "cross_entropy", inputs, None, None, labels)
    objective = replace(quadratics(0, 1, torch.float32, torch.device("cpu")).objective, network=network)
    samples = torch.randperm(600, generator=draw).view(1, STEPS, 10)
    blocks = torch.randint(5, (1, STEPS), generator=draw)
    other, table, plain = x[None] * 1e-3, torch.zeros(1, 5, d), Solver()

    def call(local: Local, solver: Solver = plain) -> Callable[[], Any]:
        steps = np.array([STEPS])
        chain = Assignment(METHODS["fedavg"](), solver, Keyed(0, 10)).chain(local, 0.01, steps, None)
        source = Batches(objective, np.zeros(1, np.int64), Samples(samples, None), blocks)
        return lambda: compiled.in_one_call(chain, source, steps)

    return {
        "gradient added (FedAvg)": call(Local(x)),
        "and a constant term (SCAFFOLD, FedDyn)": call(Local(x, Constant(other), Pull(0.1, x))),
        "momentum": call(Local(x), Solver(momentum=0.5)),
        "momentum and a constant term": call(Local(x, Constant(other)), Solver(momentum=0.5)),
        "a constant term that moves (inexact ADMM)": call(Local(x, Dual(other, 0.1, x), Pull(0.1, x))),
        "a table of 5 gradients (LoSAC)": call(Local(x, Table(table, other, 0.2))),
        "clipped gradient": call(Local(x), Solver(clip=10.0)),
        "SAM, two gradients": call(Local(x), Solver(oracle=Oracle("sam", 0.1))),
        "less that at a snapshot, two gradients": call(Local(x, Snapshot(x))),
    }


def compiled_products() -> list[Work]:
    """The five large products of a step of job A as compiled steps compute them, a client after the other."""
    from fedconcord.method.step.compiled.products import outputs, slopes, updates

    draw = np.random.default_rng(0)

    def of(n: int, m: int) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
        x, a, z = (draw.standard_normal(size).astype(np.float32) * 0.01 for size in (n * m, 10 * n, 10 * m))
        f, c, none, one = z * np.float32(1e-6), np.zeros_like(a), np.empty(0, np.float32), np.float32(1)
        return (
            lambda: outputs(x, 0, m, n, a, 0, 10, z, 0),
            lambda: slopes(c, n, x, 0, m, f, 10),
            lambda: updates(x, 0, m, n, a, 0, 10, f, 0, m, one, none, np.float32(0)),
        )

    (wide, _, wide_update), (square, back, square_update) = of(784, 200), of(200, 200)
    first, second = 2 * 10 * 784 * 200, 2 * 10 * 200 * 200
    return [
        ("A, compiled: forward 784-200", wide, first, 1),
        ("A, compiled: update 784-200", wide_update, first, 1),
        ("A, compiled: forward 200-200", square, second, 1),
        ("A, compiled: backward 200-200", back, second, 1),
        ("A, compiled: update 200-200", square_update, second, 1),
    ]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of 20 turns."""
    work()
    best = float("inf")
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(repeats):
            work()
        best = min(best, (time.thread_time() - begin) / repeats)
    return best


Work = tuple[str, Callable[[], object], float, int]  # name, work, floating-point operations, clients in it


def ceiling(dtype: torch.dtype = torch.float32) -> Work:
    square, other, out = (torch.randn(1024, 1024, dtype=dtype) for _ in range(3))
    return "product of 1024 x 1024 matrices", lambda: torch.mm(square, other, out=out), 2 * 1024**3, 1


def of_a() -> list[Work]:
    """The products of job A's step."""
    a = torch.rand(CLIENTS, 10, 784)
    slope = torch.randn(CLIENTS, 10, 200) * 1e-3
    first, second = torch.randn(CLIENTS, 200, 784) * 0.02, torch.randn(CLIENTS, 200, 200) * 0.05
    tiny = {"beta": 0.999, "alpha": -1e-9}
    return [
        ("A: forward 784-200", lambda: torch.bmm(a, first.mT), 2 * 10 * 784 * 200, CLIENTS),
        ("A: update 784-200", lambda: first.baddbmm_(slope.mT, a, **tiny), 2 * 10 * 784 * 200, CLIENTS),
        ("A: forward 200-200", lambda: torch.bmm(slope, second.mT), 2 * 10 * 200 * 200, CLIENTS),
        ("A: backward 200-200", lambda: torch.bmm(slope, second), 2 * 10 * 200 * 200, CLIENTS),
        ("A: update 200-200", lambda: second.baddbmm_(slope.mT, slope, **tiny), 2 * 10 * 200 * 200, CLIENTS),
    ]


def of_b(dtype: torch.dtype = torch.float32) -> list[Work]:
    """The large products of job B's step."""
    images, maps = (torch.randn(50, c, 14, 14).to(dtype, memory_format=torch.channels_last) for c in (32, 64))
    taps = (torch.randn(64, 32, 5, 5) * 0.05).to(dtype)
    wide, hidden = (torch.randn(512, 3136) * 0.02).to(dtype), (torch.randn(50, 512) * 1e-3).to(dtype)
    features = torch.rand(50, 3136).to(dtype)

    def backward() -> object:
        geometry = [1, 1], [2, 2], [1, 1]
        return torch.ops.aten.convolution_backward(
            maps, images, taps, [64], *geometry, False, [0, 0], 1, [True, True, True]
        )

    def update() -> object:  # in bfloat16 it is added to a model in float32, which is not here
        made = product(hidden.T, features.T)
        return wide.add_(made, alpha=-1e-9) if dtype == torch.float32 else made

    return [
        ("B: forward 5x5, 32-64", lambda: F.conv2d(images, taps, padding=2), 2 * 50 * 196 * 800 * 64, 1),
        ("B: backward 5x5, 32-64", backward, 4 * 50 * 196 * 800 * 64, 1),
        ("B: forward 3136-512", lambda: product(features, wide), 2 * 50 * 3136 * 512, 1),
        ("B: backward 3136-512", lambda: product(hidden, wide.T), 2 * 50 * 3136 * 512, 1),
        ("B: update 3136-512", update, 2 * 50 * 3136 * 512, 1),
    ]


def fewer() -> list[Work]:
    """B's second convolution as the library computes it; operations are those of its definition."""
    draw = torch.Generator().manual_seed(0)
    images, maps = (
        torch.randn(50, c, 14, 14, generator=draw).contiguous(memory_format=torch.channels_last) for c in (32, 64)
    )
    layer = torch.nn.Conv2d(32, 64, 5, padding=2)
    run = winograd.of(layer)(images)
    if run is None:
        return []
    weight, bias = layer.weight.detach(), torch.zeros(64)
    return [
        ("B, Winograd: forward 5x5, 32-64", lambda: run.outputs(images, weight, bias), 2 * 50 * 196 * 800 * 64, 1),
        (
            "B, Winograd: backward 5x5, 32-64",
            lambda: (run.before(maps, weight), run.weights(images, maps)),
            4 * 50 * 196 * 800 * 64,
            1,
        ),
    ]


def whole(numbers: Precision, model: str, shape: tuple[int, int, int], batch: int) -> list[Work]:
    """A local step of a convolutional model on noise, by the kernel and by autograd; operations are not counted."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((batch, *shape)).astype(np.float32), draw.integers(0, 10, batch)
    data = Dataset("noise", x, y, x[:2], y[:2], 10)
    problem = Supervised(lambda: MODELS[model](shape, 10), data, [np.arange(batch)], numbers=numbers)
    at, samples = problem.init(0)[None].clone(), torch.arange(batch)[None]
    kernel = problem.accumulate
    assert kernel is not None
    return [
        (f"{model}, batch {batch}: kernel", lambda: kernel(at, 1.0, -1e-6, at, samples, None), 0.0, 1),
        (f"{model}, batch {batch}: autograd", lambda: problem.gradient(at[0], samples[0]), 0.0, 1),
    ]


CASES = (("cnn1", (1, 28, 28), 50), ("cnn1", (1, 28, 28), 200), ("cnn2", (3, 32, 32), 50))


def cells(work: Callable[[], object], operations: float, clients: int) -> tuple[float, str]:
    """Milliseconds of a client step, and Gflop/s."""
    took = seconds(work, 3) / clients
    return took * 1e3, f"{operations / took / 1e9:.0f}" if operations else ""


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print("| | ms a client step | Gflop/s |\n|---|---|---|")
    for name, *work in [ceiling(), *of_a(), *compiled_products(), *of_b(), *fewer()]:
        took, rate = cells(*work)
        print(f"| {name} | {took:.3f} | {rate} |")
    model, b = torch.randn(199_210), torch.randn(199_210)
    took = seconds(lambda: model.add_(b, alpha=1e-9), 50)
    print(f"| x + b on A's model of 0.8 MB | {took * 1e3:.3f} | {12 * len(model) / took / 1e9:.0f} GB/s |")
    print("\n| a whole step of A, compiled | ms | times FedAvg's |\n|---|---|---|")
    first_took = None
    for name, work in whole_steps().items():
        took = seconds(work, 3) / STEPS
        first_took = first_took or took
        print(f"| {name} | {took * 1e3:.3f} | {took / first_took:.2f} |")
    if not native_bf16():
        print("\nThis processor only emulates bfloat16.")
        return
    print("\n| | float32, ms | Gflop/s | bfloat16, ms | Gflop/s | ratio |\n|---|---|---|---|---|---|")
    full = [ceiling(), *of_b(), *(work for case in CASES for work in whole("full", *case))]
    half = [ceiling(torch.bfloat16), *of_b(torch.bfloat16), *(work for case in CASES for work in whole("bf16", *case))]
    for (name, *one), (_, *other) in zip(full, half, strict=True):
        (a, rate_a), (b16, rate_b) = cells(*one), cells(*other)
        print(f"| {name} | {a:.3f} | {rate_a} | {b16:.3f} | {rate_b} | {a / b16:.2f} |")


if __name__ == "__main__":
    main()
