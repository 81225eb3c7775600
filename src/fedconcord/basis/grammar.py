"""Things named in text: `dirichlet(0.1)`, `fedadmm(rho=0.3, start=warm)`, and the parameters that each name takes.

A registry is a dict from name to factory. A factory's leading positional-only parameters are supplied by the program;
every other parameter is the user's, and its annotation `Annotated[T, Field(ge=0, description="...")]` is the schema:
what it means, which values it takes, and how a wrong one is refused.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedconcord.basis.errors import UserError, closest, unknown

Value = Any
"""None, a bool, an int, a float, a str, a `Spec` (a call inside a call) or a list of these."""

NAME = re.compile(r"[A-Za-z0-9_][\w.:/+-]*")
KEY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
WORD = re.compile(r"[^\s,()\[\]=\"']+")
INTEGER = re.compile(r"[+-]?\d[\d_]*")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Spec:
    """A name with parameters; its text reads back as an equal Spec."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [text(value) for value in self.args] + [f"{key}={text(value)}" for key, value in self.kwargs.items()]
        return f"{self.name}({','.join(parts)})" if parts else self.name


def scalar(word: str) -> Value:
    """A bare word as a bool, an int, a float or else a string."""
    if word in ("true", "True"):
        return True
    if word in ("false", "False"):
        return False
    if INTEGER.fullmatch(word):
        return int(word)
    return float(word) if NUMBER.fullmatch(word) else word


def text(value: Value) -> str:
    """A value as it is written in a call."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list | tuple):
        return f"[{','.join(text(v) for v in value)}]"
    if isinstance(value, str) and not (WORD.fullmatch(value) and scalar(value) == value):
        return json.dumps(value, ensure_ascii=False)
    return "none" if value is None else str(value)


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, source: str, what: str) -> None:
        self.source, self.what, self.at = source, what, 0

    def fail(self, why: str) -> UserError:
        return UserError(
            f"cannot read the {self.what} {self.source!r}: {why}; write it as name, name(0.1) or name(alpha=0.1, n=2)"
        )

    def skip(self) -> None:
        while self.at < len(self.source) and self.source[self.at].isspace():
            self.at += 1

    def take(self, mark: str) -> bool:
        self.skip()
        found = self.source.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        found = pattern.match(self.source, self.at)
        if not found:
            return None
        self.at = found.end()
        return found.group()

    def here(self) -> str:
        """What stands at the place of a mistake."""
        self.skip()
        return f"{self.source[self.at]!r} at character {self.at + 1}" if self.at < len(self.source) else "the end"

    def call(self) -> Spec:
        name = self.match(NAME)
        if name is None:
            raise self.fail(f"a name is missing at {self.here()}")
        return self.arguments(name) if self.take("(") else Spec(name)

    def arguments(self, name: str) -> Spec:
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        while not self.take(")"):
            before = self.at
            key = self.match(KEY)
            if key is not None and self.take("="):
                if key in kwargs:
                    raise self.fail(f"{key} is given twice")
                kwargs[key] = self.value()
            else:
                self.at = before
                value = self.value()
                if kwargs:
                    raise self.fail(f"{text(value)} without a name comes after a named parameter")
                args.append(value)
            if not self.take(","):
                if not self.take(")"):
                    raise self.fail(f"',' or ')' is missing at {self.here()}")
                break
        return Spec(name, tuple(args), kwargs)

    def value(self) -> Value:
        if self.take("["):
            items: list[Value] = []
            while not self.take("]"):
                items.append(self.value())
                if not self.take(","):
                    if not self.take("]"):
                        raise self.fail(f"',' or ']' is missing at {self.here()}")
                    break
            return items
        self.skip()
        if self.source[self.at : self.at + 1] in ('"', "'"):
            return self.quoted()
        word = self.match(WORD)
        if word is None:
            raise self.fail(f"a value is missing at {self.here()}")
        return self.arguments(word) if NAME.fullmatch(word) and self.take("(") else scalar(word)

    def quoted(self) -> str:
        quote, characters = self.source[self.at], list[str]()
        self.at += 1
        while self.at < len(self.source):
            character = self.source[self.at]
            self.at += 1
            if character == quote:
                return "".join(characters)
            if character == "\\" and self.at < len(self.source):
                character = self.source[self.at]
                self.at += 1
            characters.append(character)
        raise self.fail(f"the quote {quote} is not closed")


def parse(source: str, what: str = "text") -> Spec:
    """Read `name` or `name(0.1, classes=2, message=paper, rho="x", xs=[0, 1])`; `what` names it in the error."""
    reader = _Reader(source, what)
    spec = reader.call()
    reader.skip()
    if reader.at < len(source):
        raise reader.fail(f"unexpected {reader.here()}")
    return spec


def split_list(source: str) -> list[str]:
    """'a,b(c=1,d=2),e' -> ['a', 'b(c=1,d=2)', 'e']: split at commas outside brackets and quotes."""
    parts, depth, quote, skip = [""], 0, "", False
    for character in source:
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth += (character in "([") - (character in ")]")
        parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


# -- what a value must be ------------------------------------------------------------------------------------------


def _range(schema: Mapping[str, Any]) -> str:
    """'between 0 and 1', '> 0 and <= 1', '>= 0' or ''."""
    if "minimum" in schema and "maximum" in schema:
        return f"between {text(schema['minimum'])} and {text(schema['maximum'])}"
    marks = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return " and ".join(f"{mark} {text(schema[key])}" for key, mark in marks.items() if key in schema)


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The branches of a union, references followed."""
    if "$ref" in schema:
        return _alternatives(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "anyOf" in schema:
        return [leaf for branch in schema["anyOf"] for leaf in _alternatives(branch, root)]
    return [schema]


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
    leaves = _alternatives(schema, root)
    phrases: list[str] = []
    for leaf in leaves:
        choices = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
        if choices is not None:
            words = [text(choice) for choice in choices]
            phrases += words if len(leaves) > 1 or len(words) == 1 else [f"one of {', '.join(words)}"]
        elif leaf.get("type") == "array":
            phrases.append(f"{'lists' if plural else 'a list'} of {_items(leaf, root)}")
        else:
            phrases.append(f"{WORDS.get(leaf.get('type', ''), ('a value', 'values'))[plural]} {_range(leaf)}".strip())
    return " or ".join([", ".join(phrases[:-1]), phrases[-1]] if len(phrases) > 1 else phrases)


def _items(leaf: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """What an array holds: 'numbers >= 0', 'one or more integers', '2 values'."""
    least, most = leaf.get("minItems", 0), leaf.get("maxItems")
    count = f"{least} " if least == most else "one or more " if least == 1 else ""
    kinds = leaf.get("prefixItems", [leaf.get("items") or {}])
    return count + ("values" if len(kinds) > 1 else _phrase(kinds[0], root, plural=True))


def must_be(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, for 'x must be ...'."""
    return _phrase(schema, schema)


def near_choice(schema: Mapping[str, Any], value: Value) -> str:
    """' (did you mean 'x'?)' where a schema has choices and the value is close to one."""
    if not isinstance(value, str):
        return ""
    leaves = _alternatives(schema, schema)
    return closest(value, [str(choice) for leaf in leaves for choice in leaf.get("enum", [leaf.get("const", "")])])


def shown(value: Value) -> str:
    """A given value as an error shows it: strings in quotes, so that '1' is not taken for 1."""
    return repr(value) if isinstance(value, str | float) else text(value)


def plain(value: Value) -> Value:
    """A value with calls turned back into text: what a schema sees."""
    if isinstance(value, Spec):
        return str(value)
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Option:
    """One parameter that a user may set."""

    name: str
    kind: str  # 'number', 'one of warm, server', ...
    default: Value  # inspect.Parameter.empty where there is none
    range: str  # '>= 0', '' where every value of the type will do
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
        if value == "none" and any(leaf.get("type") == "null" for leaf in _alternatives(*(adapter.json_schema(),) * 2)):
            value = None
        try:
            # JSON mode: strict about numbers, texts and booleans, and a list still serves for a tuple.
            return adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError:
            schema = adapter.json_schema()
            given = f"{shown(value)}{near_choice(schema, value)}"
            raise UserError(f"{where}: {self.name} must be {must_be(schema)}, given {given}") from None


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def options(factory: Callable[..., Any]) -> list[Option]:
    """The parameters of a factory that belong to the user, in order."""
    found = []
    for parameter in inspect.signature(factory, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        schema = _adapter(parameter.annotation).json_schema()
        leaves = _alternatives(schema, schema)
        ranges = [_range(leaf) for leaf in leaves if _range(leaf)]
        bare = {k: v for k, v in schema.items() if not k.lower().endswith(("minimum", "maximum"))}
        kind = must_be(bare if len(leaves) == 1 else schema).removeprefix("a ").removeprefix("an ")
        meaning = schema.get("description", "")
        found.append(
            Option(
                parameter.name,
                kind,
                parameter.default,
                ranges[0] if len(leaves) == 1 and ranges else "",
                meaning,
                parameter.annotation,
            )
        )
    return found


def describe(factory: Callable[..., Any]) -> tuple[str, str]:
    """A factory's docstring as (meaning, details): its first line, then what follows, the paper, on one line."""
    first, _, rest = (inspect.getdoc(factory) or "").partition("\n")
    return first.strip(), " ".join(re.split(r"^(?:Args|Raises|Returns):", rest, flags=re.MULTILINE)[0].split())


# -- names to things -----------------------------------------------------------------------------------------------


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
    known = {option.name: option for option in options(factory)}
    if len(spec.args) > len(known):
        takes = f"takes {_count(known)}" if known else "takes no parameters"
        raise UserError(f"{where} {takes}, given {len(spec.args)} values: {', '.join(map(text, spec.args))}")
    given = dict(zip(known, spec.args, strict=False))
    for key, value in spec.kwargs.items():
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{where} has no parameter {key!r}{closest(key, known)}; {has}")
        if key in given:
            raise UserError(f"{where}: {key} is given twice, as {text(given[key])} and as {text(value)}")
        given[key] = value
    for option in known.values():
        if option.required and option.name not in given:
            raise UserError(
                f"{where} needs {option.name}, {must_be(_adapter(option.annotation).json_schema())}: "
                f"write {spec.name}({option.name}=...)"
            )
    # In the factory's order, so that the same parameters always give the same text.
    return Call(spec.name, factory, {k: known[k].validate(given[k], where) for k in known if k in given})


def _count(names: Iterable[str]) -> str:
    listed = list(names)
    return f"{len(listed)} parameter{'s' * (len(listed) > 1)} ({', '.join(listed)})"


def build(registry: Mapping[str, Callable[..., Any]], what: str, spec: Spec | str, *leading: Any) -> Any:
    """The thing that a name stands for; `leading` are the factory's own first arguments."""
    return check(registry, what, spec)(*leading)


# -- texts for people ----------------------------------------------------------------------------------------------


def sentence(error: UserError | OSError) -> str:
    """An error as one line that names the file it is about."""
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {what}" if error.filename else what
    return " ".join(str(error).split())


def folder_name(label: str) -> str:
    """A label as a file name that no shell or browser stumbles over: fedprox(mu=0.1) -> fedprox-mu=0.1."""
    return re.sub(r"-+", "-", re.sub(r"[^\w.=+-]", "-", label)).strip("-.") or "run"


def free_folder(parent: Path, stem: str) -> Path:
    """The first of parent/stem-1, parent/stem-2, ... that does not exist."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"
