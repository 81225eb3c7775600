"""What a value must be, in words, from its JSON schema: 'a number > 0 and <= 1', 'one of fast, exact'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedconcord.basis.errors import UserError, closest
from fedconcord.basis.grammar import Value, decimal, spread, text


def count(name: str, given: object) -> int:
    """A number of things, at least one, which may be written as text.

    Raises:
        UserError: it is none.
    """
    found = int(given) if isinstance(given, str) and given.strip().isdecimal() else given
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise UserError(f"{name} must be an integer >= 1, given {given!r}")
    return found


def must_be(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, for 'x must be ...'."""
    return _phrase(schema, schema)


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
