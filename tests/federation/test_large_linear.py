"""Linear layers of many multiplications, of models as they are written: by oneDNN, forwards and backwards."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised, evaluation, supervised
from fedconcord.federation.objectives.evaluation import counted
from fedconcord.method.contract import products
from fedconcord.method.contract.products import AT_ONCE, LEAST, LargeLinear, by_product

WIDTH = 1024
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
LAYERS: dict[str, Layer] = {
    "linear": F.linear,
    "without a bias": lambda x, w, bias: F.linear(x, w, None) + bias,
    "as in GPT-2": lambda x, w, bias: torch.addmm(bias, x.view(-1, x.size(-1)), w.mT).view(*x.shape[:-1], len(w)),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what was multiplied by `product`."""
    seen: list[tuple[int, ...]] = []

    def spy(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append((*a.shape, len(b)))
        return of(a, b, bias)

    of = products.product
    monkeypatch.setattr(products, "product", spy)
    return seen


def leaves(rows: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (2, rows, WIDTH), (WIDTH // 2, WIDTH), (WIDTH // 2,)
    return [torch.randn(shape, generator=generator, dtype=dtype).div(30).requires_grad_() for shape in shapes]


def first(layer: Layer, at: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(layer(*at).tanh().square().sum(), at)


def second(layer: Layer, at: list[Tensor]) -> tuple[Tensor, ...]:
    [inner] = torch.autograd.grad(layer(*at).tanh().square().sum(), at[0], create_graph=True)
    return torch.autograd.grad(inner.square().sum(), at)


@pytest.mark.parametrize("gradients", [first, second])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_gradients_are_torch_s(
    layer: Layer, gradients: Callable[[Layer, list[Tensor]], tuple[Tensor, ...]], calls: list[tuple[int, ...]]
) -> None:
    at = leaves()
    want = gradients(layer, [one.detach().double().requires_grad_() for one in at])
    with LargeLinear():
        got = gradients(layer, at)
    for one, other in zip(got, want, strict=True):
        assert float((one - other).norm()) <= 2e-6 * float(other.norm())
    assert calls[0] == (8, WIDTH, WIDTH // 2)
    assert gradients is second or len(calls) == 3  # forwards, and for x and w backwards


def test_only_what_gains_by_it_is_multiplied_so(calls: list[tuple[int, ...]]) -> None:
    """Few multiplications, other numbers, vectors, and what autocast shortens stay torch's."""
    with LargeLinear():
        first(F.linear, leaves(rows=LEAST // WIDTH**2 // 2))
        first(F.linear, leaves(dtype=torch.float64))
        x, w, bias = leaves()
        F.linear(x[0, 0], w.repeat(8, 1), bias.repeat(8))
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(x, w, bias)
    assert calls == []
    F.linear(x, w, bias)  # outside it too
    assert calls == []


def test_no_activation_is_kept_for_weights_that_are_frozen() -> None:
    """As with low-rank adapters, where most are."""
    x, w, bias = leaves()
    with LargeLinear():
        out = F.linear(x, w.detach(), bias.detach())
    assert out.grad_fn is not None
    kept = out.grad_fn.saved_tensors  # type: ignore[attr-defined]
    assert [one.shape for one in kept if one is not None] == [w.shape]


class Words(nn.Module):
    """A class for a text, by a layer that all of its tokens go through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, width)
        self.hidden, self.out = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(self.embedding(tokens)).tanh().mean(-2))
        return out


def words(width: int, length: int) -> Supervised:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 9, (12, length)), generator.integers(0, 3, 12)
    halves = np.array_split(np.arange(12), 2)
    return Supervised(lambda: Words(width), Dataset("words", x, y, x[:4], y[:4], 3), halves)


@pytest.mark.parametrize(("width", "length"), [(600, 64), (64, 64)])
def test_clients_are_side_by_side_where_their_layers_are_small(
    width: int, length: int, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, at_once = words(width, length), []
    vmap = supervised.vmap
    monkeypatch.setattr(supervised, "vmap", lambda *a, **k: at_once.append(1) or vmap(*a, **k))
    samples, x = torch.tensor([[0, 1, 2], [7, 8, 9]]), of.init(0)
    together = of.gradients(x.expand(2, -1), samples, None)
    is_large = of.forward.work(of.x[samples[0]]) > AT_ONCE
    assert is_large == (width == 600)
    assert (bool(at_once), bool(calls)) == (not is_large, is_large)
    alone = torch.stack([of.gradient(x, mine) for mine in samples])
    torch.testing.assert_close(together, alone, rtol=0 if is_large else 1e-4, atol=0 if is_large else 1e-7)


def test_what_a_usual_linear_layer_multiplies() -> None:
    """For all tokens of a text, whatever its length; embeddings and norms multiply nothing."""
    of = words(600, 64)
    assert of.forward.cost.linear == (64 * 600 * 600 + 3 * 600) / 2 / 64
    assert of.forward.work(torch.zeros(5, 16, dtype=torch.int64)) == 5 * 16 * of.forward.cost.linear
    few = torch.zeros(2, 7)
    assert counted(nn.Sequential(nn.LayerNorm(7), nn.Tanh()), few).linear == 0
    assert counted(nn.Linear(7, 5).double(), few.double()).linear == 0
    assert counted(nn.Linear(7, 5), few) == counted(Conv1D(7, 5), few)


class Conv1D(nn.Module):
    """A linear layer of GPT-2."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.nf = after
        self.weight, self.bias = nn.Parameter(torch.zeros(before, after)), nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_models_without_such_layers_are_not_looked_at() -> None:
    assert isinstance(by_product(LEAST), LargeLinear)
    assert not isinstance(by_product(LEAST / 5), LargeLinear)


def test_models_are_judged_with_it(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    of = words(600, 64)
    got = of.evaluate(of.init(0))
    assert calls
    monkeypatch.setattr(evaluation, "by_product", lambda multiplications: torch.no_grad())
    want = of.evaluate(of.init(0))
    assert got == pytest.approx(want, rel=1e-5)
