"""The VGG-11 of FedNova (IEEE TSP 2021), for CIFAR-10: no normalisation layers."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn

from fedconcord.models.convolutional import image_shape

LAYERS = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


def vgg11(
    shape: tuple[int, ...],
    classes: int,
    /,
    hidden: Annotated[
        int, Field(ge=0, description="layers of 512 units before the last; FedNova's released code has 2")
    ] = 0,
) -> nn.Sequential:
    """VGG-11 without normalisation (FedNova); 9,225,610 parameters on CIFAR-10, 9,750,922 with hidden=2.

    Simonyan and Zisserman, ICLR 2015, configuration A, with a classifier for 32x32 images. FedNova's released code has
    hidden=2 and dropout before each of these layers, which is left out here. Convolutions start as there, N(0, 2 / (9 x
    output channels)) with zero bias: with torch's default the signal dies before the last layer.

    Raises:
        UserError: samples are not images of at least 32x32.
    """
    channels, height, width = image_shape("vgg11", shape, smallest=32)
    layers: list[nn.Module] = []
    for layer in LAYERS:
        if isinstance(layer, str):
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(channels, layer, 3, padding=1)
        nn.init.normal_(convolution.weight, 0.0, math.sqrt(2.0 / (9 * layer)))
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # a convolution with bias has one
        layers += [convolution, nn.ReLU()]
        channels = layer
    layers.append(nn.Flatten())
    inputs = channels * (height // 32) * (width // 32)
    for _ in range(hidden):
        layers += [nn.Linear(inputs, 512), nn.ReLU()]
        inputs = 512
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
