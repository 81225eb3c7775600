"""CNN 1 of FedADMM (ICDE 2022), for MNIST and FMNIST."""

from __future__ import annotations

from torch import nn

from fedconcord.models.image import image_shape


def cnn1(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Two 5x5 convolutions and a layer of 512, for 28x28 grey images (FedADMM); 1,663,370 parameters on MNIST.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    channels, height, width = image_shape("cnn1", shape, smallest=4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
