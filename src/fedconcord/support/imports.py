"""Things of the user's by import path, `package.module:name`: a method, a model, a data set, a partition, a loss or a
metric of your own.

An import runs code, so a path is followed only if the user named it in this process, or vouched for the folder that
names it (`trust`). A folder of results may be a stranger's, and its checksums say nothing of who wrote it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from fedconcord.support import objects
from fedconcord.support.errors import UserError, closest, foreign, in_words

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
T = TypeVar("T")
_NAMED: set[str] = set()  # the paths that may be followed


def is_path(text: str) -> bool:
    """Whether a name is an import path."""
    return PATH.fullmatch(text) is not None


def trust(*texts: object) -> None:
    """Follow the import paths in these texts, lists and tables from now on: the user wrote or vouches for them."""
    for text in texts:
        if isinstance(text, str):
            _NAMED.update(match.group() for match in PATH.finditer(text))
        elif isinstance(text, Mapping):
            trust(*text.values())
        elif isinstance(text, list | tuple):
            trust(*text)


def trusted() -> list[str]:
    """The import paths that may be followed, for processes that work for this one."""
    return sorted(_NAMED)


def files() -> set[str]:
    """The files of the modules that were imported by these paths."""
    modules = [sys.modules.get(path.partition(":")[0]) for path in _NAMED]
    return {str(module.__file__) for module in modules if module is not None}


def check(text: str, what: str) -> None:
    """Refuse import paths that nobody here named.

    Raises:
        UserError: the text has one.
    """
    for match in PATH.finditer(text):
        if match.group() not in _NAMED and not objects.is_object(match.group()):
            raise UserError(
                f"the {what} {match.group()} is named by files that were read and not by you, and importing it runs "
                "code; if you trust who made them, name it again as when they were begun, or give --trust (trust=True "
                "in Python)"
            )


def load(path: str, what: str) -> Callable[..., Any]:
    """What `package.module:name` stands for, or an object given from Python by its text (`support.objects`).

    Modules of the current directory are found, after installed ones.

    Raises:
        UserError: nobody named it here, or it cannot be imported, is not there or cannot be called.
    """
    if not is_path(path):
        raise UserError(f"the {what} {path!r} is no import path; write it as package.module:name")
    if objects.is_object(path):
        return objects.held(path, what).thing  # type: ignore[no-any-return]
    check(path, what)
    if os.getcwd() not in sys.path:  # last: a file here must not stand in for an installed module
        sys.path.append(os.getcwd())
    module, _, names = path.partition(":")
    try:
        thing: Any = importlib.import_module(module)
    except Exception as error:  # whatever somebody else's module raises when imported
        raise UserError(
            f"cannot import the {what} {path}: {in_words(error)}; modules are looked for in the installed packages, "
            "PYTHONPATH and the current directory"
        ) from error
    for name in names.split("."):
        if not hasattr(thing, name):
            raise UserError(f"{what} {path}: {module} has no {name!r}{closest(name, vars(thing))}")
        thing = getattr(thing, name)
    if not callable(thing):
        raise UserError(f"{what} {path} is {type(thing).__name__}, not a function")
    return thing  # type: ignore[no-any-return]


def package_of(entry: EntryPoint) -> str:
    """The package that an entry point is of."""
    return entry.dist.name if entry.dist is not None else "(unknown)"


def from_entry_point(entry: EntryPoint, what: str = "") -> Any:
    """What an entry point names; `what` stands before its name in the sentence.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever somebody else's module raises when imported
        raise UserError(
            f"cannot load {what}{entry.name!r} of package {package_of(entry)} (entry point {entry.value}): "
            f"{in_words(error)}; repair or uninstall that package"
        ) from error


def with_options(function: Callable[..., Any], path: str, what: str, leading: tuple[str, ...]) -> Callable[..., Any]:
    """The function with a signature as our factories have it: what the program gives is positional-only, the rest are
    the user's options, of any type where they have no annotation. What no setting can say keeps its default.

    Raises:
        UserError: it does not take as many leading values, or needs one that no setting can say.
    """
    from fedconcord.support import factories  # pydantic, which `--help` needs not

    try:
        signature = inspect.signature(function, eval_str=True)
        signature.bind_partial(*leading)
    except (TypeError, ValueError, NameError) as error:
        raise UserError(
            f"{what} {path} cannot be called with ({', '.join(leading)}): {error}; these come first, its options then"
        ) from error
    supplied, parameters = 0, []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and supplied < len(leading):
            supplied += 1
            continue
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
            if not factories.expressible(annotation):
                if parameter.default is parameter.empty:
                    raise UserError(
                        f"{what} {path} needs {parameter.name}, of a type that settings cannot say; give it a default"
                    )
                continue
            parameters.append(parameter.replace(annotation=annotation))
    described = functools.partial(function)
    described.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return described


def maker(
    function: Callable[..., Any], path: str, what: str, kind: type[T], leading: tuple[str, ...] = ()
) -> Callable[..., T]:
    """`with_options`, of a factory whose product is checked to be of a kind of ours."""
    called = with_options(function, path, what, leading)

    def make(*values: Any, **options: Any) -> T:
        with foreign(f"{what} {path} failed when it was made"):
            product = called(*values, **options)
        if not isinstance(product, kind):
            raise UserError(f"{what} {path} returned {type(product).__name__}; return a fedconcord.{kind.__name__}")
        return product

    make.__signature__, make.__doc__ = inspect.signature(called), function.__doc__  # type: ignore[attr-defined]
    return make


class Open(Mapping[str, T]):
    """A registry whose names may be import paths as well; `read` makes an entry of what such a path stands for."""

    def __init__(self, registry: Mapping[str, T], what: str, read: Callable[[Callable[..., Any], str], T]) -> None:
        self._registry, self._what, self._read = registry, what, read

    def __getitem__(self, name: str) -> T:
        if name in self._registry or not is_path(name):
            return self._registry[name]
        return self._read(load(name, self._what), name)

    def __contains__(self, name: object) -> bool:
        return name in self._registry or (isinstance(name, str) and is_path(name))  # without loading

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)


def open_factories(
    registry: Mapping[str, Callable[..., Any]], what: str, leading: tuple[str, ...]
) -> Open[Callable[..., Any]]:
    """A registry of factories that takes import paths: their factories are called as its own."""
    return Open(registry, what, lambda function, path: with_options(function, path, what, leading))


def path_of(thing: Any) -> str | None:
    """The import path of a function or class, if it is one that other processes find; the inverse of `load`."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    path = f"{module}:{name}"
    if module in (None, "__main__") or not is_path(path):
        return None
    thing_there: Any = sys.modules.get(str(module))
    for part in name.split("."):
        thing_there = getattr(thing_there, part, None)
    return path if thing_there is thing else None
