"""Small convolutional models: CNN 1 and CNN 2 of FedADMM (ICDE 2022), and the LeNet of FedDyn, FedVRA and A-FedPD."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import about

Form = Literal["paper", "released"]
FormOption = Annotated[
    Form,
    about(
        "paper; or released, as in FedADMM's code, without ReLU after the convolutions and with a "
        "softmax at the end, which the loss applies again"
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


def cnn1(shape: tuple[int, ...], classes: int, /, form: FormOption = "paper") -> nn.Sequential:
    """Two 5x5 convolutions and a layer of 512, for 28x28 grey images (FedADMM); 1,663,370 parameters on MNIST.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    return _two_convolutions("cnn1", shape, 512, classes, form)


def cnn2(shape: tuple[int, ...], classes: int, /, form: FormOption = "paper") -> nn.Sequential:
    """Two 5x5 convolutions and a layer of 256, for 32x32 colour images (FedADMM); 1,105,098 parameters on CIFAR-10.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    return _two_convolutions("cnn2", shape, 256, classes, form)


def _two_convolutions(model: str, shape: tuple[int, ...], hidden: int, classes: int, form: Form) -> nn.Sequential:
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


def lenet(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Two 5x5 convolutions of 64 and layers of 384 and 192 (A-FedPD, FedDyn); 797,962 parameters on CIFAR-10.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 16x16.
    """
    channels, height, width = image_shape("lenet", shape, smallest=16)
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * _side(height) * _side(width), 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )


def _side(pixels: int) -> int:
    """Pixels left of a side after two 5-wide convolutions without padding, each followed by a halving pool."""
    return ((pixels - 4) // 2 - 4) // 2
