"""What one core of this machine can do, and the products of a local step of jobs A and B beside it; prints a table.

python benchmarks/ceilings.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

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


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    a = torch.rand(CLIENTS, 10, 784)
    slope = torch.randn(CLIENTS, 10, 200) * 1e-3
    first, second = torch.randn(CLIENTS, 200, 784) * 0.02, torch.randn(CLIENTS, 200, 200) * 0.05
    images, maps, taps = torch.rand(50, 32, 14, 14), torch.randn(50, 64, 14, 14), torch.randn(64, 32, 5, 5) * 0.05
    wide, hidden, features = torch.randn(512, 3136) * 0.02, torch.randn(50, 512) * 1e-3, torch.rand(50, 3136)
    square, other, out = (torch.randn(1024, 1024) for _ in range(3))
    model, b = torch.randn(199_210), torch.randn(199_210)

    def backward() -> object:
        geometry = [1, 1], [2, 2], [1, 1]
        return torch.ops.aten.convolution_backward(
            maps, images, taps, [64], *geometry, False, [0, 0], 1, [True, True, True]
        )

    tiny = {"beta": 0.999, "alpha": -1e-9}
    # name, work, floating-point operations or bytes, clients in it
    rows: list[tuple[str, Callable[[], object], float, int]] = [
        ("product of 1024 x 1024 matrices", lambda: torch.mm(square, other, out=out), 2 * 1024**3, 1),
        ("A: forward 784-200", lambda: torch.bmm(a, first.mT), 2 * 10 * 784 * 200, CLIENTS),
        ("A: update 784-200", lambda: first.baddbmm_(slope.mT, a, **tiny), 2 * 10 * 784 * 200, CLIENTS),
        ("A: forward 200-200", lambda: torch.bmm(slope, second.mT), 2 * 10 * 200 * 200, CLIENTS),
        ("A: backward 200-200", lambda: torch.bmm(slope, second), 2 * 10 * 200 * 200, CLIENTS),
        ("A: update 200-200", lambda: second.baddbmm_(slope.mT, slope, **tiny), 2 * 10 * 200 * 200, CLIENTS),
        ("B: forward 5x5, 32-64", lambda: F.conv2d(images, taps, padding=2), 2 * 50 * 196 * 800 * 64, 1),
        ("B: backward 5x5, 32-64", backward, 4 * 50 * 196 * 800 * 64, 1),
        ("B: forward 3136-512", lambda: torch.mm(features, wide.T), 2 * 50 * 3136 * 512, 1),
        ("B: backward 3136-512", lambda: torch.mm(hidden, wide), 2 * 50 * 3136 * 512, 1),
        ("B: update 3136-512", lambda: wide.addmm_(hidden.T, features, **tiny), 2 * 50 * 3136 * 512, 1),
    ]
    print("| | ms a client step | Gflop/s |\n|---|---|---|")
    for name, work, operations, clients in rows:
        took = seconds(work, 3) / clients
        print(f"| {name} | {took * 1e3:.3f} | {operations / took / 1e9:.0f} |")
    took = seconds(lambda: model.add_(b, alpha=1e-9), 50)
    print(f"| x + b on A's model of 0.8 MB | {took * 1e3:.3f} | {12 * len(model) / took / 1e9:.0f} GB/s |")


if __name__ == "__main__":
    main()
