"""Names of a package that are imported when they are first used, so that what needs no torch does not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: dict[str, Any], places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its globals, which keep what was imported.
        places: module -> the names that it has, apart by spaces; "name=other" is another name for one.
    """
    place = {
        name: (module, other or name)
        for module, names in places.items()
        for name, _, other in (entry.partition("=") for entry in names.split())
    }

    def get(name: str) -> Any:
        if name not in place:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module, other = place[name]
        package[name] = getattr(import_module(module), other)
        return package[name]

    return get
