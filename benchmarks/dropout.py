"""What dropout adds to gradients: masks by keys here, and torch's own layers from its global generator, in turn.

    python benchmarks/dropout.py

Processor milliseconds of a mini-batch gradient on one thread, the least of many; torch's layers under
`vmap(randomness="different")` where clients are side by side. Without dropout in the last column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from networks import pfl_cnn
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from turns import in_turn

from fedconcord import MODELS
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.method.contract import Conditions

BATCH, TURNS = 20, 60


class Case(NamedTuple):
    name: str
    model: nn.Sequential  # without dropout
    after: tuple[int, ...]  # the layers that are followed by dropout
    shape: tuple[int, ...]
    clients: int


def with_dropout(case: Case) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, layer in enumerate(case.model):
        layers += [layer, nn.Dropout(0.3)] if k in case.after else [layer]
    return nn.Sequential(*layers)


def problem(case: Case, model: nn.Module) -> Supervised:
    draw, n = np.random.default_rng(0), case.clients * BATCH
    x = draw.standard_normal((n, *case.shape)).astype(np.float32)
    data = Dataset("normal", x, draw.integers(0, 10, n), x[:2], np.zeros(2, np.int64), 10)
    return Supervised(lambda: model, data, np.split(np.arange(n), case.clients))


def of_torch(ours: Supervised, model: nn.Module, x: Tensor, samples: Tensor) -> Callable[[], object]:
    """The same gradients with torch's masks: clients in turn or side by side, as ours are."""

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, ours.layout.values(x), (inputs,)), targets)

    def alone(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        at = x.detach().requires_grad_()
        return torch.autograd.grad(loss(at, inputs, targets), at)[0]

    if ours.in_turn or len(x) == 1:
        return lambda: torch.stack([alone(*one) for one in zip(x, *ours.samples(samples), strict=True)])
    together = vmap(grad(loss), randomness="different")
    return lambda: together(x, *ours.samples(samples))


def main() -> None:
    cases = [
        Case("2nn", MODELS["2nn"]((1, 28, 28), 10), (2, 4), (1, 28, 28), 1),
        Case("2nn", MODELS["2nn"]((1, 28, 28), 10), (2, 4), (1, 28, 28), 10),
        Case("pfl_cnn", pfl_cnn(), (4, 7), (3, 32, 32), 2),
    ]
    torch.set_num_threads(1)
    print(f"batches of {BATCH}\n")
    print("| model | clients | keys | torch | none |\n|---|---|---|---|---|")
    for case in cases:
        model = with_dropout(case)
        ours = problem(case, model)
        plain = problem(case, nn.Sequential(*(m for m in with_dropout(case) if not isinstance(m, nn.Dropout))))
        plain._kernel = None  # torch's way too, so that what is left is dropout
        x = ours.init(0).expand(case.clients, -1).clone()
        samples = torch.arange(case.clients * BATCH).view(case.clients, BATCH)
        keyed = ours.under(Conditions(masks=torch.arange(case.clients)[:, None])).gradients
        ways: dict[str, Callable[[], object]] = {
            "keys": partial(keyed, x, samples, None),
            "torch": of_torch(ours, model, x, samples),
            "none": partial(plain.gradients, x, samples, None),
        }
        seconds = in_turn(ways, TURNS, warmup=1)
        numbers = " | ".join(f"{1e3 * min(seconds[name])[0]:.2f}" for name in ways)
        print(f"| {case.name} | {case.clients} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
