"""The schema by dotted key: what each key may be, in words, and values checked against it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedconcord.basis import factories, grammar
from fedconcord.basis.errors import UserError
from fedconcord.basis.factories import Search
from fedconcord.settings.sections import SECTIONS
from fedconcord.settings.settings import Config


@functools.cache
def keys() -> dict[str, dict[str, Any]]:
    """Every key in dotted form with its JSON schema; `algorithm` stands for the method's own parameters."""
    schemas: dict[str, dict[str, Any]] = dict(Config.model_json_schema()["properties"])
    for section, model in SECTIONS.items():
        del schemas[section]
        schemas |= {f"{section}.{k}": v for k, v in model.model_json_schema()["properties"].items()}
    return schemas


def fields() -> dict[str, FieldInfo]:
    """The field of every key in dotted form."""
    tables = {f"{section}.{k}": field for section, model in SECTIONS.items() for k, field in model.model_fields.items()}
    return {key: field for key, field in Config.model_fields.items() if key not in SECTIONS} | tables


def noted(field: FieldInfo, what: str) -> Any:
    """What `sections.key` was told of a field beside its meaning; None where it was not."""
    extra = field.json_schema_extra
    return extra.get(what) if isinstance(extra, dict) else None


@functools.cache
def searched() -> dict[str, Search]:
    """The keys that are looked for when methods are tuned, and where."""
    return {key: fact for key, field in fields().items() if (fact := noted(field, "search")) is not None}


def default_text(schema: Mapping[str, Any]) -> str:
    """The default of a key as people write it; empty if there is none. "usual" is what none comes to."""
    default = schema.get("usual", schema.get("default"))
    if isinstance(default, list):
        return ",".join(map(grammar.text, default))
    return "" if default in (None, {}) else default if isinstance(default, str) else grammar.text(default)


def values_text(schema: Mapping[str, Any]) -> str:
    """What a key must be, without the article."""
    return factories.in_words(schema).removesuffix(" or none")


def validated(model: type[BaseModel], values: Mapping[str, Any], prefix: str, origin: Mapping[str, str]) -> Any:
    """The values as a model; the first wrong one becomes a sentence."""
    try:
        # JSON mode is strict about numbers, texts and booleans alike
        return model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        loc = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
        full = prefix + loc[0] + (f".{loc[1]}" if loc[0] in SECTIONS and len(loc) > 1 else "")
        value: Any = values
        for part in full.removeprefix(prefix).split("."):
            value = value[part]
        place = f" ({origin[full]})" if full in origin else ""
        schema = keys()[full.split(": ")[-1]]
        given = f"{grammar.shown(value)}{factories.near(schema, value)}{place}"
        raise UserError(f"{full} must be {factories.must_be(schema)}, given {given}") from None
