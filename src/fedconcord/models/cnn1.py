"""CNN 1 of FedADMM (ICDE 2022), for MNIST and FMNIST."""

from __future__ import annotations

from torch import nn

from fedconcord.models.image import FormOption, two_convolutions


def cnn1(shape: tuple[int, ...], classes: int, /, form: FormOption = "paper") -> nn.Sequential:
    """Two 5x5 convolutions and a layer of 512, for 28x28 grey images (FedADMM); 1,663,370 parameters on MNIST.

    Other image sizes change the inputs of the first linear layer.

    Raises:
        UserError: samples are not images of at least 4x4.
    """
    return two_convolutions("cnn1", shape, 512, classes, form)
