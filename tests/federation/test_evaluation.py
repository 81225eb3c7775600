"""A model's outputs on many samples: the plain module's, whatever the batches and the threads."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.evaluation import Forward, counted
from fedconcord.method.contract.flat import Layout


class Theirs(nn.Module):
    """A module of a user's own, which asks for samples in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x.view(len(x), 3, 8, 8)).relu().flatten(1))
        return out


def grouped() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def pooled() -> nn.Sequential:
    convolve = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU()
    return nn.Sequential(*convolve, nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 5))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: MODELS["2nn"]((1, 8, 8), 5), (1, 8, 8)),
    "rows": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5)), (6,)),
    "convolutions": (pooled, (1, 8, 8)),
    "norms": (grouped, (3, 8, 8)),
    "theirs": (Theirs, (3, 8, 8)),
}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_modules_for_all_batches_and_threads(kind: str, threads: Callable[[int], None]) -> None:
    build, shape = KINDS[kind]
    model = build().double()
    layout = Layout(model)
    draw = torch.Generator().manual_seed(1)
    x = 0.1 * torch.randn(layout.dim, generator=draw, dtype=torch.float64)
    first, second = (torch.randn(n, *shape, generator=draw, dtype=torch.float64) for n in (23, 1))
    with torch.no_grad():
        wanted = [functional_call(model, layout.views(x), (samples,)) for samples in (first, second)]
    forward = Forward(model, layout, first[:1])
    assert (forward.chain is not None) == (kind in ("dense", "rows", "convolutions"))
    sets = [first, second]
    for batch in (4, 7, 23):
        forward.batch, found = batch, []
        for number in (1, 2, 3):
            threads(number)
            found.append(forward.outputs(x, sets))
            alone = forward.outputs(x, sets[1:])
            assert torch.equal(alone[0], found[-1][1])  # one batch by itself
            assert torch.get_num_threads() == number
        for given in found:
            for got, this, one in zip(given, wanted, found[0], strict=True):
                torch.testing.assert_close(got, this, rtol=0, atol=1e-12)
                assert kind == "theirs" or torch.equal(got, one)


def test_work_is_counted_layer_by_layer() -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert counted(dense, torch.zeros(3, 1, 8, 8)) == (640 + 10, 64, 10)  # at least its parameters
    # 4 channels of 8 x 8 from 9 taps, 6 of 2 x 2 from 36, and two linear layers
    products = 4 * 64 * 9 + 6 * 4 * 36 + 24 * 8 + 8 * 5
    assert counted(pooled(), torch.zeros(1, 1, 8, 8)) == (products, 4 * 64, (24 * 8 + 8 * 5) / 2 / 64)


def test_a_look_at_the_same_model_is_not_repeated() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(20, 6)).astype(np.float32), draw.integers(0, 5, 20)
    data = Dataset("made", x, y, x, y, 5)
    problem = Supervised(KINDS["rows"][0], data, [np.arange(8), np.arange(8, 20)])
    at = problem.init(0)
    scores = problem.client_scores(at)
    assert problem.client_scores(at.clone()) is scores
    at[0] += 1.0  # in place: what is kept must not follow
    again = problem.client_scores(at)
    assert not np.array_equal(again.values["loss"], scores.values["loss"])
    assert len(problem.alone(1).client_scores(at).samples) == 1
