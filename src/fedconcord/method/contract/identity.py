"""Which definition something is: what a checkpoint holds, and what both ends of a wire compare.

A factory under `@definition(version)` makes things that carry their `identity`: the factory's name, all its parameters
(defaults included; a part that has an identity of its own stands as that) and the version of the definition, which is
raised when the same name and parameters come to mean something else.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Identity(NamedTuple):
    """One definition with its parameters."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()  # by name; a value may be an Identity
    version: int = 1

    @property
    def method(self) -> str:
        """The name of what is inside all wrappers, which take it as `algorithm`."""
        inner = dict(self.parameters).get("algorithm")
        return inner.method if isinstance(inner, Identity) else self.name

    def __str__(self) -> str:
        """Canonical JSON, the same for equal identities."""
        return json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))


UNNAMED = Identity("", (), 0)
"""Of what was made by hand: it says nothing, and equals any other such thing."""


def definition(version: int = 1) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a factory's products say which they are: functions, or a dataclass or NamedTuple with a field `identity`."""

    def decorate(factory: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def build(*args: P.args, **kwargs: P.kwargs) -> T:
            product: Any = factory(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if any(product is value for value in bound.arguments.values()):
                return product  # type: ignore[no-any-return]  # handed back as it was, and still what it was
            arguments = tuple(sorted((name, _frozen(value)) for name, value in bound.arguments.items()))
            changed: T = _with(product, Identity(factory.__name__, arguments, version))
            return changed

        return build

    return decorate


def _with(product: Any, identity: Identity) -> Any:
    if isinstance(product, FunctionType):  # made anew by the factory: nobody else has it
        product.identity = identity  # type: ignore[attr-defined]
        return product
    return product._replace(identity=identity) if hasattr(product, "_replace") else replace(product, identity=identity)


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return tuple(_frozen(v) for v in value)
    return getattr(value, "identity", value)


def _plain(value: Any) -> Any:
    if isinstance(value, Identity):
        return {"name": value.name, "version": value.version, "parameters": {k: _plain(v) for k, v in value.parameters}}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
