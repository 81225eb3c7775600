"""What the processes of a round exchange, timed: torchrun --standalone --nproc-per-node 2 benchmarks/exchange.py"""

import statistics
import time
from collections.abc import Callable

import torch

from fedconcord.execution.engines import distributed


def clock(exchange: Callable[[], object], times: int = 40) -> str:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - begin)
    return f"least {1e3 * min(seconds):.2f} ms, median {1e3 * statistics.median(seconds):.2f} ms"


def main() -> None:
    team = distributed.join(60)
    lines = [f"{team.size} processes", f"four flags: {clock(lambda: team.any(False, False, False, True))}"]
    for d in (10_000, 200_000, 1_000_000):
        x = torch.randn(d)
        lines.append(f"two float32 vectors [{d}]: {clock(lambda x=x: team.total((x, x), (1, 2)))}")  # type: ignore[misc]
    if team.rank == 0:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
