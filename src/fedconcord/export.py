"""model.json, the model that it describes, and that model as a program: `torch.export` or ONNX.

A program takes raw inputs, float32 [batch, *shape], as the data's files have them (pixels 0 to 255), and returns class
probabilities [batch, classes], the numbers of a regression, or the probability of each label. Arithmetic preprocessing
is inside it. What is not (the columns of a table) is in the JSON file beside it and done by `fedconcord predict`.
"""

from __future__ import annotations

from typing import Any, Literal

from fedconcord.problems import Supervised

FORMAT = 1
Kind = Literal["torch", "onnx"]


def card(problem: Supervised, model: str) -> dict[str, Any]:
    """What model.json says: all that is needed to build the model, feed it and name its outputs."""
    data = problem.data
    return {
        "format": FORMAT,
        "model": model,
        "shape": list(data.shape),
        "dtype": str(problem.dtype).removeprefix("torch."),
        "target": data.target,
        "outputs": data.classes,
        "output_names": data.output_names,
        "data": data.name,
        "preprocessing": data.preprocessing,
    }
