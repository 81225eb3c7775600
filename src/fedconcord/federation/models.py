"""Models by name. To add one: write `name(shape, classes, /, options) -> nn.Module` and list it in `MODELS`.

Layers keep torch's default initialisation unless a model says otherwise: whoever builds the model seeds torch. Plain
`nn.Sequential`s of Flatten, Linear, Conv2d, MaxPool2d and ReLU run stacked over clients by hand-written kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from fedconcord.federation.transformers import hf
from fedconcord.support.errors import UserError
from fedconcord.support.factories import by_name
from fedconcord.support.imports import open_factories
from fedconcord.support.parameters import Count, about

Embedding = Annotated[Count, about("size of the embedding of a symbol")]
Hidden = Annotated[Count, about("number of units of the hidden layer")]


def logreg(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer, any sample shape (convex)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def two_nn(shape: tuple[int, ...], classes: int, /) -> nn.Sequential:
    """Perceptron d-200-200-classes with ReLU, any sample shape (LoSAC); 199,210 parameters on MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def charlm(shape: tuple[int, ...], classes: int, /, embedding: Embedding = 16, hidden: Hidden = 128) -> nn.Sequential:
    """Next symbol from the embeddings of the last ones side by side, one tanh layer (Bengio et al., JMLR 2003).

    Samples are symbols [context], integers from 0 to classes - 1; 63,345 parameters on topics.

    Raises:
        UserError: samples are no row of symbols.
    """
    if len(shape) != 1:
        raise UserError(f"model 'charlm' needs samples that are a row of symbols, given samples of shape {shape}")
    return nn.Sequential(
        nn.Embedding(classes, embedding),
        nn.Flatten(),
        nn.Linear(shape[0] * embedding, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


# Convolutional: CNN 1 and CNN 2 of FedADMM (ICDE 2022), the LeNet of FedDyn, FedVRA and A-FedPD, the ResNet-18 of
# A-FedPD and FL-Simulator with GroupNorm in place of BatchNorm, and the VGG-11 of FedNova (IEEE TSP 2021) without
# normalisation.

Form = Literal["paper", "released"]
FormOption = Annotated[
    Form,
    about(
        "paper; or released, as in FedADMM's code, without ReLU after the convolutions and with a "
        "softmax at the end, which the loss applies again"
    ),
]
GROUPS = "number of groups of every GroupNorm; it must divide 64"
Groups = Annotated[int, Field(ge=1, le=64, description=GROUPS)]
HIDDEN = "layers of 512 units before the last; FedNova's released code has 2"


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
    """FedADMM's CNN 1 and CNN 2 (ICDE 2022, Table II), which differ in the hidden layer alone."""
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


WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al., CVPR 2016, Fig. 2), each followed by a norm."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def resnet18(shape: tuple[int, ...], classes: int, /, groups: Groups = 2) -> nn.Sequential:
    """ResNet-18 with a 3x3 stem, no first pool and GroupNorm (A-FedPD); 11,173,962 parameters on CIFAR-10.

    He et al., CVPR 2016, in the form for 32x32 images. FL-Simulator keeps torchvision's 7x7 stem with stride 2 and
    pool, 11,181,642 parameters: this one sees small images at their full size, at several times the cost.

    Raises:
        UserError: samples are not images of at least 8x8, or `groups` does not divide 64.
    """
    channels, _, _ = image_shape("resnet18", shape, smallest=8)
    if WIDTHS[0] % groups:
        raise UserError(
            f"model 'resnet18' has layers of 64 channels, which {groups} groups do not divide; give 1, 2, 4"
        )
    blocks: list[nn.Module] = []
    before = WIDTHS[0]
    for width in WIDTHS:
        blocks += [Block(before, width, 1 if width == WIDTHS[0] else 2, groups), Block(width, width, 1, groups)]
        before = width
    return nn.Sequential(
        nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False),
        nn.GroupNorm(groups, WIDTHS[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTHS[-1], classes),
    )


LAYERS = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


def vgg11(
    shape: tuple[int, ...], classes: int, /, hidden: Annotated[int, Field(ge=0, description=HIDDEN)] = 0
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


MODELS: dict[str, Callable[..., nn.Module]] = {
    **by_name(logreg),
    "2nn": two_nn,
    **by_name(cnn1, cnn2, lenet, resnet18, vgg11, charlm, hf),
}
"""Models by name; a factory takes the shape of a sample, the number of outputs, then its parameters."""


def models() -> Mapping[str, Callable[..., nn.Module]]:
    """`MODELS`, and factories of your own by import path, `package.module:factory`."""
    return open_factories(MODELS, "model", ("shape", "classes"))
