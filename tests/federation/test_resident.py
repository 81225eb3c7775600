"""Samples as they lie in memory: bytes that are scaled when they are read, to the bits of arrays scaled beforehand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.federation.data.dataset import Dataset, Scale
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.evaluation import resident

CPU = torch.device("cpu")
GREY, COLOUR, PLAIN = (
    Scale(255.0, [0.1307], [0.3081]),
    Scale(255.0, [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]),
    Scale(255.0, [0.0], [1.0]),
)


def scaled_beforehand(pixels: np.ndarray, scale: Scale) -> np.ndarray:
    """What the loaders made of bytes when they scaled them: a number for grey pictures, else a number a channel."""
    x = pixels.astype(np.float32)
    x /= 255
    x -= scale.mean[0] if len(scale.mean) == 1 else np.array(scale.mean, np.float32)[:, None, None]
    x /= scale.std[0] if len(scale.std) == 1 else np.array(scale.std, np.float32)[:, None, None]
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [GREY, COLOUR, PLAIN], ids=["grey", "colour", "plain"])
def test_every_byte_is_read_to_the_bit(scale: Scale, dtype: torch.dtype) -> None:
    """All 256 values in every channel; by their numbers, as a slice, one alone, and in the table for kernels."""
    channels = len(scale.mean)
    pixels = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.uint8), (4, channels, 1)), axis=2)
    pixels = pixels.reshape(4, channels, 16, 16)
    wanted = torch.as_tensor(scaled_beforehand(pixels, scale), dtype=dtype)
    order = np.array([3, 1, 0, 2])
    for places in (None, order):
        x = resident(pixels, scale, dtype, CPU, places)
        expected = wanted if places is None else wanted[torch.as_tensor(places)]
        assert x.dtype == expected.dtype == x[:].dtype
        assert torch.equal(x[:], expected)
        assert torch.equal(x[1:3], expected[1:3])
        assert torch.equal(x[2], expected[2])
        index = torch.tensor([[3, 0, 0], [1, 2, 3]])
        assert torch.equal(x[index], expected[index])
        assert torch.equal(x.copy(slice(1, 3))[:], expected[1:3])
        assert x.table is not None
        read = torch.stack([x.table[c][torch.as_tensor(pixels[:, c]).long()] for c in range(channels)], 1)
        assert torch.equal(read, wanted)
    data = Dataset("", pixels, pixels, pixels, pixels, 2, preprocessing=said(scale))
    assert np.array_equal(data.scaled().test_x, scaled_beforehand(pixels, scale))


def said(scale: Scale) -> dict[str, Any]:
    return {"kind": "scale", **scale._asdict()}


def test_numbers_are_read_as_they_were_converted() -> None:
    """float32 is widened when it is read, float64 rounded at once; symbols become int64, and nothing is scaled."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((6, 3))
    for kind, dtype in ((np.float64, torch.float32), (np.float32, torch.float64), (np.float16, torch.float32)):
        given = x.astype(kind)
        found = resident(given, GREY, dtype, CPU, np.array([5, 0]))
        assert torch.equal(found[:], torch.as_tensor(given[[5, 0]], dtype=dtype))
        assert found.table is None
    for symbols in (draw.integers(0, 9, (6, 3)).astype(kind) for kind in (np.uint8, np.uint16, np.int32, np.int64)):
        read = resident(symbols, None, torch.float32, CPU)
        assert torch.equal(read[:], torch.as_tensor(symbols.astype(np.int64)))
        assert read.finite().all()


def test_arrays_that_torch_would_refuse_are_copied() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    fixed = x.copy()
    fixed.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (fixed, x[::-1], x[:, ::2], x.astype(">f4")):
            assert np.array_equal(resident(given, None, torch.float32, CPU)[:].numpy(), given)


def test_finite() -> None:
    x = np.zeros((5, 2), np.float32)
    x[1, 0], x[3, 1] = np.nan, -np.inf
    assert resident(x, None, torch.float64, CPU, np.array([3, 0, 1])).finite().tolist() == [False, True, False]
    assert not resident(np.full((1, 2), 1e300), None, torch.float32, CPU).finite().any()


def test_the_samples_of_a_problem_lie_in_memory_once() -> None:
    """No copy for the partition or for what is set apart."""
    draw = np.random.default_rng(0)
    data = Dataset(
        *("bytes", draw.integers(0, 256, (60, 1, 4, 4)).astype(np.uint8), draw.integers(0, 3, 60)),
        *(draw.integers(0, 256, (9, 1, 4, 4)).astype(np.uint8), draw.integers(0, 3, 9), 3),
        preprocessing=said(GREY),
    )
    order = draw.permutation(60)
    parts, held = [order[:20], order[20:30], order[30:50]], [order[50:55], order[:0], order[55:]]
    problem = Supervised(lambda: MODELS["logreg"](data.shape, 3), data, parts, held=held, dtype=torch.float64)
    mine = {data.train_x.ctypes.data: data.train_x.nbytes, data.test_x.ctypes.data: data.test_x.nbytes}
    for x in (problem.x, problem.judged.x, problem.test_x):
        assert mine[x.raw.data_ptr()] == x.raw.nbytes
    floats = Supervised(lambda: MODELS["logreg"](data.shape, 3), data.scaled(), parts, held=held, dtype=torch.float64)
    assert torch.equal(problem.x[:], floats.x[:])
    at = problem.init(1)
    assert problem.evaluate(at) == floats.evaluate(at)
    alone = problem.alone(1)
    assert alone.x.nbytes == 10 * 16
    assert torch.equal(alone.x[:], problem.x[20:30])
