"""What an explanation is: a known variant or mistake, as a pure change of our reference.

A change takes a `Setting` and gives another one, or None where it has no meaning for the method. Errors that tests
plant in our own code stand here the other way round: where a target's trajectory is that of a changed reference, the
change is its explanation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from fedconcord.method.contract import Algorithm
from fedconcord_referee.reference import Setting

Change = Callable[[Setting], Setting | None]


class Known(NamedTuple):
    """One explanation."""

    name: str  # short, for badges and JSON
    kind: Literal["method", "variant", "mistake"]
    says: str  # what follows "it", without a full stop
    change: Change


def mistake(name: str, says: str, change: Change) -> Known:
    """What is neither the method nor a choice that it has."""
    return Known(name, "mistake", says, change)


def shaped(change: Callable[[Algorithm, Setting], Algorithm]) -> Change:
    """A change of the method alone."""
    return lambda setting: setting._replace(algorithm=change(setting.algorithm, setting))
