"""Writes `fedconcord.study.options.table` from the schema: `python docs/generate/option_table.py` after a change."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

import fedconcord
from fedconcord.study.options import Option
from fedconcord.study.settings.sources import default_text, fields, keys, noted, values_text
from fedconcord.support import files

TABLE = Path(fedconcord.__file__).parent / "study" / "options" / "table.py"
PLACES = ("DATA", "DIR", "PATH")  # metavars of what may be a Path
# options that take objects of Python beside names
OBJECTS = ("data", "partition", "model", "sampling", "lr_schedule", "loss", "metrics")
FIRST = ("method", "methods")  # which the functions take by position
ALONE = {"RunOptions": ("seed",), "CompareOptions": ("baselines", "seeds")}  # which only one of them takes
HEAD = '''\
"""The options of the command and the arguments of `run` and `compare`: written, do not edit.

The schema is `settings.settings`; `python docs/generate/option_table.py` writes this from it.
"""

# ruff: noqa: E501
# fmt: off

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from fedconcord.study.options import Option, stated

'''


def options() -> list[tuple[Option, str]]:
    """Every option of the schema with its type in Python, in the order of the table."""
    rows = [_option(key, field) for key, field in fields().items() if noted(field, "stage") is not None]
    order = [*FIRST, "", *(name for names in ALONE.values() for name in names)]  # "" is what both functions share
    return sorted(rows, key=lambda row: order.index(row[0].name if row[0].name in order else ""))


def _option(key: str, field: FieldInfo) -> tuple[Option, str]:
    types = [name for name in dict.fromkeys(_types(field.annotation)) if name != "None"]
    several = any(name.startswith("Sequence") for name in types)
    kinds = {"int": "N", "float": "NUMBER"}
    usual = "LIST" if several else next((kinds[name] for name in types if name in kinds), "NAME")
    metavar = noted(field, "metavar") or usual
    literal = several or not {"int", "float", "bool"} & {*types}
    schema = keys()[key]
    values = values_text(schema)
    option = Option(
        noted(field, "name") or key.rpartition(".")[2],
        key,
        noted(field, "stage"),
        metavar,
        literal,
        "" if values == "text" else values,
        default_text(schema) or "none",
        schema["description"],
    )
    others = ["Path"] * (metavar in PLACES) + ["object"] * (key in OBJECTS)
    return option, " | ".join([*types, *others, "None"])


def _types(annotation: Any) -> list[str]:
    """The members of a type as Python writes them; a list may be any sequence, or one value alone."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types(args[0])
    if origin in (Union, UnionType):
        return [name for member in args for name in _types(member)]
    if origin is Literal:
        return [f"Literal[{', '.join(map(json.dumps, args))}]"]
    if origin is list:
        item = " | ".join(_types(args[0]))
        return [item, f"Sequence[{item}]"]
    return ["None" if annotation is NoneType else annotation.__name__]


def source() -> str:
    """The text of the table."""
    every = options()
    only = {name: [row for row in every if row[0].name in names] for name, names in ALONE.items()}
    shared = [row for row in every if row[0].name not in FIRST and all(row not in rows for rows in only.values())]
    first = "".join(f"    {_written(option)},\n" for option, _ in every if option.name in FIRST)
    tables = [
        _typed("Shared(TypedDict, total=False)", "Arguments of both functions; one that is None is not given.", shared),
        _typed("RunOptions(Shared, total=False)", "Arguments of `run`.", only["RunOptions"]),
        _typed("CompareOptions(Shared, total=False)", "Arguments of `compare`.", only["CompareOptions"]),
    ]
    named = "    *dict.fromkeys((*stated(RunOptions), *stated(CompareOptions))),\n"
    return f"{HEAD}{''.join(tables)}OPTIONS = (\n{first}{named})\n"


def _written(option: Option) -> str:
    values = (str(value) if isinstance(value, bool) else json.dumps(value, ensure_ascii=False) for value in option)
    return f"Option({', '.join(values)})"


def _typed(name: str, meaning: str, rows: list[tuple[Option, str]]) -> str:
    fields = "".join(f"    {option.name}: Annotated[{kind}, {_written(option)}]\n" for option, kind in rows)
    return f'\nclass {name}:\n    """{meaning}"""\n\n{fields}\n'


def main() -> None:
    """Write the table."""
    files.write_text(TABLE, source())


if __name__ == "__main__":
    main()
