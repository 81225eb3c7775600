"""Ranges that parameters of factories often have, and what is extra of a parameter beside its range.

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


def about(meaning: str, wanted: str | None = None, usual: object = None) -> FieldInfo:
    """What a parameter means, as every help text and list has it.

    Args:
        wanted: what its value must be, where the type does not say it.
        usual: what none comes to.
    """
    extra = {key: value for key, value in (("wanted", wanted), ("usual", usual)) if value is not None}
    field: FieldInfo = Field(description=meaning, json_schema_extra=extra or None)  # type: ignore[arg-type]
    return field
