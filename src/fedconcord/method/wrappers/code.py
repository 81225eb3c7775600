"""A user's own local training inside a method: `local.code = "package.module:train"` (`contract.code`)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedconcord.method.contract import Algorithm
from fedconcord.method.contract.code import Code
from fedconcord.method.contract.identity import Identity, definition
from fedconcord.method.wrappers.optimisers import LocalOptimiser, with_optimiser
from fedconcord.support.imports import Open, with_options


@definition()
def with_code(algorithm: Algorithm, code: Code) -> Algorithm:
    """The same method whose clients train by this code; to the method it is a local optimiser that nobody knows."""
    unknown = LocalOptimiser(lambda x, matrices: (), 0.1, identity=code.identity)
    inner = with_optimiser(algorithm, unknown)
    return replace(inner, step=inner.step._replace(code=code))


def codes() -> Mapping[str, Callable[..., Code]]:
    """Local trainings by import path: functions (model, batches, visit, options)."""
    return Open({}, "client code", _own)


def _own(function: Callable[..., Any], path: str) -> Callable[..., Code]:
    called = with_options(function, path, "client code", ("model", "batches", "visit"))

    def make(*args: Any, **options: Any) -> Code:
        return Code(functools.partial(called, *args, **options), Identity(path, tuple(sorted(options.items()))))

    make.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    return make
