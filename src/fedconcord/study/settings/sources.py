"""Every key with its schema in words, and where keys are written: tables, files, options and `--set`.

Keys that nobody knows, and values that their keys may not have, are refused here.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedconcord.study.settings.settings import RIVALS, SECTIONS, Config
from fedconcord.support import factories, grammar
from fedconcord.support.errors import UserError, closest
from fedconcord.support.factories import Search
from fedconcord.support.objects import NamedObject


@functools.cache
def keys() -> dict[str, dict[str, Any]]:
    """Every key in dotted form with its JSON schema; `algorithm` stands for the method's own parameters."""
    schemas: dict[str, dict[str, Any]] = dict(Config.model_json_schema()["properties"])
    for section, model in SECTIONS.items():
        del schemas[section]
        schemas |= {f"{section}.{k}": v for k, v in model.model_json_schema()["properties"].items()}
    return {
        key: {**schema, "description": " ".join(schema.get("description", "").split())}  # read from source files
        for key, schema in schemas.items()
    }


def fields() -> dict[str, FieldInfo]:
    """The field of every key in dotted form."""
    tables = {f"{section}.{k}": field for section, model in SECTIONS.items() for k, field in model.model_fields.items()}
    return {key: field for key, field in Config.model_fields.items() if key not in SECTIONS} | tables


def noted(field: FieldInfo, what: str) -> Any:
    """What `settings.key` was told of a field beside its meaning; None where it was not."""
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
        text = f"{grammar.shown(value)}{factories.near(schema, value)}{place}"
        raise UserError(f"{full} must be {factories.must_be(schema)}, given {text}") from None


@dataclass(frozen=True)
class Source:
    """Settings from one place, by dotted key, and where each was written."""

    values: Mapping[str, Any]
    origin: Mapping[str, str]
    held: tuple[NamedObject, ...] = ()  # the objects among them, which stay known while this is kept


def from_nested(nested: Mapping[str, Any], origin: str) -> Source:
    """Settings as nested tables (dotted keys are understood as well), all from one place."""
    values = dict(_flat(nested, origin))
    return Source(values, dict.fromkeys(values, origin))


def from_file(path: Path) -> Source:
    """Settings from a TOML file, or a JSON file as a result folder holds it."""
    try:
        content = path.read_text(encoding="utf-8")
        nested = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except OSError as error:
        raise UserError(f"cannot read the settings {path}: {error.strerror}") from None
    except (ValueError, UnicodeDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UserError(f"{path} is not valid {kind}: {str(error).splitlines()[0]}") from None
    if not isinstance(nested, dict):
        raise UserError(f"{path} must hold a table of settings")
    return from_nested(nested, path.name)


def from_options(options: Mapping[str, tuple[str, Any]], settings: Sequence[str] = ()) -> Source:
    """Settings from named options, dotted key -> (option, value), and over them `--set key=value` texts.

    Options with value None were not given.
    """
    entries = {key: (name, value) for key, (name, value) in options.items() if value is not None}
    for setting in settings:
        key, mark, value = setting.partition("=")
        if not mark or not key.strip():
            raise UserError(f"--set needs key=value, given {setting!r}; write for example --set local.lr=0.05")
        entries[key.strip()] = ("--set", toml_value(value))
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, (name, value) in entries.items():
        flat = dict(_flat({key: value}, name))
        values |= flat
        origin |= dict.fromkeys(flat, name)
    return Source(values, origin)


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def toml_value(text: str) -> Any:
    """A value as TOML reads it; a bare word or a call is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return grammar.scalar(text.strip())


def prepare(key: str, value: Any) -> Any:
    """Lists may be written as 'a,b', a single value stands for a list of it, and none unsets what may be unset."""
    if _is_list(key):
        if isinstance(value, str):
            parts = grammar.split_list(value)
            return [grammar.scalar(part) for part in parts] if key == "seeds" else parts
        if isinstance(value, tuple | range):
            return list(value)
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if value == "none" and key in keys() and {"type": "null"} in keys()[key].get("anyOf", ()):
        return None
    return value


def seed_list(name: str, value: Any) -> list[int]:
    """Seeds, as a list or as text.

    Raises:
        UserError: it is no list of seeds, each once.
    """
    seeds = prepare("seeds", value)
    usable = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not usable or not seeds or len(set(seeds)) < len(seeds):
        meant = grammar.spread(seeds) if isinstance(seeds, list) else ""
        raise UserError(f"{name} must be a list of integers >= 0, each once, such as 0,1,2, given {value!r}{meant}")
    return list(seeds)


def merge(sources: Iterable[Source]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by dotted key, a later source over an earlier one, and where each was written.

    Raises:
        UserError: one source gives two keys that exclude each other.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source in sources:
        prepared = {key: prepare(key, value) for key, value in source.values.items()}
        for pair in RIVALS:
            set_here = [key for key in pair if prepared.get(key) is not None]
            if len(set_here) == 2:
                a, b = pair
                places = " and ".join(dict.fromkeys(source.origin[key] for key in pair))
                raise UserError(f"{a} and {b} exclude each other ({places}); give one of them")
            for rival in pair:
                if set_here and rival not in prepared:
                    values.pop(rival, None)
        values |= prepared
        origin |= source.origin
    if values.get("local.steps") is not None or values.get("local.seconds") is not None:
        values["local.epochs"] = None
    return values, origin


def shaped(values: Mapping[str, Any], origin: Mapping[str, str]) -> Config:
    """The values in their types and ranges; what the names among them stand for is not looked at.

    Raises:
        UserError: a value is none that its key may have.
    """
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, _, tail = key.partition(".")
        if tail:
            nested.setdefault(head, {})[tail] = value
        else:
            nested[key] = value
    config: Config = validated(Config, nested, "", origin)
    return config


def _is_list(key: str) -> bool:
    schema = keys().get(key, {})
    return any(leaf.get("type") == "array" for leaf in schema.get("anyOf", [schema]))


def _flat(nested: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        full = f"{prefix}{key}"
        if full == "algorithm" or full in SECTIONS:
            if not isinstance(value, Mapping):
                inside = "rho = 0.1" if full == "algorithm" else ", ".join(SECTIONS[full].model_fields)
                raise UserError(f"{full} is a table of keys ({inside}), given {grammar.shown(value)} ({origin})")
            yield from _flat(value, origin, f"{full}.")
        elif full in keys() or (full.startswith("algorithm.") and key):
            is_number = hasattr(value, "dtype") and getattr(value, "ndim", None) == 0  # of numpy or torch
            yield full, value.item() if is_number else value
        else:
            near = closest(full, [*keys(), *SECTIONS])
            raise UserError(f"unknown key {full!r} ({origin}){near}; `fedconcord list settings` shows all keys")
