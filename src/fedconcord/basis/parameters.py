"""Ranges that parameters of factories often have, and what is said of a parameter beside its range.

`Annotated[Positive, about("server step size")]`: no infinity and no NaN is a number here, see `factories`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Chance = Annotated[float, Field(ge=0, le=1)]


def about(meaning: str) -> FieldInfo:
    """What a parameter means, as every help text and list has it."""
    field: FieldInfo = Field(description=meaning)
    return field
