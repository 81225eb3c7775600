"""The code of products of a few rows with a few samples, of which a layer's products are made.

It is written for LLVM in vectors. Of loops over numbers LLVM makes such vectors too, but asks at every call which
arrays overlap: where layers are narrow that took a third of a step.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

FASTER = ("reassoc", "contract", "nsz", "arcp")


def register() -> int:
    """Bytes of a vector register of the processor that numba compiles for."""
    features = vars(config)["CPU_FEATURES"]
    features = get_host_cpu_features() if features is None else features
    return 64 if "+avx512f" in features else 32 if "+avx" in features else 16


# so many sums or factors, and what meets them, fill the registers: 32 with AVX-512 and on ARM, else 16
ROWS, SAMPLES = 4, 5 if register() == 64 or platform.machine() in ("aarch64", "arm64") else 3


class Part(NamedTuple):
    """Some of the n numbers of a row or sample, as many as a register holds."""

    place: Any  # of the first
    mask: Any = None  # which of them, where the others are of another part; None: all
    is_single: bool = False  # one number, and zeros


class Block:
    """R rows of x and S samples of a [n], apart from each other, a number f of each pair; keep, u, e: see `spread`."""

    def __init__(self, context: Any, builder: Any, kinds: Any, values: Any) -> None:
        x, w, a, p, f, q, n, m, r, b, keep, u, e = values
        self.builder, self.n, self.m = builder, n, m
        arrays = ((0, x), (2, a), (4, f), (11, u))
        self.x, self.a, self.f, self.u = (context.make_array(kinds[k])(context, builder, v).data for k, v in arrays)
        number = kinds[0].dtype
        self.bytes, self.width = number.bitwidth // 8, register() * 8 // number.bitwidth
        self.index, self.number = n.type, context.get_value_type(number)
        self.vector = ir.VectorType(self.number, self.width)
        self.zeros = ir.Constant(self.vector, None)
        self.row, self.sample = (builder.add(at, builder.mul(k, n)) for at, k in ((w, r), (p, b)))
        self.cell = builder.add(q, builder.add(builder.mul(b, m), r))
        self.keep, self.e = self.each(keep), self.each(e)
        of_keep, of_e = (builder.fcmp_unordered("!=", value, self.number(no)) for value, no in ((keep, 1), (e, 0)))
        self.blends = builder.or_(of_keep, of_e)

    def each(self, value: Any) -> Any:
        """A vector of one number."""
        zeros, order = (ir.Constant(ir.VectorType(kind, self.width), None) for kind in (value.type, ir.IntType(32)))
        first = self.builder.insert_element(zeros, value, self.index(0))
        return self.builder.shuffle_vector(first, first, order)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """The sum of c and the product of a and b."""
        return self.builder.fadd(self.builder.fmul(a, b, flags=FASTER), c, flags=FASTER)

    def at(self, r: int, s: int) -> Any:
        """Where the number of a row and a sample lies."""
        along = self.builder.add(self.cell, self.index(r))
        return self.builder.gep(self.f, [self.builder.add(along, self.builder.mul(self.index(s), self.m))])

    def factors(self, R: int, S: int) -> list[list[Any]]:
        """The numbers, each in a vector of its own."""
        return [[self.each(self.builder.load(self.at(r, s))) for s in range(S)] for r in range(R)]

    def places(self, data: Any, first: Any, count: int, part: Part) -> list[Any]:
        """Where a part of so many rows or samples lies."""
        begins = (self.builder.add(first, self.builder.mul(self.index(k), self.n)) for k in range(count))
        places = (self.builder.gep(data, [self.builder.add(begin, part.place)]) for begin in begins)
        return [place if part.is_single else self.builder.bitcast(place, self.vector.as_pointer()) for place in places]

    def load(self, place: Any, part: Part) -> Any:
        """What lies there."""
        value = self.builder.load(place, align=self.bytes)
        return self.builder.insert_element(self.zeros, value, self.index(0)) if part.is_single else value

    def store(self, new: Any, old: Any, place: Any, part: Part) -> None:
        """Put it there, in place of what was."""
        if part.is_single:
            new = self.builder.extract_element(new, self.index(0))
        elif part.mask is not None:
            new = self.builder.select(part.mask, new, old)
        self.builder.store(new, place, align=self.bytes)

    def along(self, code: Callable[[Part], None]) -> None:
        """The code of all parts; the last, where it fills no register, overlaps another and comes first."""
        builder, index, width, zero = self.builder, self.index, self.index(self.width), self.index(0)
        rest = builder.urem(self.n, width)
        with builder.if_else(builder.icmp_unsigned(">=", self.n, width)) as (wide, narrow):
            with wide:
                with builder.if_then(builder.icmp_unsigned("!=", rest, zero)):
                    lanes = ir.Constant(ir.VectorType(index, self.width), [*range(self.width)])
                    mask = builder.icmp_unsigned(">=", lanes, self.each(builder.sub(width, rest)))
                    code(Part(builder.sub(self.n, width), mask))
                with cgutils.for_range_slice(builder, zero, builder.sub(self.n, rest), width, index) as (place, _):
                    code(Part(place))
            with narrow, cgutils.for_range_slice(builder, zero, self.n, index(1), index) as (place, _):
                code(Part(place, is_single=True))


def dots(block: Block, R: int, S: int) -> None:
    """f[s, r] <- sum_i x[r, i] a[s, i]."""
    builder = block.builder
    totals = [[cgutils.alloca_once_value(builder, block.zeros) for _ in range(S)] for _ in range(R)]

    def code(part: Part) -> None:
        samples = [block.load(place, part) for place in block.places(block.a, block.sample, S, part)]
        for r, place in enumerate(block.places(block.x, block.row, R, part)):
            row = block.load(place, part)
            if part.mask is not None:
                row = builder.select(part.mask, row, block.zeros)
            for s, sample in enumerate(samples):
                builder.store(block.fused(row, sample, builder.load(totals[r][s])), totals[r][s])

    block.along(code)
    kind, name = ir.FunctionType(block.number, [block.number, block.vector]), f"v{block.width}f{block.bytes * 8}"
    total_of = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.{name}")
    for r in range(R):
        for s in range(S):
            total = builder.call(total_of, [block.number(0), builder.load(totals[r][s])], fastmath=FASTER)
            builder.store(total, block.at(r, s))


def spread(block: Block, R: int, S: int) -> None:
    """x[r] <- keep x[r] + e u[r] + sum_s f[s, r] a[s]; u lies as x does."""
    builder, factors = block.builder, block.factors(R, S)

    def code(part: Part, blends: bool) -> None:
        samples = [block.load(place, part) for place in block.places(block.a, block.sample, S, part)]
        others = block.places(block.u, block.row, R, part)
        for r, place in enumerate(block.places(block.x, block.row, R, part)):
            old = row = block.load(place, part)
            if blends:
                other = builder.fmul(block.e, block.load(others[r], part), flags=FASTER)
                row = block.fused(block.keep, row, other)
            for s, sample in enumerate(samples):
                row = block.fused(factors[r][s], sample, row)
            block.store(row, old, place, part)

    with builder.if_else(block.blends) as (yes, no):
        with yes:
            block.along(lambda part: code(part, True))
        with no:
            block.along(lambda part: code(part, False))


def back(block: Block, R: int, S: int) -> None:
    """a[s] <- a[s] + sum_r f[s, r] x[r]."""
    factors = block.factors(R, S)

    def code(part: Part) -> None:
        rows = [block.load(place, part) for place in block.places(block.x, block.row, R, part)]
        for s, place in enumerate(block.places(block.a, block.sample, S, part)):
            old = sample = block.load(place, part)
            for r, row in enumerate(rows):
                sample = block.fused(factors[r][s], row, sample)
            block.store(sample, old, place, part)

    block.along(code)


def block_of(write: Callable[[Block, int, int], None], R: int, S: int) -> Any:
    """A block as a function for compiled ones: rows r and following of x at w, samples b and following of a at p."""

    @intrinsic
    def block(typing, x, w, a, p, f, q, n, m, r, b, keep, u, e):
        kinds = types.void(x, types.intp, a, types.intp, f, *[types.intp] * 5, x.dtype, u, x.dtype)

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            write(Block(context, builder, signature.args, values), R, S)
            return context.get_dummy_value()

        return kinds, code

    return block
