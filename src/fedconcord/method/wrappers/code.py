"""A user's own local training inside a method: `local.code = "package.module:train"` (`contract.code`).

A function whose second parameter is called `batch` is one step of it, step(model, batch, state) -> loss, and the rest
is written here (`training`); any other is the whole.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedconcord.method.contract import Algorithm
from fedconcord.method.contract.code import Batch, Code, Visit
from fedconcord.method.contract.identity import Identity, definition
from fedconcord.method.wrappers.optimisers import LocalOptimiser, with_optimiser
from fedconcord.support.errors import UserError
from fedconcord.support.imports import Open, with_options


@definition()
def with_code(algorithm: Algorithm, code: Code) -> Algorithm:
    """The same method whose clients train by this code; to the method it is a local optimiser that nobody knows."""
    unknown = LocalOptimiser(lambda x, matrices: (), 0.1, identity=code.identity)
    inner = with_optimiser(algorithm, unknown)
    return replace(inner, step=inner.step._replace(code=code))


def codes() -> Mapping[str, Callable[..., Code]]:
    """Local trainings by import path: functions (model, batches, visit, options), or (model, batch, state, options)."""
    return Open({}, "client code", _own)


def _own(function: Callable[..., Any], path: str) -> Callable[..., Code]:
    is_step = [*inspect.signature(function).parameters][1:2] == ["batch"]
    leading = ("model", "batch", "state") if is_step else ("model", "batches", "visit")
    called = with_options(function, path, "client code", leading)

    def make(*args: Any, **options: Any) -> Code:
        mine = functools.partial(called, *args, **options)
        train = training(mine, path) if is_step else mine
        return Code(train, Identity(path, tuple(sorted(options.items()))))

    make.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    return make


def training(
    step: Callable[[Any, Batch, dict[str, Any]], Tensor], name: str
) -> Callable[[nn.Module, list[Batch], Visit], None]:
    """The local training whose steps go against the method's direction at the gradient of a loss of one's own.

    Args:
        step: (model, batch, state) -> loss []. The state has `client`, `round`, `lr`, `seed` and `step`, from 0; what
            else a step puts there is there until the client's last step of the round.
        name: of the step, for what is wrong with it.
    """

    def train(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        state: dict[str, Any] = visit._asdict()
        del state["correct"]
        parameters = [value for value in model.parameters() if value.requires_grad]
        for k, batch in enumerate(batches):
            state["step"] = k
            model.zero_grad()
            loss = step(model, batch, state)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                kind = f"a tensor {[*loss.shape]}" if isinstance(loss, Tensor) else type(loss).__name__
                raise UserError(
                    f"client code {name} returned {kind} in place of the loss of its batch; return one number as a "
                    "tensor that backward() can follow to the model, without item() and detach()"
                )
            torch.autograd.backward(loss)
            visit.correct()
            with torch.no_grad():
                for value in parameters:
                    assert value.grad is not None  # `correct` sees to it
                    value.sub_(value.grad, alpha=visit.lr)

    return train
