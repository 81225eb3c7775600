"""Fields of `Algorithm` by the names that they had before they were put in groups. They work for one release."""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeVar

T = TypeVar("T")

FORMER = {
    **{name: f"phases.{name}" for name in ("prologue", "prelude", "combine", "settle", "communicates", "unheard")},
    "keeps_late": "phases.late",
    **{
        f"needs_{name}": f"needs.{name}"
        for name in ("everyone", "inclusion", "x0", "full_gradient", "normaliser", "lr")
    },
    "needs_p": "needs.weight",
    **{name: f"step.{name}" for name in ("oracle", "steps", "blocks", "hessian_at", "regularise")},
    "pace": "step.size",
    "stepwise": "step.fixed",
    **{name: f"facts.{name}" for name in ("invariant", "protection")},
    "served": "facts.server_optimiser",
    "own": "client_model",
}
"""Former name -> where the field is now."""


def accepts_former_fields(cls: type[T]) -> type[T]:
    """Let a dataclass with groups be made, and changed by `dataclasses.replace`, with the former names."""
    initialise: Any = cls.__init__

    @functools.wraps(initialise)
    def init(self: Any, *arguments: Any, **fields: Any) -> None:
        for name in [name for name in fields if name in FORMER]:
            group, _, field = FORMER[name].partition(".")
            value = fields.pop(name)
            _warn(name, f", given as {group}={group.capitalize()}({field}=...)" if field else "")
            fields[group] = fields.get(group, getattr(cls, group))._replace(**{field: value}) if field else value
        initialise(self, *arguments, **fields)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def former_field(algorithm: Any, name: str) -> Any:
    """The field that had this name.

    Raises:
        AttributeError: there is none.
    """
    if name not in FORMER:
        raise AttributeError(f"{type(algorithm).__name__!r} has no attribute {name!r}")
    _warn(name)
    return functools.reduce(getattr, FORMER[name].split("."), algorithm)


def _warn(name: str, how: str = "") -> None:
    warnings.warn(
        f"the field {name} of an Algorithm is now {FORMER[name]}{how}; the former name works for one release",
        FutureWarning,
        stacklevel=3,
    )
