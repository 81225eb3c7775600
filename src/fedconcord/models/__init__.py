"""Models by name. To add one: write `name(shape, classes, /, options) -> nn.Module` and list it here.

Layers keep torch's default initialisation unless their file says otherwise: whoever builds the model seeds torch. Plain
`nn.Sequential`s of Flatten, Linear, Conv2d, MaxPool2d and ReLU run stacked over clients by hand-written kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from fedconcord.basis.imports import open_factories
from fedconcord.models.charlm import charlm
from fedconcord.models.convolutional import cnn1, cnn2, lenet
from fedconcord.models.dense import logreg, two_nn
from fedconcord.models.resnet18 import resnet18
from fedconcord.models.vgg11 import vgg11

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logreg": logreg,
    "2nn": two_nn,
    "cnn1": cnn1,
    "cnn2": cnn2,
    "lenet": lenet,
    "resnet18": resnet18,
    "vgg11": vgg11,
    "charlm": charlm,
}
"""Models by name; a factory takes the shape of a sample, the number of outputs, then its parameters."""


def models() -> Mapping[str, Callable[..., nn.Module]]:
    """`MODELS`, and factories of your own by import path, `package.module:factory`."""
    return open_factories(MODELS, "model", ("shape", "classes"))


__all__ = ["MODELS", "charlm", "cnn1", "cnn2", "lenet", "logreg", "models", "resnet18", "two_nn", "vgg11"]
