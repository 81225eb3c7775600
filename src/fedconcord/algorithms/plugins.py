"""Methods of others: entry points of the group `fedconcord.methods`, name = "module:factory", and import paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points

from fedconcord.algorithms import METHODS
from fedconcord.algorithms.alone import BASELINES
from fedconcord.basis.errors import UserError
from fedconcord.basis.imports import Open, maker
from fedconcord.core import Algorithm

OURS = {**METHODS, **BASELINES}
GROUP = "fedconcord.methods"


class Methods(Mapping[str, Callable[..., Algorithm]]):
    """Own methods and those of other packages, by name.

    A plug-in is imported when its factory is first asked for, so a broken one harms only those who use it.
    """

    def __init__(self, found: Mapping[str, EntryPoint]) -> None:
        self._found = found
        self._loaded = dict(METHODS)

    def __getitem__(self, name: str) -> Callable[..., Algorithm]:
        if name not in self._loaded:
            self._loaded[name] = _load(self._found[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in METHODS or name in self._found  # without loading

    def __iter__(self) -> Iterator[str]:
        yield from METHODS
        yield from self._found

    def __len__(self) -> int:
        return len(METHODS) + len(self._found)


@cache
def available() -> Mapping[str, Callable[..., Algorithm]]:
    """Every method that this installation has, found once a process, and factories by import path.

    Raises:
        UserError: a plug-in takes a name that is ours or another plug-in's, or one that cannot be written in a setting.
            Asking for a plug-in that cannot be loaded raises UserError too.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if not entry.name.isidentifier():
            raise UserError(
                f"package {_package(entry)} registers a method under the name {entry.name!r}, which is no identifier; "
                f"its author should rename the entry point in {GROUP}"
            )
        if entry.name in OURS or entry.name in found:
            other = "fedconcord itself" if entry.name in OURS else f"package {_package(found[entry.name])}"
            raise UserError(
                f"package {_package(entry)} registers a method {entry.name!r}, a name that {other} has already; "
                f"uninstall one of them, or its author should rename the entry point in {GROUP}"
            )
        found[entry.name] = entry
    return Open(Methods(found), "method", partial(maker, what="method", kind=Algorithm))


def _load(entry: EntryPoint) -> Callable[..., Algorithm]:
    where = f"method {entry.name!r} of package {_package(entry)} (entry point {entry.value})"
    try:
        factory: Callable[..., Algorithm] = entry.load()
    except Exception as error:  # whatever somebody else's module raises when imported
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"cannot load the {where}: {why}; repair or uninstall that package") from error
    if not callable(factory):
        raise UserError(
            f"the {where} is {type(factory).__name__}, not a function that makes an Algorithm; repair or uninstall "
            "that package"
        )
    return factory


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "(unknown)"
