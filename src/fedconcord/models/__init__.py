"""Models by name. To add one: write `name(shape, classes, /, options) -> nn.Module` and list it here.

Layers keep torch's default initialisation: whoever builds the model seeds torch. Plain `nn.Sequential`s of Flatten,
Linear, Conv2d, MaxPool2d and ReLU run stacked over clients by hand-written kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedconcord.models.cnn1 import cnn1
from fedconcord.models.cnn2 import cnn2
from fedconcord.models.lenet import lenet
from fedconcord.models.logreg import logreg
from fedconcord.models.two_nn import two_nn

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logreg": logreg,
    "2nn": two_nn,
    "cnn1": cnn1,
    "cnn2": cnn2,
    "lenet": lenet,
}

__all__ = ["MODELS", "cnn1", "cnn2", "lenet", "logreg", "two_nn"]
