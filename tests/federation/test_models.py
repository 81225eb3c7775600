from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.method.contract.flat import Layout
from fedconcord.support.errors import UserError

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn1", MNIST, 10, 1_663_370),
        ("cnn2", CIFAR, 10, 1_105_098),
        ("lenet", CIFAR, 10, 797_962),
        ("lenet", CIFAR, 100, 815_332),
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet18", CIFAR, 100, 11_220_132),
        ("vgg11", CIFAR, 10, 9_225_610),
        ("2nn", MNIST, 10, 199_210),
        ("2nn", (561,), 6, 153_806),
        ("2nn", (178,), 2, 76_402),
        ("logreg", MNIST, 10, 7_850),
        ("logreg", (60,), 10, 610),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    """The papers' counts: experiments.md, algorithms.md 2.5, 5.5 and 8.6."""
    model = MODELS[name](shape, classes)
    assert Layout(model).dim == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("charlm", "hf")])
@pytest.mark.parametrize("shape", [MNIST, CIFAR, (2, 16, 20), (1, 17, 31)])
def test_other_image_sizes(name: str, shape: tuple[int, ...]) -> None:
    if name == "vgg11":  # five pools
        shape = (shape[0], shape[1] + 32, shape[2] + 32)
    assert MODELS[name](shape, 7)(torch.zeros(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("resnet18", "charlm", "hf")])
def test_plain_sequential_of_known_layers(name: str) -> None:
    """What the stacked engine's kernels take; every hidden layer is followed by ReLU and the last by nothing."""
    model = MODELS[name](CIFAR, 10)
    assert type(model) is nn.Sequential
    layers = list(model)
    assert {type(layer) for layer in layers} <= {nn.Flatten, nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.ReLU}
    learned = [k for k, layer in enumerate(layers) if isinstance(layer, (nn.Linear, nn.Conv2d))]
    assert learned[-1] == len(layers) - 1
    assert all(isinstance(layers[k + 1], nn.ReLU) for k in learned[:-1])


@pytest.mark.parametrize(("name", "shape", "parameters"), [("cnn1", MNIST, 1_663_370), ("cnn2", CIFAR, 1_105_098)])
def test_the_released_form_of_fedadmms_networks(name: str, shape: tuple[int, ...], parameters: int) -> None:
    """algorithms.md 3.4: no ReLU after the convolutions, a softmax at the end; the convolutions' part is linear but
    for the pools."""
    model = MODELS[name](shape, 10, form="released")
    assert Layout(model).dim == parameters
    kinds = [type(layer).__name__ for layer in model]
    pair = ["Conv2d", "MaxPool2d"]
    assert kinds == [*pair, *pair, "Flatten", "Linear", "ReLU", "Linear", "Softmax"]
    torch.manual_seed(0)
    samples = torch.randn(5, *shape)
    outputs = model(samples)
    assert torch.allclose(outputs.sum(1), torch.ones(5))
    assert torch.allclose(outputs, torch.softmax(model[:-1](samples), 1))


def test_the_released_vgg() -> None:
    """algorithms.md 2.5: two layers of 512 before the last."""
    assert Layout(MODELS["vgg11"](CIFAR, 10, hidden=2)).dim == 9_750_922


def test_vgg_passes_its_signal() -> None:
    """Outputs differ between samples; with torch's default initialisation by a hundredth of this."""
    torch.manual_seed(0)
    model, samples = MODELS["vgg11"](CIFAR, 10), torch.randn(8, *CIFAR)
    assert model(samples).std(0).mean() > 0.005


def test_groups_that_do_not_divide() -> None:
    with pytest.raises(UserError, match="3 groups"):
        MODELS["resnet18"](CIFAR, 10, groups=3)


def test_resnet_stacks_over_clients() -> None:
    """vmap over clients gives each client's own gradient: no layer mixes samples or keeps statistics."""
    data = Dataset("noise", *(np.zeros((4, 3, 8, 8), np.float32), np.zeros(4, np.int64)) * 2, 10)
    draws = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    problem = Supervised(
        lambda: MODELS["resnet18"]((3, 8, 8), 10),
        data._replace(train_x=draws),
        [np.array([0, 1]), np.array([2, 3])],
        dtype=torch.float64,
    )
    x, samples = problem.init(0), torch.tensor([[0, 1], [2, 3]])
    stacked = problem.gradients(x.expand(2, -1).clone(), samples, None)
    one_by_one = torch.stack([problem.gradient(x, own) for own in samples])
    assert torch.allclose(stacked, one_by_one, rtol=1e-9, atol=1e-12)


def test_the_caller_seeds() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = MODELS["2nn"]((5,), 3)
        return Layout(model).flatten(model)

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cnn1", (60,), "4x4"),
        ("cnn1", (1, 3, 28), "4x4"),
        ("cnn2", (3, 32), "4x4"),
        ("lenet", (1, 8, 8), "16x16"),
        ("lenet", (3, 32, 15), "16x16"),
        ("resnet18", (3, 7, 32), "8x8"),
        ("vgg11", (3, 28, 28), "32x32"),
    ],
)
def test_refused_shapes(name: str, shape: tuple[int, ...], smallest: str) -> None:
    with pytest.raises(UserError) as error:
        MODELS[name](shape, 10)
    text = str(error.value)
    assert "\n" not in text
    for part in (repr(name), smallest, str(shape), "logreg"):
        assert part in text


@pytest.mark.parametrize("name", MODELS)
def test_factory_convention(name: str) -> None:
    first, second, *options = inspect.signature(MODELS[name]).parameters.values()
    assert (first.name, second.name) == ("shape", "classes")
    assert first.kind is second.kind is inspect.Parameter.POSITIONAL_ONLY
    assert all(p.default is not p.empty for p in options)
    assert (MODELS[name].__doc__ or "").splitlines()[0]
