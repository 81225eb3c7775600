"""The code of `winograd`'s passes, written for LLVM: vectors are of channels, which lie last.

A pass takes some tiles at a time to the points, multiplies there, and takes the products back: what lies between stays
in the second cache. The multiplications of a point are a matrix product, in blocks whose sums fill the registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import Any

from llvmlite import ir

from fedconcord.federation.objectives.winograd import OUT, SIDE, SOME, Matrix, Shape, matrices

WHOLE, NUMBER, SHORT = ir.IntType(64), ir.FloatType(), ir.IntType(32)
A, G, B = matrices()
A_TRANSPOSED, G_TRANSPOSED = ([list(row) for row in zip(*matrix, strict=True)] for matrix in (A, G))


def text(shape: Shape, lanes: int) -> str:
    """The functions of a convolution, for vectors of so many numbers: its passes and, to and from the points, those of
    weights [25, n], as they are and turned round."""
    module = ir.Module()
    changes = {"to_points": G, "to_points_turned": [row[::-1] for row in G], "from_points": G_TRANSPOSED}
    for name, matrix in changes.items():
        Code(module, name, lanes, pointers=2, numbers=0).change(matrix, shape.inputs * shape.outputs)
    for name, of in (("outputs", shape), ("before", shape.back)):
        Pass(module, name, of, lanes, of.few()[0], pointers=5, numbers=1).convolution()
    Pass(module, "weights", shape, lanes, shape.many(), pointers=4, numbers=3).weights()
    return str(module)


class Code:
    """A function that is being written, from its arguments: pointers to float32 and whole numbers."""

    def __init__(self, module: Any, name: str, lanes: int, pointers: int, numbers: int) -> None:
        kind = ir.FunctionType(ir.VoidType(), [NUMBER.as_pointer()] * pointers + [WHOLE] * numbers)
        function = ir.Function(module, kind, name)
        for pointer in function.args[:pointers]:
            pointer.add_attribute("noalias")
        self.arguments, self.lanes, self.vector = function.args, lanes, ir.VectorType(NUMBER, lanes)
        self.zeros = ir.Constant(self.vector, None)
        self.entry, self.start = function.append_basic_block(), function.append_basic_block()
        self.builder = ir.IRBuilder(self.start)
        fma, of_three = f"llvm.fma.v{lanes}f32", ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = module.globals.get(fma) or ir.Function(module, of_three, fma)

    def end(self) -> None:
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self.start)

    def variable(self, kind: Any) -> Any:
        """A place that LLVM makes a register of."""
        return ir.IRBuilder(self.entry).alloca(kind)

    def plus(self, *parts: Any) -> Any:
        """The sum of whole numbers."""
        total = WHOLE(0)
        for part in parts:
            total = self.builder.add(total, WHOLE(part) if isinstance(part, int) else part)
        return total

    def times(self, value: Any, by: int) -> Any:
        return self.builder.mul(value, WHOLE(by))

    @contextmanager
    def over(self, end: Any, step: int = 1, begin: Any = 0) -> Iterator[Any]:
        """A loop over whole numbers."""
        builder, place = self.builder, self.variable(WHOLE)
        head, body, behind = (builder.append_basic_block() for _ in range(3))
        builder.store(self.plus(begin), place)
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.load(place)
        builder.cbranch(builder.icmp_unsigned("<", at, self.plus(end)), body, behind)
        builder.position_at_end(body)
        yield at
        builder.store(self.plus(at, step), place)
        builder.branch(head)
        builder.position_at_end(behind)

    def at(self, base: Any, *parts: Any) -> Any:
        """The place so many numbers behind another."""
        return self.builder.gep(base, [self.plus(*parts)])

    def load(self, base: Any, *parts: Any) -> Any:
        place = self.builder.bitcast(self.at(base, *parts), self.vector.as_pointer())
        return self.builder.load(place, align=4)

    def store(self, value: Any, base: Any, *parts: Any) -> None:
        place = self.builder.bitcast(self.at(base, *parts), self.vector.as_pointer())
        self.builder.store(value, place, align=4)

    def each(self, base: Any, *parts: Any) -> Any:
        """A vector of the one number that lies there."""
        one = self.builder.insert_element(self.zeros, self.builder.load(self.at(base, *parts)), SHORT(0))
        return self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(SHORT, self.lanes), None))

    def scaled(self, by: Fraction, value: Any, plus: Any = None) -> Any:
        """The product of a constant and a vector, added to another."""
        constant = ir.Constant(self.vector, [float(by)] * self.lanes)
        if plus is None:
            return value if by == 1 else self.builder.fmul(constant, value)
        if abs(by) == 1:
            return self.builder.fadd(plus, value) if by == 1 else self.builder.fsub(plus, value)
        return self.builder.call(self.fma, [constant, value, plus])

    def combined(self, factors: Sequence[Fraction], vectors: Sequence[Any]) -> Any:
        """The sum of products; a vector whose factor is 1 comes first."""
        total = None
        for factor, vector in sorted(zip(factors, vectors, strict=True), key=lambda pair: pair[0] != 1):
            total = self.scaled(factor, vector, total) if factor else total
        return total

    def rows(self, matrix: Matrix, vectors: Sequence[Any]) -> list[Any]:
        """The product of a matrix with vectors; what rows of opposite points share is made once."""
        results, rest = list[Any](), list(matrix)
        while rest:
            row = rest.pop(0)
            other = rest[0] if rest else row
            even, odd = ([(a + sign * b) / 2 for a, b in zip(row, other, strict=True)] for sign in (1, -1))
            if any(even) and any(odd) and not any(a and b for a, b in zip(even, odd, strict=True)):
                by = next(factor for factor in reversed(odd) if factor)
                first, second = self.combined(even, vectors), self.combined([v / by for v in odd], vectors)
                results += [self.scaled(by, second, first), self.scaled(-by, second, first)]
                rest.pop(0)
            else:
                results.append(self.combined(row, vectors))
        return results

    def both(self, matrix: Matrix, grid: list[list[Any]]) -> list[list[Any]]:
        """The product of a matrix, a grid of vectors, and the matrix transposed."""
        columns = [self.rows(matrix, column) for column in zip(*grid, strict=True)]
        return [self.rows(matrix, row) for row in zip(*columns, strict=True)]

    def to_points(self, matrix: Matrix, corner: Any, line: int, next_one: int, place: Any, stride: int) -> None:
        """`both`, of vectors that lie in a square, to places that are strides apart."""
        side = range(len(matrix[0]))
        grid = [[self.load(corner, y * line + x * next_one) for x in side] for y in side]
        for point, value in enumerate(chain(*self.both(matrix, grid))):
            self.store(value, place, point * stride)

    def change(self, matrix: Matrix, n: int) -> None:
        """(square [side, side, n], `both` of a matrix and it)."""
        square, into = self.arguments
        with self.over(n, self.lanes) as k:
            self.to_points(matrix, self.at(square, k), len(matrix[0]) * n, n, self.at(into, k), n)
        self.end()

    def sums(self, block: int, wide: int) -> list[list[Any]]:
        """Zeros, of a block of products."""
        sums = [[self.variable(self.vector) for _ in range(0, wide, self.lanes)] for _ in range(block)]
        for total in chain(*sums):
            self.builder.store(self.zeros, total)
        return sums

    def add(self, sums: list[list[Any]], numbers: Sequence[tuple[Any, ...]], vectors: Any) -> None:
        """Products of numbers that lie at places with vectors that lie side by side."""
        loaded = [self.load(vectors, q * self.lanes) for q in range(len(sums[0]))]
        for row, places in zip(sums, numbers, strict=True):
            number = self.each(*places)
            for total, vector in zip(row, loaded, strict=True):
                fused = self.builder.call(self.fma, [number, vector, self.builder.load(total)])
                self.builder.store(fused, total)


class Pass(Code):
    """A pass of a convolution from C to K channels over S samples, some rows of tiles at a time."""

    def __init__(self, module: Any, name: str, shape: Shape, lanes: int, some: int, **arguments: int) -> None:
        super().__init__(module, name, lanes, **arguments)
        self.shape, self.some, self.C, self.K = shape, some, shape.inputs, shape.outputs
        self.count, self.width = some * shape.tiles[1], shape.out[1]
        self.narrow, self.behind = shape.stride(self.count, self.C), shape.stride(self.count, self.K)

    def convolution(self) -> None:
        """(inputs [S, H, W, C], weights [36, C, K] at the points, bias [K], outputs [S, H', W', K], room, S)."""
        inputs, weights, bias, outputs, room, samples = self.arguments
        before, behind = self.places(room)
        with self.rows_of_tiles(inputs, room, samples) as (sample, first):
            with self.tiles(first) as (row, column, tile):
                self.inputs_to_points(room, row, column, tile, before)
            self.products(before, weights, behind)
            with self.tiles(first) as (row, column, tile), self.over(self.K, self.lanes) as k:
                place, corner = (
                    self.at(behind, self.times(tile, self.K), k),
                    self.corner(outputs, sample, row, column, k),
                )
                grid = [[self.load(place, (y * SIDE + x) * self.behind) for x in range(SIDE)] for y in range(SIDE)]
                for y, values in enumerate(self.both(A_TRANSPOSED, grid)):
                    for x, value in enumerate(values):
                        value = self.builder.fadd(value, self.load(bias, k))
                        self.store(value, corner, (y * self.width + x) * self.K)
        self.end()

    def weights(self) -> None:
        """(inputs [S, H, W, C], slopes [S, H', W', K], sums [36, K, C], room, S, the first k, behind the last).

        The gradient in the weights of some of the channels k, at the points, is added to the sums.
        """
        inputs, slopes, sums, room, samples, begin, end = self.arguments
        before, behind = self.places(room)
        with self.rows_of_tiles(inputs, room, samples) as (sample, first):
            with self.tiles(first) as (row, column, tile):
                self.inputs_to_points(room, row, column, tile, before)
                with self.over(end, self.lanes, begin) as k:
                    corner = self.corner(slopes, sample, row, column, k)
                    place = self.at(behind, self.times(tile, self.K), k)
                    self.to_points(A, corner, self.width * self.K, self.K, place, self.behind)
            self.squares(before, behind, sums, begin, end)
        self.end()

    def places(self, room: Any) -> tuple[Any, Any]:
        """Of tiles at the points, of C and of K channels."""
        before = self.at(room, self.shape.padded)
        return before, self.at(before, SIDE**2 * self.narrow)

    @contextmanager
    def rows_of_tiles(self, inputs: Any, room: Any, samples: Any) -> Iterator[tuple[Any, Any]]:
        """Loops over samples, each copied into the middle of zeros, and the first of some rows of tiles."""
        shape, line = self.shape, self.shape.line
        with self.over(samples) as sample:
            with self.over(shape.height) as y, self.over(shape.width * self.C, self.lanes) as x:
                row = self.plus(self.times(sample, shape.height), y)
                value = self.load(inputs, self.times(row, shape.width * self.C), x)
                self.store(value, room, self.times(y, line), x, shape.padding * (line + self.C))
            with self.over(shape.tiles[0], self.some) as first:
                yield sample, first

    @contextmanager
    def tiles(self, first: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Loops over some rows of tiles: row and column of one, and which one of these it is."""
        columns = self.shape.tiles[1]
        with self.over(self.some) as row, self.over(columns) as column:
            yield self.plus(first, row), column, self.plus(self.times(row, columns), column)

    def corner(self, outputs: Any, sample: Any, row: Any, column: Any, k: Any) -> Any:
        """The place of a tile of outputs."""
        line = self.plus(self.times(sample, self.shape.out[0]), self.times(row, OUT))
        return self.at(outputs, self.times(line, self.width * self.K), self.times(column, OUT * self.K), k)

    def inputs_to_points(self, room: Any, row: Any, column: Any, tile: Any, before: Any) -> None:
        line = self.shape.line
        with self.over(self.C, self.lanes) as c:
            corner = self.at(room, self.times(row, OUT * line), self.times(column, OUT * self.C), c)
            self.to_points(B, corner, line, self.C, self.at(before, self.times(tile, self.C), c), self.narrow)

    def products(self, before: Any, weights: Any, behind: Any) -> None:
        """Of all tiles [tiles, C] and weights [C, K], point by point."""
        C, K, block = self.C, self.K, self.shape.few()[1]
        wide = 32 if self.lanes == 16 and K % 32 == 0 else self.lanes  # few registers have sums of a vector a tile
        with self.over(SIDE**2) as point, self.over(K, wide) as k, self.over(self.count, block) as tile:
            sums = self.sums(block, wide)
            of = self.at(before, self.times(point, self.narrow), self.times(tile, C))
            by = self.at(weights, self.times(point, C * K), k)
            with self.over(C) as c:
                self.add(sums, [(of, c, r * C) for r in range(block)], self.at(by, self.times(c, K)))
            into = self.at(behind, self.times(point, self.behind), self.times(tile, K), k)
            for r, row in enumerate(sums):
                for q, total in enumerate(row):
                    self.store(self.builder.load(total), into, r * K + q * self.lanes)

    def squares(self, before: Any, behind: Any, into: Any, begin: Any, end: Any) -> None:
        """into [K, C] <- into + sum over tiles of slopes [tiles, K] and inputs [tiles, C], point by point."""
        C, K = self.C, self.K
        block, wide = (SOME, 32 if C % 32 == 0 else 16) if self.lanes == 16 else (SOME // 2, 16)
        with self.over(SIDE**2) as point, self.over(end, block, begin) as k, self.over(C, wide) as c:
            sums = self.sums(block, wide)
            of = self.at(behind, self.times(point, self.behind), k)
            by = self.at(before, self.times(point, self.narrow), c)
            with self.over(self.count) as tile:
                mine = self.at(of, self.times(tile, K))
                self.add(sums, [(mine, r) for r in range(block)], self.at(by, self.times(tile, C)))
            place = self.at(into, self.times(point, K * C), self.times(k, C), c)
            for r, row in enumerate(sums):
                for q, total in enumerate(row):  # of few tiles: one sum of all would have four times the error
                    where = r * C + q * self.lanes
                    value = self.builder.fadd(self.load(place, where), self.builder.load(total))
                    self.store(value, place, where)
