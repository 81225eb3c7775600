"""Methods of others: entry points of the group `fedconcord.methods`, name = "module:factory", and import paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points

from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Algorithm
from fedconcord.support import imports
from fedconcord.support.errors import UserError

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
                f"package {imports.package_of(entry)} registers a method under the name {entry.name!r}, which is no "
                f"identifier; its author should rename the entry point in {GROUP}"
            )
        if entry.name in OURS or entry.name in found:
            other = "fedconcord itself" if entry.name in OURS else f"package {imports.package_of(found[entry.name])}"
            raise UserError(
                f"package {imports.package_of(entry)} registers a method {entry.name!r}, a name that {other} has "
                f"already; uninstall one of them, or its author should rename the entry point in {GROUP}"
            )
        found[entry.name] = entry
    return imports.Open(Methods(found), "method", partial(imports.maker, what="method", kind=Algorithm))


def _load(entry: EntryPoint) -> Callable[..., Algorithm]:
    factory: Callable[..., Algorithm] = imports.from_entry_point(entry, "the method ")
    if not callable(factory):
        raise UserError(
            f"the method {entry.name!r} of package {imports.package_of(entry)} (entry point {entry.value}) is "
            f"{type(factory).__name__}, not a function that makes an Algorithm; repair or uninstall that package"
        )
    return factory
