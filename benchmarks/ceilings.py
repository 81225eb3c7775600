"""What one core of this machine can do, and the products of a local step of jobs A and B beside it; prints tables.

    python benchmarks/ceilings.py

The second table has job B's step in float32 and, where the processor multiplies it itself, in bfloat16: its products,
the library's kernel whole, and what autograd takes for the same gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from fedconcord import MODELS, Dataset, Supervised
from fedconcord.problems.precision import Precision, native_bf16

CLIENTS = 5  # at once, as on two workers


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

    def update() -> object:  # in bfloat16 the gradient is made, and then added to the float32 model
        added = dtype == torch.float32
        return wide.addmm_(hidden.T, features, alpha=-1e-9) if added else torch.mm(hidden.T, features)

    return [
        ("B: forward 5x5, 32-64", lambda: F.conv2d(images, taps, padding=2), 2 * 50 * 196 * 800 * 64, 1),
        ("B: backward 5x5, 32-64", backward, 4 * 50 * 196 * 800 * 64, 1),
        ("B: forward 3136-512", lambda: torch.mm(features, wide.T), 2 * 50 * 3136 * 512, 1),
        ("B: backward 3136-512", lambda: torch.mm(hidden, wide), 2 * 50 * 3136 * 512, 1),
        ("B: update 3136-512", update, 2 * 50 * 3136 * 512, 1),
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
    torch.set_num_threads(1)
    print("| | ms a client step | Gflop/s |\n|---|---|---|")
    for name, *work in [ceiling(), *of_a(), *of_b()]:
        took, rate = cells(*work)
        print(f"| {name} | {took:.3f} | {rate} |")
    model, b = torch.randn(199_210), torch.randn(199_210)
    took = seconds(lambda: model.add_(b, alpha=1e-9), 50)
    print(f"| x + b on A's model of 0.8 MB | {took * 1e3:.3f} | {12 * len(model) / took / 1e9:.0f} GB/s |")
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
