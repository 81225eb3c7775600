"""Where settings are written: tables, files, options and `--set`; keys that nobody knows are refused here."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedconcord.basis import grammar
from fedconcord.basis.errors import UserError, closest
from fedconcord.basis.objects import NamedObject
from fedconcord.settings.schema import keys, validated
from fedconcord.settings.sections import SECTIONS
from fedconcord.settings.settings import RIVALS, Config


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
            yield full, value
        else:
            near = closest(full, [*keys(), *SECTIONS])
            raise UserError(f"unknown key {full!r} ({origin}){near}; `fedconcord list settings` shows all keys")
