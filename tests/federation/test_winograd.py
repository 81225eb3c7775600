"""Convolutions with fewer multiplications: exact in fractions, and in float32 the numbers of float64's autograd."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord import MODELS, Dataset, Supervised
from fedconcord.federation.objectives import winograd
from fedconcord.federation.objectives.winograd import Shape, Winograd
from fedconcord.method.step.compiled import installed
from fedconcord.support.errors import UserError

pytestmark = pytest.mark.skipif(not installed(), reason="numba is not installed")
WIDEST = winograd._lanes()
SHAPES = {
    "cnn1": Shape(14, 14, 32, 64, 2),
    "lenet": Shape(14, 14, 64, 64, 0),
    "wide": Shape(12, 10, 16, 48, 1),
    "more zeros": Shape(8, 8, 48, 16, 4),
    "several rows of tiles at a time": Shape(16, 8, 16, 32, 2),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def last(*shape: int, seed: int) -> Tensor:
    """Random numbers [S, C, H, W], channels last."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.contiguous(memory_format=torch.channels_last)


def drawn(shape: Shape, samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, weights, bias and slopes."""
    weight = last(shape.outputs, shape.inputs, 5, 5, seed=1).contiguous() / (25 * shape.inputs) ** 0.5
    bias = torch.linspace(-1, 1, shape.outputs)
    inputs = last(samples, shape.inputs, shape.height, shape.width, seed=0)
    return inputs, weight, bias, last(samples, shape.outputs, *shape.out, seed=2)


def passes(run: Winograd, samples: int) -> tuple[Tensor, ...]:
    inputs, weight, bias, slopes = drawn(run.shape, samples)
    return run.outputs(inputs, weight, bias), run.before(slopes, weight), *run.weights(inputs, slopes)


def test_the_matrices_are_exact() -> None:
    """Two outputs of five weights over six numbers."""
    A, G, B = winograd.matrices()
    d = [Fraction(k**3 - 7, 3) for k in range(6)]
    w = [Fraction(5 - k * k, 7) for k in range(5)]

    def product(matrix: list[list[Fraction]], vector: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    at_points = [a * b for a, b in zip(product(G, w), product(B, d), strict=True)]
    turned = [list(row) for row in zip(*A, strict=True)]
    assert product(turned, at_points) == [sum(w[k] * d[i + k] for k in range(5)) for i in range(2)]


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_passes_are_those_of_a_convolution(name: str, lanes: int) -> None:
    """With registers of AVX2 and of AVX-512."""
    if lanes > WIDEST:
        pytest.skip("this processor has no such registers")
    shape = SHAPES[name]
    assert shape.suits()
    inputs, weight, bias, slopes = (value.double() for value in drawn(shape, 3))
    of = [value.requires_grad_() for value in (inputs, weight, bias)]
    outputs = F.conv2d(*of, padding=shape.padding)
    gradients = torch.autograd.grad(outputs, of, slopes)
    for made, expected in zip(passes(Winograd(shape, lanes), 3), (outputs, *gradients), strict=True):
        assert made.shape == expected.shape
        assert (made - expected).norm() < 2e-6 * expected.norm()
        assert (made - expected).abs().max() < 5e-6 * expected.abs().max()


@pytest.mark.skipif(not WIDEST, reason="this processor has no wide registers")
def test_errors_do_not_grow_with_the_batch() -> None:
    """Of sums over 6,400 tiles, of inputs as ReLU leaves them."""
    run = Winograd(SHAPES["several rows of tiles at a time"], WIDEST)
    inputs, weight, _, slopes = drawn(run.shape, 200)
    made, _ = run.weights(inputs.relu_(), slopes)
    of = weight.double().requires_grad_()
    (expected,) = torch.autograd.grad(F.conv2d(inputs.double(), of, padding=2), of, slopes.double())
    assert (made - expected).norm() < 2e-6 * expected.norm()


@pytest.mark.skipif(not WIDEST, reason="this processor has no wide registers")
@pytest.mark.parametrize("name", SHAPES)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    run = Winograd(SHAPES[name], WIDEST)
    torch.set_num_threads(1)
    alone = passes(run, 5)
    for threads in (2, 3, 16):
        torch.set_num_threads(threads)
        assert all(torch.equal(made, once) for made, once in zip(passes(run, 5), alone, strict=True))


@pytest.mark.skipif(not WIDEST, reason="this processor has no wide registers")
def test_which_convolutions_have_passes() -> None:
    like = nn.Conv2d(32, 64, 5, padding=2)
    assert winograd.of(like)(last(50, 32, 14, 14, seed=0)) is not None
    for inputs in (
        last(50, 32, 13, 14, seed=0),  # no whole tiles
        last(50, 32, 4, 4, seed=0),  # few of them in a sample
        last(2, 32, 14, 14, seed=0),  # and in a batch
        last(50, 32, 14, 14, seed=0).double(),
        last(50, 32, 14, 14, seed=0).bfloat16(),
    ):
        assert winograd.of(like)(inputs) is None
    for layer in (
        nn.Conv2d(32, 64, 3, padding=1),
        nn.Conv2d(32, 64, 5, padding=2, stride=2),
        nn.Conv2d(32, 64, 5, padding=4, dilation=2),
        nn.Conv2d(32, 64, 5, padding=2, groups=2),
        nn.Conv2d(32, 60, 5, padding=2),
        nn.Conv2d(32, 64, 5, padding=(2, 0)),
        nn.Conv2d(32, 64, 5, padding=6),
    ):
        assert winograd.of(layer)(last(50, 32, 14, 14, seed=0)) is None
    assert winograd.of(nn.Conv2d(24, 64, 5, padding=2))(last(50, 24, 14, 14, seed=0)) is None


@pytest.mark.skipif(not WIDEST, reason="this processor has no wide registers")
def test_where_nothing_can_be_compiled_they_are_left_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*of: object) -> bytes:
        raise UserError("no compiler")

    monkeypatch.setattr(winograd, "machine_code", refuse)
    winograd._passes.cache_clear()
    assert winograd.of(nn.Conv2d(32, 64, 5, padding=2))(last(50, 32, 14, 14, seed=0)) is None
    winograd._passes.cache_clear()


@pytest.mark.skipif(not WIDEST, reason="this processor has no wide registers")
@pytest.mark.parametrize(("model", "shape"), [("cnn1", (1, 28, 28)), ("cnn2", (3, 32, 32)), ("lenet", (3, 32, 32))])
def test_gradients_of_models_are_those_of_float64(
    model: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model itself is moved too, and in what an evaluation computes."""
    asked = []
    real = winograd._passes
    monkeypatch.setattr(winograd, "_passes", lambda shape: asked.append(shape) or real(shape))
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, *shape)).astype(np.float32), draw.integers(0, 10, 40)
    data = Dataset("noise", x, y, x, y, 10)
    single, double = (
        Supervised(lambda: MODELS[model](shape, 10), data, [np.arange(40)], dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    at, samples = single.init(0)[None], torch.arange(20)[None]
    expected = double.gradient(at[0].double(), samples[0])
    made = single.gradients(at, samples, None)[0]
    assert (made - expected).norm() < 1e-5 * expected.norm()
    assert len(asked) > 1
    onto = at.clone()
    assert single.accumulate is not None
    single.accumulate(onto, 0.5, -2.0, onto, samples, None)
    assert torch.allclose(onto, 0.5 * at - 2.0 * made, rtol=1e-5, atol=1e-7)
    asked.clear()
    assert single.evaluate(at[0])["test_loss"] == pytest.approx(double.evaluate(at[0].double())["test_loss"], rel=1e-6)
    assert asked
