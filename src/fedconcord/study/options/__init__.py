"""Options: settings that are options of commands and arguments of functions, and what the table says of each.

The schema (`settings.settings`) states each once. `python docs/generate/option_table.py` writes `table` from it, which
is read without pydantic and torch, and where editors and type checkers find names, types, defaults and meanings.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

Stage = Literal["data", "job", "run"]
"""The first part of a job that needs an option: its clients' data, what is trained on them, or how a run goes on."""
STAGES: tuple[Stage, ...] = ("data", "job", "run")


class Option(NamedTuple):
    """An option as the table has it."""

    name: str  # of the argument; the command has --name
    key: str  # of the setting, dotted
    stage: Stage
    metavar: str
    literal: bool  # its value is text as it stands; that of others may be a number
    values: str  # what it must be; empty where any text will do
    default: str
    meaning: str

    @property
    def about(self) -> str:
        """Meaning, values and default on one line: 'Local step size (number > 0). [0.1]'."""
        values = f" ({self.values})" if self.values else ""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}{values}. [{self.default}]"


def stated(table: Any) -> list[Option]:
    """The options of the arguments in a table, those that it inherits first."""
    return [note for kind in table.__annotations__.values() for note in get_args(kind) if type(note) is Option]
