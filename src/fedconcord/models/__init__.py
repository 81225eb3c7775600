"""Models by name. To add one: write `name(shape, classes, /, options) -> nn.Module` and list it here.

Layers keep torch's default initialisation unless their file says otherwise: whoever builds the model seeds torch. Plain
`nn.Sequential`s of Flatten, Linear, Conv2d, MaxPool2d and ReLU run stacked over clients by hand-written kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from fedconcord.basis.factories import by_name
from fedconcord.basis.imports import open_factories
from fedconcord.models.convolutional import cnn1, cnn2, lenet, resnet18, vgg11
from fedconcord.models.dense import charlm, logreg, two_nn

MODELS: dict[str, Callable[..., nn.Module]] = {
    **by_name(logreg),
    "2nn": two_nn,
    **by_name(cnn1, cnn2, lenet, resnet18, vgg11, charlm),
}
"""Models by name; a factory takes the shape of a sample, the number of outputs, then its parameters."""


def models() -> Mapping[str, Callable[..., nn.Module]]:
    """`MODELS`, and factories of your own by import path, `package.module:factory`."""
    return open_factories(MODELS, "model", ("shape", "classes"))


__all__ = ["MODELS", "charlm", "cnn1", "cnn2", "lenet", "logreg", "models", "resnet18", "two_nn", "vgg11"]
