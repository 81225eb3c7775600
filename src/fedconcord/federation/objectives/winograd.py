"""Convolutions of 5 x 5 weights on a CPU with 36 multiplications for 100 (Winograd; Lavin and Gray, CVPR 2016).

Tiles of 6 x 6 numbers are taken to 36 points, there they are multiplied, and the products are taken back to 2 x 2:

    outputs    A^T [(G w G^T) * (B^T d B)] A    of a tile d of inputs, summed over their channels
    weights    G^T [(B^T d B) * (A s A^T)] G    of a tile d and the 2 x 2 slopes s behind it, summed over tiles

The gradient in the inputs is a convolution of slopes, by weights that are turned round. oneDNN's convolutions are at
the processor's peak: only fewer multiplications are faster. Errors in float32 are about twice theirs, below 2e-6.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedconcord.method.step.compiled.loading import engine_of, installed, machine_code, processor
from fedconcord.support.errors import UserError

SIZE, OUT = 5, 2  # a side of the weights, and of a tile of outputs
SIDE = SIZE + OUT - 1
POINTS = tuple(Fraction(k, 8) for k in (0, 5, -5, 12, -12))  # and infinity; at 1 and 2 errors are twice as large
ROWS = 14  # of a block of products, at most: its sums fill the registers
SOME = 8  # channels of such a block in the gradient in the weights
TILES, LEAST = 150, 16  # of a batch and of a sample: with fewer, taking weights to the points is most of the work
ALIGNED = 16  # channels are multiples of it
Matrix = list[list[Fraction]]


def matrices() -> tuple[Matrix, Matrix, Matrix]:
    """A [6, 2], G [6, 5] and B^T [6, 6]: polynomials are multiplied by their values at points (Toom and Cook)."""

    def powers(n: int) -> Matrix:
        return [[point**k for k in range(n)] for point in POINTS] + [[Fraction(k == n - 1) for k in range(n)]]

    def with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
        factors = [Fraction(1)]
        for root in roots:
            pairs = zip([Fraction(0), *factors], [*factors, Fraction(0)], strict=True)
            factors = [high - root * low for high, low in pairs]
        return factors

    others = [[other for other in POINTS if other != point] for point in POINTS]
    G = powers(SIZE)
    for k, (point, rest) in enumerate(zip(POINTS, others, strict=True)):
        G[k] = [value / math.prod(point - other for other in rest) for value in G[k]]
    return powers(OUT), G, [*([*with_roots(rest), Fraction(0)] for rest in others), with_roots(POINTS)]


class Shape(NamedTuple):
    """A convolution: height, width and channels before it, channels behind it, and zeros on every side."""

    height: int
    width: int
    inputs: int
    outputs: int
    padding: int

    @property
    def out(self) -> tuple[int, int]:
        """Height and width behind it."""
        more = 2 * self.padding - SIZE + 1
        return self.height + more, self.width + more

    @property
    def back(self) -> Shape:
        """The convolution of slopes that is the gradient in the inputs."""
        return Shape(*self.out, self.outputs, self.inputs, SIZE - 1 - self.padding)

    @property
    def tiles(self) -> tuple[int, int]:
        return self.out[0] // OUT, self.out[1] // OUT

    @property
    def line(self) -> int:
        """Numbers of a row with zeros around it."""
        return (self.width + 2 * self.padding) * self.inputs

    @property
    def padded(self) -> int:
        """Numbers of a sample with zeros around it."""
        return self.line * (self.height + 2 * self.padding)

    def stride(self, tiles: int, channels: int) -> int:
        """Numbers from a point to the next; a power of two would put all of them in the same places of a cache."""
        return tiles * channels + ALIGNED

    def room(self, rows: int) -> int:
        """Numbers of a padded sample, and of rows of tiles at all points before and behind the products."""
        tiles = rows * self.tiles[1]
        return self.padded + SIDE**2 * (self.stride(tiles, self.inputs) + self.stride(tiles, self.outputs))

    def few(self) -> tuple[int, int]:
        """Rows of tiles that are multiplied at a time, and tiles in a block of products; (0, 0) if none fill it."""
        rows, columns = self.tiles
        for some in range(1, rows + 1):
            block = max(k for k in range(1, ROWS + 1) if some * columns % k == 0)
            if rows % some == 0 and block >= ROWS // 3:
                return some, block
        return 0, 0

    def many(self) -> int:
        """Rows of tiles at a time for the gradient in the weights, whose sums are read and written once for each."""
        rows, columns = self.tiles
        return next(some for some in range(1, rows + 1) if rows % some == 0 and (some * columns >= 25 or some == rows))

    def suits(self) -> bool:
        """Whether there is code for it."""
        sides = self.height, self.width, *self.out
        return (
            0 <= self.padding < SIZE
            and all(side > 0 and side % OUT == 0 for side in sides)
            and self.inputs % ALIGNED == self.outputs % ALIGNED == 0
            and min(math.prod(self.tiles), math.prod(self.back.tiles)) >= LEAST
            and min(*self.few(), *self.back.few()) > 0
        )


class Winograd:
    """The passes of one convolution. Its results do not depend on how many threads share the work.

    Args:
        lanes: numbers in a register.
    """

    def __init__(self, shape: Shape, lanes: int) -> None:
        self.shape = shape
        self._engine = engine_of(_code(shape, lanes))  # which holds the code
        self._outputs, self._before = self._function("outputs", 5, 1), self._function("before", 5, 1)
        self._weights = self._function("weights", 4, 3)

    def outputs(self, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Of inputs [S, C, H, W], channels last, and weights [K, C, 5, 5]."""
        at_points = self._changed("to_points", weight.permute(2, 3, 1, 0), SIDE)
        return _convolution(self._outputs, self.shape, inputs, at_points, bias.contiguous())

    def before(self, slopes: Tensor, weight: Tensor) -> Tensor:
        """The gradient in the inputs, of that in the outputs [S, K, H', W'], channels last."""
        at_points = self._changed("to_points_turned", weight.permute(2, 3, 0, 1), SIDE)
        return _convolution(self._before, self.shape.back, slopes, at_points, slopes.new_zeros(self.shape.inputs))

    def weights(self, inputs: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients in the weights and in the bias."""
        shape, many = self.shape, self.shape.many()
        sums = slopes.new_zeros(SIDE, SIDE, shape.outputs, shape.inputs)

        def some(begin: int, end: int) -> None:
            room = _room(shape, many)
            self._weights(*map(Tensor.data_ptr, (inputs, slopes, sums, room)), len(inputs), begin, end)

        _spread(some, shape.outputs, SOME)
        gradient = self._changed("from_points", sums, SIZE).permute(2, 3, 0, 1).contiguous()
        return gradient, slopes.permute(0, 2, 3, 1).reshape(-1, shape.outputs).sum(0)

    def _changed(self, name: str, square: Tensor, side: int) -> Tensor:
        """Not by torch, whose small products depend on its threads in their last bits."""
        square = square.contiguous()
        values = square.new_empty(side, side, *square.shape[2:])
        self._function(name, 2, 0)(square.data_ptr(), values.data_ptr())
        return values

    def _function(self, name: str, pointers: int, numbers: int) -> Callable[..., None]:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers, *[ctypes.c_int64] * numbers)
        return kind(self._engine.get_function_address(name))  # called, it lets go of Python's lock


def of(module: nn.Conv2d) -> Callable[[Tensor], Winograd | None]:
    """What says whether the passes of a layer on inputs [S, C, H, W] are made here, and has them."""
    square, padding = (SIZE, SIZE), module.padding[0]
    plain = module.kernel_size == square and module.padding == (padding, padding) and module.groups == 1
    if not (plain and module.stride == module.dilation == (1, 1)):
        return lambda inputs: None

    def passes(inputs: Tensor) -> Winograd | None:
        shape = Shape(inputs.shape[2], inputs.shape[3], module.in_channels, module.out_channels, int(padding))
        if inputs.dtype != torch.float32 or len(inputs) * math.prod(shape.tiles) < TILES:
            return None
        return _passes(shape)

    return passes


@cache
def _passes(shape: Shape) -> Winograd | None:
    lanes = _lanes()
    with suppress(UserError):  # what no compiler takes here is left to oneDNN
        return Winograd(shape, lanes) if lanes and shape.suits() else None
    return None


def _code(shape: Shape, lanes: int) -> bytes:
    """The machine code of a convolution, whose text is written only where it has to be compiled: it takes 0.1 s."""

    def text() -> str:
        from fedconcord.federation.objectives import tiles

        return tiles.text(shape, lanes)

    here = Path(__file__)
    program = b"".join(path.read_bytes() for path in (here, here.with_name("tiles.py")))
    return machine_code(f"{shape} {lanes} {hashlib.sha256(program).hexdigest()}", text)


@cache
def _lanes() -> int:
    """Numbers in a register of this processor; 0 where it has none wide enough, or no code is compiled."""
    if not installed():
        return 0
    features = set(processor()[1].split(","))
    return 16 if "+avx512f" in features else 8 if features >= {"+avx2", "+fma"} else 0


def _convolution(
    function: Callable[..., None], shape: Shape, inputs: Tensor, at_points: Tensor, bias: Tensor
) -> Tensor:
    S, few = len(inputs), shape.few()[0]
    outputs = inputs.new_empty(S, *shape.out, shape.outputs)

    def some(begin: int, end: int) -> None:
        room = _room(shape, few)
        mine = inputs[begin:end], at_points, bias, outputs[begin:end], room
        function(*map(Tensor.data_ptr, mine), end - begin)

    _spread(some, S)
    return outputs.permute(0, 3, 1, 2)


def _room(shape: Shape, rows: int) -> Tensor:
    room = torch.empty(shape.room(rows), dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    room[: shape.padded] = 0
    return room


def _spread(work: Callable[[int, int], None], size: int, step: int = 1) -> None:
    """Parts of some work, between multiples of a step, on torch's threads of who asks."""
    threads = min(torch.get_num_threads(), size // step)
    if threads <= 1:
        return work(0, size)
    bounds = [k * (size // step) // threads * step for k in range(threads)] + [size]
    for _ in _pool(threads, os.getpid()).map(work, bounds[:-1], bounds[1:]):
        pass
    return None


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay, none of which asks for others; the process is a key, as a fork has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="fedconcord-tiles")
