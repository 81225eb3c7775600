"""CNN 2 of FedADMM (ICDE 2022), for CIFAR-10."""

from __future__ import annotations

from torch import nn

from fedconcord.models.image import FormOption, two_convolutions


def cnn2(shape: tuple[int, ...], classes: int, /, form: FormOption = "paper") -> nn.Sequential:
    """Two 5x5 convolutions and a layer of 256, for 32x32 colour images (FedADMM); 1,105,098 parameters on CIFAR-10.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    return two_convolutions("cnn2", shape, 256, classes, form)
