"""Options as arguments of Python functions: what `help` and `inspect` say of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from fedconcord.options.table import OPTIONS

Function = TypeVar("Function", bound=Callable[..., Any])


def listed(takes: type) -> Callable[[Function], Function]:
    """Show each option of a function with `**options: Unpack[takes]` in its signature and docstring, before Raises."""

    def dress(function: Function) -> Function:
        given, types = inspect.signature(function), get_type_hints(takes)
        keyword = inspect.Parameter.KEYWORD_ONLY
        first, *others = [p for p in given.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in types.items()]
        function.__signature__ = given.replace(parameters=[first, *named, *others])  # type: ignore[attr-defined]
        lines = "".join(f"    {o.name}: {o.about}\n" for o in OPTIONS if o.name == first.name or o.name in types)
        head, mark, tail = inspect.cleandoc(function.__doc__ or "").partition("Raises:")
        function.__doc__ = f"{head}Options:\n{lines}\n{mark}{tail}\n"
        return function

    return dress
