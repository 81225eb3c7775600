"""What model.json says of a model: all that is needed to build it, feed it and name its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count

FORMAT = 2


class Labels(BaseModel):
    """The columns of a table's labels."""

    model_config = ConfigDict(strict=True, extra="allow")
    columns: list[str] = []


class Preprocessing(BaseModel):
    """What is read of it by key; columns are checked where they are read (`data.preprocess`)."""

    model_config = ConfigDict(strict=True, extra="allow")
    kind: str | None = None
    missing: list[str] = []
    target: Labels | None = None
    size: list[int] | None = None


class Card(BaseModel):
    """What model.json must hold; a folder may be a stranger's."""

    model_config = ConfigDict(strict=True)
    model: str
    shape: Annotated[list[Count], Field(min_length=1)]
    inputs: Literal["numbers", "symbols"]
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    target: Target
    outputs: Count
    output_names: list[str] | None
    data: str
    preprocessing: Preprocessing | None
    unit: Annotated[list[list[float]], Field(min_length=2, max_length=2)] | None
    pad: int | None = None  # the token that fills samples up; not in folders of before


def check(content: Any, path: Path) -> dict[str, Any]:
    """The content of model.json, if it is what `card` writes.

    Raises:
        UserError: a value is missing or of another type.
    """
    try:
        Card.model_validate(content)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        value = "" if first["type"] == "missing" else f", given {str(first['input'])[:80]!r}"
        raise UserError(f"{path}: {where}: {first['msg'].lower()}{value}; restore it or run again") from None
    return dict(content)


def card(problem: Supervised, model: str) -> dict[str, Any]:
    """What model.json says: all that is needed to build the model, feed it and name its outputs."""
    data = problem.data
    return {
        "format": FORMAT,
        "model": model,
        "shape": list(data.shape),
        "inputs": "numbers" if problem.x.dtype.is_floating_point else "symbols",
        "dtype": str(problem.dtype).removeprefix("torch."),
        "target": data.target,
        "outputs": data.classes,
        "output_names": data.output_names,
        "data": data.name,
        "preprocessing": data.preprocessing,
        "unit": data.unit,
        "pad": problem.pad if problem.pad is not None else (data.preprocessing or {}).get("pad"),
    }
