"""What convolutional models share: the check of a sample's shape, and the layers of FedADMM's two networks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedconcord.basis.errors import UserError

Form = Literal["paper", "released"]
FormOption = Annotated[
    Form,
    Field(
        description="released, as FedADMM's code: no ReLU after the convolutions, and a softmax at the end, which the "
        "loss takes once more"
    ),
]


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The (channels, height, width) of a sample, each side at least `smallest` pixels.

    Raises:
        UserError: samples are not images, or too small for the model's convolutions and pools.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UserError(
            f"model {model!r} needs images (channels, height, width) of at least {smallest}x{smallest} pixels, "
            f"given samples of shape {shape}; use 'logreg' or '2nn', which take any shape"
        )
    return shape[0], shape[1], shape[2]


def two_convolutions(model: str, shape: tuple[int, ...], hidden: int, classes: int, form: Form) -> nn.Sequential:
    """FedADMM's CNN 1 and CNN 2 (ICDE 2022, Table II), which differ in the hidden layer alone.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    channels, height, width = image_shape(model, shape, smallest=4)

    def rectified() -> list[nn.Module]:
        return [nn.ReLU()] if form == "paper" else []

    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        *rectified(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        *rectified(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
        *([nn.Softmax(dim=1)] if form == "released" else []),
    )
