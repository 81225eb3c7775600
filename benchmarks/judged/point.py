"""What every script of this folder shares: a spec on stdin as torch objects, and its answer on stdout.

A script runs in the environment of the package that it drives. A client's data are `size` copies of its number, so that
code which counts samples sees its size, and the model's forward pass on any of them is f_i(x): one batch of all of them
is a full gradient, whatever the package does with batches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))  # `vision`, before torchvision
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class Point(torch.nn.Module):
    """A model whose parameters are x [d], and whose value on a client's number is f_i(x)."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.spec = spec
        self.x = torch.nn.Parameter(torch.tensor(spec["x0"]))

    def forward(self, rows: Tensor) -> Tensor:
        """rows: any shape, all entries one client's number."""
        return value(self.spec, int(rows.reshape(-1)[0]), self.x)

    def __deepcopy__(self, memo: Any) -> Point:
        other = type(self)(self.spec)
        other.load_state_dict(self.state_dict())
        return other


def value(spec: Any, i: int, x: Tensor) -> Tensor:
    """f_i(x)."""
    one = spec["clients"][i]
    if spec["kind"] == "quadratic":
        return 0.5 * x @ torch.tensor(one["A"]) @ x - torch.tensor(one["b"]) @ x
    z, y = torch.tensor(one["rows"]) @ x, torch.tensor(one["labels"])
    return (torch.nn.functional.softplus(z) - y * z).mean() + spec["l2"] / 2 * x.square().sum()


def samples(spec: Any, i: int) -> tuple[Tensor, Tensor]:
    """A client's data: its number [size, 1], and labels that nothing reads [size]."""
    size = int(spec["clients"][i]["size"])
    return torch.full((size, 1), i), torch.zeros(size, dtype=torch.int64)


def itself(out: Tensor, labels: Any) -> Tensor:
    """The loss: what the model gives is f_i already."""
    return out.mean()


class Loss(torch.nn.Module):
    """`itself` as a module, for packages that ask for one; it takes the options of torch's and has none."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    def forward(self, out: Tensor, labels: Any) -> Tensor:
        return itself(out, labels)


def checkout(variable: str, *modules: str) -> None:
    """Import from the checkout whose folder an environment variable names; modules that no cell uses are empty."""
    if variable not in os.environ:
        sys.exit(f"set {variable} to the folder of the checkout that its modules are imported from")
    sys.path.insert(0, os.environ[variable])
    for module in modules:
        sys.modules.setdefault(module, MagicMock())


def local_steps(model: Point, i: int, one: Any, grad: Callable[[Tensor], Tensor] = lambda g: g) -> None:
    """Plain local steps, for packages that leave the client to their user; `grad` changes gradients [d]."""
    for _ in range(one["steps"][one["clients"].index(i)]):
        model.x.grad = None
        model(torch.tensor([i])).backward()
        with torch.no_grad():
            model.x -= one["lr"] * grad(model.x.grad)


def main(cells: dict[str, Callable[[Any, Callable[[Any], None]], None]]) -> None:
    """Run the cell that the command names: it gets the spec and a function to answer the model [d] after a round."""
    if len(sys.argv) != 2 or sys.argv[1] not in cells:
        sys.exit(f"give one of the cells {'; '.join(cells)}")
    spec = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package prints goes elsewhere

    def answer(x: Any) -> None:
        answers.write(json.dumps({"x": [float(entry) for entry in x]}) + "\n")
        answers.flush()

    name, sys.argv = sys.argv[1], sys.argv[:1]
    cells[name](spec, answer)
