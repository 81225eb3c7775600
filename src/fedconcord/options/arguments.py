"""Options as arguments of Python functions: what `help` and `inspect` say of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any, TypeVar, get_type_hints

from fedconcord.options.table import OPTIONS

Function = TypeVar("Function", bound=Callable[..., Any])


def listed(takes: type, without: Container[str] = ()) -> Callable[[Function], Function]:
    """Show each option of a function with `**options: Unpack[takes]` in its signature and docstring, before Raises.

    Args:
        without: options that the function does not have.
    """

    def dress(function: Function) -> Function:
        signature = inspect.signature(function)
        types = {name: kind for name, kind in get_type_hints(takes).items() if name not in without}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        first, others = [p for p in parameters if p.kind is not keyword], [p for p in parameters if p.kind is keyword]
        keywords = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in types.items()]
        function.__signature__ = signature.replace(parameters=[*first, *keywords, *others])  # type: ignore[attr-defined]
        names = {*types, *(p.name for p in first)}
        lines = "".join(f"    {o.name}: {o.about}\n" for o in OPTIONS if o.name in names)
        head, mark, tail = inspect.cleandoc(function.__doc__ or "").partition("Raises:")
        function.__doc__ = f"{head}Options:\n{lines}\n{mark}{tail}\n"
        return function

    return dress
