"""Trackers: callbacks that write what runs measure for TensorBoard, MLflow, and Weights & Biases.

To add one: a file with a class that is a `Callback` and whose arguments are its options, and its line here. Each
imports its package when it is made, and says how to install it where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedconcord.basis import factories
from fedconcord.basis.imports import open_factories
from fedconcord.runs.events import Callback
from fedconcord.settings.sources import Source, prepare
from fedconcord.tracking.mlflow import MLflow
from fedconcord.tracking.tensorboard import TensorBoard
from fedconcord.tracking.wandb import WandB

TRACKERS: dict[str, Callable[..., Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def trackers(written: Sequence[str]) -> list[Callback]:
    """The trackers of these texts, as in `tensorboard` or `wandb(project=digits)`; or classes by import path.

    Raises:
        UserError: one is unknown, or its package is missing.
    """
    registry = open_factories(TRACKERS, "tracker", ())
    return [factories.build(registry, "tracker", text) for text in written]


def check(sources: Sequence[Source]) -> None:
    """Refuse trackers that cannot work, before anything is planned.

    Raises:
        UserError: as `trackers`.
    """
    for source in sources:
        written = prepare("track", source.values.get("track", []))
        if isinstance(written, list) and all(isinstance(text, str) for text in written):  # else `resolve` refuses it
            trackers(written)


__all__ = ["TRACKERS", "MLflow", "TensorBoard", "WandB", "check", "trackers"]
