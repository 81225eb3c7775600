"""The LeNet of FedDyn, FedVRA and A-FedPD, for CIFAR."""

from __future__ import annotations

from torch import nn

from fedconcord.models.image import image_shape


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
