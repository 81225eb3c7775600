"""Names to things: a registry is a dict from name to factory.

A factory's leading positional-only parameters are supplied by the program; every other parameter is the user's, and its
annotation `Annotated[T, Field(ge=0, description="...")]` is the schema: what it means, which values it takes, and how a
wrong one is refused.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from fedconcord.support.errors import UserError, closest, unknown
from fedconcord.support.grammar import Spec, Value, decimal, parse, plain, shown, spread, text

F = TypeVar("F", bound=Callable[..., Any])


def by_name(*factories: F) -> dict[str, F]:
    """A registry of factories by their own names, in this order."""
    return {factory.__name__: factory for factory in factories}


class Search(NamedTuple):
    """Where a real parameter is looked for when a method is tuned, stated beside its Field, both ends included:
    `Annotated[float, Field(gt=0), Search(0.001, 1)]` is searched in logarithms."""

    low: float  # the smallest value
    high: float  # the largest
    scale: Literal["log", "linear"] = "log"  # in which values are even

    def __str__(self) -> str:
        return f"{text(self.low)} to {text(self.high)}, {self.scale}"


def search_of(annotation: Any) -> Search | None:
    """The range that an annotation states, None where it states none."""
    return next((part for part in get_args(annotation)[1:] if type(part) is Search), None)


@dataclass(frozen=True)
class Option:
    """One parameter that a user may set."""

    name: str
    values: str  # 'number >= 0', 'one of warm, server', ...
    default: Value  # inspect.Parameter.empty where there is none
    meaning: str
    annotation: Any

    @property
    def required(self) -> bool:
        """Whether a value must be given."""
        return self.default is inspect.Parameter.empty

    def validate(self, value: Value, where: str) -> Value:
        """The value in its declared type, or one sentence that says what it must be."""
        adapter = _adapter(self.annotation)
        value = plain(value)
        if value == "none" and any(leaf.get("type") == "null" for leaf in alternatives(*(adapter.json_schema(),) * 2)):
            value = None
        try:
            # JSON mode: strict about numbers, texts and booleans, and a list still serves for a tuple.
            return adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError:
            schema = adapter.json_schema()
            value_shown = f"{shown(value)}{near(schema, value)}"
            raise UserError(f"{where}: {self.name} must be {must_be(schema)}, given {value_shown}") from None


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def expressible(annotation: Any) -> bool:
    """Whether values of a type can be written in settings."""
    try:
        _adapter(annotation).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return False
    return True


def options(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """The parameters of a factory that belong to the user, in order."""
    return _read_once(factory) if isinstance(factory, FunctionType) else _options(factory)


def _options(factory: Callable[..., Any]) -> tuple[Option, ...]:
    rows = []
    for parameter in inspect.signature(factory, eval_str=True).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            schema = _adapter(parameter.annotation).json_schema()
            meaning = schema.get("description", "")
            rows.append(Option(parameter.name, in_words(schema), parameter.default, meaning, parameter.annotation))
    return tuple(rows)


_read_once = functools.cache(_options)  # a schema takes milliseconds to make, and a search asks for thousands


def describe(factory: Callable[..., Any]) -> tuple[str, str]:
    """A factory's docstring as (meaning, details): its first line, then what follows, the paper, on one line."""
    first, _, rest = (inspect.getdoc(factory) or "").partition("\n")
    return first.strip(), " ".join(re.split(r"^(?:Args|Raises|Returns):", rest, flags=re.MULTILINE)[0].split())


@dataclass(frozen=True)
class Call:
    """A name found in a registry, with the parameters that were given, checked."""

    name: str
    factory: Callable[..., Any]
    given: Mapping[str, Value]

    def __str__(self) -> str:
        return str(Spec(self.name, (), self.given))

    def __call__(self, *leading: Any) -> Any:
        return self.factory(*leading, **self.given)

    def resolved(self) -> dict[str, Value]:
        """Every parameter with its value, defaults included."""
        return {o.name: self.given.get(o.name, o.default) for o in options(self.factory)}


def check(registry: Mapping[str, Callable[..., Any]], what: str, spec: Spec | str) -> Call:
    """Look a name up and check its parameters; raises UserError with one sentence.

    `what` names the registry in sentences: 'method', 'partition', ...
    """
    if isinstance(spec, str):
        spec = parse(spec, what)
    if spec.name not in registry:
        raise unknown(what, spec.name, registry)
    factory, where = registry[spec.name], f"{what} {spec.name}"
    options_by_name = {option.name: option for option in options(factory)}
    if len(spec.args) > len(options_by_name):
        takes = f"takes {_count(options_by_name)}" if options_by_name else "takes no parameters"
        raise UserError(f"{where} {takes}, given {len(spec.args)} values: {', '.join(map(text, spec.args))}")
    values = dict(zip(options_by_name, spec.args, strict=False))
    for key, value in spec.kwargs.items():
        if key not in options_by_name:
            has = f"it has {', '.join(options_by_name)}" if options_by_name else "it has none"
            raise UserError(f"{where} has no parameter {key!r}{closest(key, options_by_name)}; {has}")
        if key in values:
            raise UserError(f"{where}: {key} is given twice, as {text(values[key])} and as {text(value)}")
        values[key] = value
    for option in options_by_name.values():
        if option.required and option.name not in values:
            raise UserError(
                f"{where} needs {option.name}, {must_be(_adapter(option.annotation).json_schema())}: "
                f"write {spec.name}({option.name}=...)"
            )
    # In the factory's order, so that the same parameters always give the same text.
    return Call(
        spec.name, factory, {k: options_by_name[k].validate(values[k], where) for k in options_by_name if k in values}
    )


def build(registry: Mapping[str, Callable[..., Any]], what: str, spec: Spec | str, *leading: Any) -> Any:
    """The thing that a name stands for; `leading` are the factory's own first arguments."""
    return check(registry, what, spec)(*leading)


def _count(names: Iterable[str]) -> str:
    listed = list(names)
    return f"{len(listed)} parameter{'s' * (len(listed) > 1)} ({', '.join(listed)})"


# -- what a value must be, in words, from its JSON schema ---------------------------------------------------------


def must_be(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, for 'x must be ...'."""
    return _phrase(schema, schema)


def in_words(schema: Mapping[str, Any]) -> str:
    """`must_be` without the article."""
    return must_be(schema).removeprefix("a ").removeprefix("an ")


def near(schema: Mapping[str, Any], value: Value) -> str:
    """' (did you mean 'x'?)' where a schema has choices and the value is close to one, where it is a number with a
    decimal comma, or a list that a range stands in."""
    leaves = alternatives(schema, schema)
    if isinstance(value, list):
        return spread(value) if any(leaf.get("type") == "array" for leaf in leaves) else ""
    if not isinstance(value, str):
        return ""
    choices = [str(choice) for leaf in leaves for choice in leaf.get("enum", [leaf.get("const", "")])]
    numbers = any(leaf.get("type") == "number" for leaf in leaves)
    return (decimal(value) if numbers else "") or closest(value, choices)


def alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The branches of a union, references followed."""
    if "$ref" in schema:
        return alternatives(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "anyOf" in schema:
        return [leaf for branch in schema["anyOf"] for leaf in alternatives(branch, root)]
    return [schema]


def bounds(schema: Mapping[str, Any]) -> str:
    """'between 0 and 1', '> 0 and <= 1', '>= 0' or ''."""
    if "minimum" in schema and "maximum" in schema:
        return f"between {text(schema['minimum'])} and {text(schema['maximum'])}"
    marks = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return " and ".join(f"{mark} {text(schema[key])}" for key, mark in marks.items() if key in schema)


WORDS = {
    "number": ("a number", "numbers"),
    "integer": ("an integer", "integers"),
    "boolean": ("true or false", "true or false"),
    "string": ("text", "texts"),
    "null": ("none", "none"),
    "object": ("a table", "tables"),
}


def _phrase(schema: Mapping[str, Any], root: Mapping[str, Any], plural: bool = False) -> str:
    """'a number >= 0', 'one of fast, exact', 'an integer >= 1 or auto', 'a list of numbers'."""
    if "wanted" in schema:  # said by hand: Field(json_schema_extra={"wanted": "..."})
        return str(schema["wanted"])
    leaves = alternatives(schema, root)
    phrases: list[str] = []
    for leaf in leaves:
        choices = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
        if choices is not None:
            words = [text(choice) for choice in choices]
            phrases += words if len(leaves) > 1 or len(words) == 1 else [f"one of {', '.join(words)}"]
        elif leaf.get("type") == "array":
            phrases.append(f"{'lists' if plural else 'a list'} of {_items(leaf, root)}")
        else:
            phrases.append(f"{WORDS.get(leaf.get('type', ''), ('a value', 'values'))[plural]} {bounds(leaf)}".strip())
    return " or ".join([", ".join(phrases[:-1]), phrases[-1]] if len(phrases) > 1 else phrases)


def _items(leaf: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """What an array holds: 'numbers >= 0', 'one or more integers', '2 values'."""
    least, most = leaf.get("minItems", 0), leaf.get("maxItems")
    count = f"{least} " if least == most else "one or more " if least == 1 else ""
    kinds = leaf.get("prefixItems", [leaf.get("items") or {}])
    return count + ("values" if len(kinds) > 1 else _phrase(kinds[0], root, plural=True))
