"""What model.json says of a model: all that is needed to build it, feed it and name its outputs."""

from __future__ import annotations

from typing import Any

from fedconcord.problems.supervised import Supervised

FORMAT = 2


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
    }
