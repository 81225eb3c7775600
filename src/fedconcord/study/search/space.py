"""What is looked for of a method, and the method's text with values put in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedconcord.method.algorithms import plugins
from fedconcord.method.wrappers.server import OPTIMIZERS
from fedconcord.study.settings.methods import canonical_text, local_for, read_method, with_lr
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import searched
from fedconcord.support import factories, grammar
from fedconcord.support.errors import UserError, closest, unknown
from fedconcord.support.factories import Search, search_of

Values = Mapping[str, float]
"""By key: a parameter of the method, `local.lr`, or `server.lr` of the server optimiser that it runs with."""

GRIDS: Mapping[str, Mapping[str, tuple[float, ...]]] = {  # the papers', by name
    "fedadmm": {  # Gong, Li, Freris, ICDE 2022, section V
        "local.lr": (0.01, 0.1, 0.2, 0.5),
        "fedprox.mu": (0.001, 0.01, 0.1, 1.0),
    },
    "fednova": {  # Wang et al., IEEE TSP 2021, Appendix B
        "local.lr": (0.005, 0.01, 0.02, 0.05, 0.08),
        "fedprox.mu": (0.0005, 0.001, 0.005, 0.01),
        "fednova.mu": (0.0005, 0.001, 0.005, 0.01),
    },
}


class Space(NamedTuple):
    """What is looked for of one method."""

    method: str  # canonical text, as it was asked for
    start: Values  # where trial 0 stands
    places: Mapping[str, Search]  # key -> range
    points: tuple[Values, ...] = ()  # of a grid, instead of ranges

    def trials(self, budget: int) -> int:
        """How many there are: one where nothing is looked for, all of a grid, else the budget."""
        if self.points:
            return len(self.points)
        return budget if self.places else 1


def text_of(config: Config, method: str, values: Values) -> str:
    """The canonical text of a method with these values; `config` is a comparison's."""
    call, overrides = read_method(method)
    of_method = {key: value for key, value in values.items() if "." not in key}
    local = {key: value for key, value in values.items() if key.startswith("local.")}
    server = {key.removeprefix("server."): value for key, value in values.items() if key.startswith("server.")}
    if server:
        part = _server(config, method)
        assert part is not None
        overrides = overrides | {"server": replace(part, kwargs={**part.kwargs, **server})}
    text = grammar.Spec(call.name, (), {**call.given, **of_method, **overrides, **local})
    return canonical_text(config, *read_method(str(text)))


class Parameter(NamedTuple):
    """A parameter of a method, of its local settings or of the server optimiser that it runs with."""

    value: object  # where the method stands
    stated: Search | None  # the range that it states
    is_free: bool  # the user has given it no value
    check: Callable[[Any, str], object]  # refuses a value, with the words for where it stands


def parameters(config: Config, method: str) -> dict[str, Parameter]:
    """All parameters of a method by key; `config` is a comparison's."""
    call, overrides = read_method(method)
    by_key = {}
    for name, value in with_lr(local_for(config.local, call.name, overrides), call):
        key = f"local.{name}"
        check = lambda one, where, key=key: local_for(config.local, call.name, {key: one})  # noqa: E731
        by_key[key] = Parameter(value, searched().get(key), key not in overrides, check)
    server = _server(config, method)
    owners = [("", call.factory, call.given)]
    owners += [] if server is None else [("server.", OPTIMIZERS[server.name], server.kwargs)]
    for prefix, factory, values in owners:
        for option in factories.options(factory):
            is_free, stated = option.name not in values, search_of(option.annotation)
            by_key[prefix + option.name] = Parameter(option.default, stated, is_free, option.validate)
    return by_key


def space_of(config: Config, method: str, more: Mapping[str, Search]) -> Space:
    """The free parameters of a method that state a range, and those that `more` names; with the local step size.

    A range grows to where the job stands.
    """
    every = parameters(config, method)
    local = [key for key in dict.fromkeys([*searched(), *more]) if key.startswith("local.")]
    start: dict[str, float] = {}
    places: dict[str, Search] = {}
    for key in (*local, *(key for key in every if not key.startswith("local."))):
        value, place = every[key].value, more.get(key, every[key].stated)
        if place is None or not every[key].is_free or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if place.scale == "log" and value <= 0:
            continue  # a method that stands at 0 has a part of it switched off
        start[key] = float(value)
        places[key] = place._replace(low=min(place.low, value), high=max(place.high, value))
    return Space(method, start, places)


def _server(config: Config, method: str) -> grammar.Spec | None:
    """The server optimiser that a method runs with, parameters by name."""
    _, overrides = read_method(method)
    text = overrides.get("server", config.server)
    return grammar.parse(str(text)) if text is not None else None


# -- what the user says of it --------------------------------------------------------------------------------------


def read_search(text: str, config: Config) -> tuple[str, Search]:
    """`mu=log(0.001,1)` or `server_momentum=linear(0,0.9)`, for the methods of a comparison that have it.

    Raises:
        UserError: it cannot be read, no method has such a parameter, or an end of the range is no value of it.
    """
    key, mark, value = (part.strip() for part in text.partition("="))
    if not mark:
        raise UserError(f"--search needs key=log(low,high) or key=linear(low,high), given {text!r}")
    spec = grammar.parse(value, "range")
    ends = spec.args
    if spec.name not in ("log", "linear") or spec.kwargs or len(ends) != 2 or not all(map(_real, ends)):
        raise UserError(f"--search {key} must be log(low,high) or linear(low,high), given {value!r}")
    low, high = map(float, ends)
    if not low < high or (spec.name == "log" and low <= 0):
        least = "0 < low < high" if spec.name == "log" else "low < high"
        raise UserError(f"--search {key} needs {least}, given {value}")
    for end in (low, high):
        _allowed(config, key, end)
    return key, Search(low, high, "log" if spec.name == "log" else "linear")


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _allowed(config: Config, key: str, value: float) -> None:
    """Refuse what no method of the comparison takes as this parameter."""
    names, methods = list(searched()), config.methods or []
    if key.startswith("local."):
        local_for(config.local, read_method(methods[0])[0].name, {key: value})
        return
    for method in methods:
        there = parameters(config, method)
        if key in there:
            there[key].check(value, f"--search for method {read_method(method)[0].name}")
            return
        names += (name for name in there if not name.startswith("local."))
    raise UserError(
        f"--search names {key!r}, which no method of the comparison has{closest(key, names)}; "
        f"known: {', '.join(dict.fromkeys(names))}"
    )


def read_grid(text: str) -> Mapping[str, Sequence[float]]:
    """A paper's grid by name, or one's own: `points(local.lr=[0.01,0.1],mu=[0.001,1])`.

    A key is a method's parameter, of one method alone with its name before it (`fedprox.mu`), or of local settings.

    Raises:
        UserError: there is no such grid, or it lists no numbers.
    """
    spec = grammar.parse(text, "grid")
    if spec.name != "points":
        if spec.name not in GRIDS or spec.args or spec.kwargs:
            raise unknown("grid", text, [*GRIDS, "points(key=[values])"])
        return GRIDS[spec.name]
    for key, values in spec.kwargs.items():
        if not isinstance(values, list) or not values or not all(map(_real, values)):
            raise UserError(f"--grid points: {key} must be a list of numbers such as [0.01,0.1], given {values}")
    if spec.args or not spec.kwargs:
        raise UserError("--grid points needs keys with lists, as in points(local.lr=[0.01,0.1])")
    return {key: [float(value) for value in values] for key, values in spec.kwargs.items()}


def grid_space(config: Config, method: str, grid: Mapping[str, Sequence[float]]) -> Space:
    """A method with the points of a grid: where the job stands, then all others in the grid's order."""
    name, every = read_method(method)[0].name, parameters(config, method)
    start: dict[str, float] = {}
    values: dict[str, Sequence[float]] = {}
    for entry, listed in grid.items():
        owner, _, bare = entry.rpartition(".")
        key = entry if owner == "local" else bare
        if owner not in ("local", "", name) or key not in every or not every[key].is_free:
            continue
        value = every[key].value
        if value is None:
            continue  # the method finds its own step sizes
        if not isinstance(value, int | float):
            raise UserError(f"--grid lists {key}, and its start is the rule {value}; give {key} a number")
        for one in listed:
            every[key].check(one, f"--grid for method {name}")
        start[key], values[key] = float(value), listed
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    places: dict[str, Search] = {}
    for key, listed in values.items():
        low, high = min(*listed, start[key]), max(*listed, start[key])
        places[key] = Search(low, high, "log" if low > 0 else "linear")
    return Space(method, start, places, (start, *(point for point in points if point != start)))


def refuse_grid(grid: Mapping[str, Sequence[float]], config: Config) -> None:
    """Refuse keys that no method of the comparison has; a paper's grid may have methods that are not compared."""
    methods = plugins.available()
    for key in grid:
        owner, _, name = key.rpartition(".")
        if owner == "local":
            continue
        of = [owner] if owner else [read_method(method)[0].name for method in config.methods or []]
        every = {option.name for each in of if each in methods for option in factories.options(methods[each])}
        if name not in every:
            raise UserError(f"--grid names {key!r}, which no method of the comparison has{closest(name, every)}")
