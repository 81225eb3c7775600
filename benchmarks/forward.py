"""What a forward pass of many samples takes: the package's way and torch.nn in batches of 2,048, in turn.

    python benchmarks/forward.py

Processor seconds of all threads and wall seconds, the least of three.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from fedconcord import MODELS
from fedconcord.federation.objectives.evaluation import Forward
from fedconcord.method.contract.flat import Layout

JOBS = [("cnn1", (1, 28, 28), 4_000), ("cnn2", (3, 32, 32), 4_000), ("2nn", (1, 28, 28), 12_000)]
PLAIN = 2_048


def took(work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


@torch.no_grad()
def main() -> None:
    print("| model | samples | here: processor, wall | torch.nn: processor, wall |\n|---|---|---|---|")
    for name, shape, n in JOBS:
        model = MODELS[name](shape, 10)
        layout = Layout(model)
        x, samples = layout.flatten(model), torch.randn(n, *shape)
        forward, views = Forward(model, layout, samples[:2]), layout.views(x)

        def plain(views: dict[str, Tensor] = views, samples: Tensor = samples, model: torch.nn.Module = model) -> None:
            for part in samples.split(PLAIN):
                functional_call(model, views, (part,))

        def here(forward: Forward = forward, x: Tensor = x, samples: Tensor = samples) -> None:
            forward.outputs(x, [samples])

        times = [(took(here), took(plain)) for _ in range(3)]
        least = [min(pair[k][i] for pair in times) for k in (0, 1) for i in (0, 1)]
        print(f"| {name} | {n:,} | {least[0]:.3f}, {least[1]:.3f} | {least[2]:.3f}, {least[3]:.3f} |")


if __name__ == "__main__":
    main()
