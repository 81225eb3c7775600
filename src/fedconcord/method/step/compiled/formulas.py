"""Vectors of clients whose sums and products are noted as they are asked for, and made in one pass over memory.

What a method computes around the local steps (its `start`, `finish` and `contribute`) is a few operations on vectors
[S, d]. Torch makes a pass over memory for each of them; a pass that makes them all reads a client's numbers once. Any
other operation computes what it is given first, and is torch's.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Tree, finite, tree_leaves, tree_map
from fedconcord.method.step.compiled.loading import engine_of, installed, machine_code

TYPES = {torch.float32: "float", torch.float64: "double"}
FEWEST = 2**19  # numbers of models and rows: torch's passes over fewer take less than to note them
NUMBERS = (float, int)
TILE = 2048  # numbers of a client at a time: sums over clients stay in the first cache
# what torch's own code asks of a tensor without looking at its numbers
ABOUT = {Tensor.numel, Tensor.element_size, Tensor.is_floating_point, vars(torch._C.TensorBase)["device"].__get__}
Code = tuple[tuple[Any, ...], ...]
"""What a pass reads, computes and writes: a key of `LINES` or an operation, and the entries that it is of."""


class Formula(Tensor):
    """Numbers [S, d] or [d] that were not computed yet, or lie apart; or a tensor, operations on which are noted."""

    operation: str
    parts: tuple[Any, ...]  # formulas, tensors of a number a client, and numbers
    value: Tensor | None
    addresses: np.ndarray | None  # [S] of vectors that lie apart
    copy: Callable[[], Tensor]  # of those
    size_of: torch.Size
    dtype_of: torch.dtype

    shape = property(lambda self: self.size_of)  # torch's own ask `__torch_function__`
    dtype = property(lambda self: self.dtype_of)
    ndim = property(lambda self: len(self.size_of))

    @staticmethod
    def of(shape: tuple[int, ...], dtype: torch.dtype, operation: str = "", parts: tuple[Any, ...] = ()) -> Formula:
        formula: Formula = Tensor._make_wrapper_subclass(Formula, shape, dtype=dtype)
        formula.size_of, formula.dtype_of = torch.Size(shape), dtype
        formula.operation, formula.parts, formula.value, formula.addresses = operation, parts, None, None
        return formula

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        return function(*there(args), **there(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{function} of numbers that were not computed")  # torch's own code alone comes here

    def __add__(self, other: Any) -> Tensor:
        return _noted("fadd", operator.add, self, other)

    def __sub__(self, other: Any) -> Tensor:
        return _noted("fsub", operator.sub, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _noted("fsub", operator.sub, other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _noted("fmul", operator.mul, self, other)

    def __truediv__(self, other: Any) -> Tensor:
        return _noted("fdiv", operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        if type(other) in NUMBERS:
            return _noted("fmul", operator.mul, _noted("fdiv", operator.truediv, 1, self), other)  # as torch has it
        return _noted("fdiv", operator.truediv, other, self)

    def __neg__(self) -> Tensor:
        return Formula.of(self.shape, self.dtype, "fneg", (self,))

    __radd__, __rmul__ = __add__, __mul__

    def is_like(self, other: Any) -> bool:
        """Whether both can be made in one pass."""
        return isinstance(other, Formula) and self.shape == other.shape and self.dtype == other.dtype


def pays(clients: int, *read: Tree) -> bool:
    """Whether a pass over so much of every client is worth noting what it makes, and can be made."""
    numbers = sum(leaf.numel() for tree in read for leaf in tree_leaves(tree).values())
    return clients * numbers >= FEWEST and installed()


def note(tree: Tree, dim: int, dtype: torch.dtype) -> Tree:
    """The tree with operations on its vectors [S, d] and [d] noted."""

    def noted(leaf: Any) -> Any:
        suits = type(leaf) is Tensor and leaf.ndim in (1, 2) and leaf.shape[-1] == dim and leaf.dtype == dtype
        return _leaf(leaf) if suits and leaf.stride(-1) == 1 else leaf

    return tree_map(noted, tree)


def lying(column: Tensor, places: np.ndarray, others: Tensor, where: np.ndarray) -> Tensor:
    """Rows of a column [n, ...] at some places [S], but other rows where an index says so.

    Vectors are read where they lie, whatever happens there until somebody looks; all else is a copy.
    """

    def copy() -> Tensor:
        if len(where) == len(places):
            return others.clone()
        rows = column.index_select(0, torch.as_tensor(places.clip(0)))
        return rows.index_copy_(0, torch.as_tensor(where), others) if len(where) else rows

    if column.ndim != 2 or column.shape[1] == 1 or column.dtype not in TYPES:
        return copy()
    formula = Formula.of((len(places), column.shape[1]), column.dtype)
    formula.addresses, formula.copy = _addresses(column, places), copy
    formula.addresses[where] = _addresses(others, np.arange(len(where)))
    return formula


def there(tree: Any) -> Any:
    """The tree, in which lists and dictionaries may be, with the numbers of its formulas."""
    if isinstance(tree, dict):
        return {name: there(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = map(there, tree)
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if not isinstance(tree, Formula):
        return tree
    if tree.value is None and tree.addresses is not None:
        tree.value = tree.copy()
    elif tree.value is None:
        value = torch.empty(tree.shape, dtype=tree.dtype)
        _make([(tree, value)])
        tree.value, tree.parts = value, ()
    return tree.value


def renew(leaves: Mapping[str, Tensor], columns: Mapping[str, Tensor], places: np.ndarray) -> dict[str, Tensor]:
    """Write formulas [S, d] to these places [S] of columns [n, d], all in one pass; what is left to write."""
    pairs, rest = list[tuple[Formula, Any]](), dict[str, Tensor]()
    for name, leaf in leaves.items():
        addresses = _addresses(columns[name], places)
        if not isinstance(leaf, Formula) or leaf.value is not None:
            rest[name] = leaf
        elif leaf.addresses is None and (not pairs or leaf.is_like(pairs[0][0])):
            pairs.append((leaf, addresses))
        elif leaf.addresses is None or not np.array_equal(leaf.addresses, addresses):
            rest[name] = leaf
    others: dict[str, Tensor] = there(rest)  # before anything is written that they are made of
    _make(pairs)
    return others


def compute(total: Tree, message: Tree, clients: int) -> tuple[Tree, Tensor]:
    """The sum over clients of a tree of [S, ...], and `finite` of what they sent."""
    leaves = [*tree_leaves(message).values(), *tree_leaves(total).values()]
    first = next((leaf for leaf in leaves if isinstance(leaf, Formula) and leaf.shape[:-1] == (clients,)), None)

    def is_one(leaf: Any) -> bool:
        return first is not None and first.is_like(leaf)

    ours = ([leaf for leaf in tree_leaves(tree).values() if is_one(leaf)] for tree in (total, message))
    totals, sums = _make([], *ours)
    of = iter(totals)
    total = tree_map(lambda leaf: next(of) if is_one(leaf) else there(leaf).sum(0), total)
    is_finite = sums.isfinite().all(0) if len(sums) else torch.ones(clients, dtype=torch.bool)
    if len(sums) < len(tree_leaves(message)):
        is_finite &= finite(tree_map(lambda leaf: () if is_one(leaf) else leaf, message), clients)
    return total, is_finite


def _leaf(value: Tensor) -> Formula:
    formula = Formula.of(value.shape, value.dtype)
    formula.value = value
    return formula


def _addresses(rows: Tensor, places: np.ndarray) -> np.ndarray:
    """Of rows [n, ...] at some places."""
    return rows.data_ptr() + places * (rows.stride(0) * rows.itemsize)


def _noted(name: str, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """The formula of an operation on formulas, vectors and numbers; what torch makes of anything else."""
    if not all(type(arg) in NUMBERS or isinstance(arg, Tensor) for arg in args):
        return function(*there(args))
    like = args[0] if type(args[0]) is Formula else args[1]
    dim, dtype, clients, parts = like.shape[-1], like.dtype, 0, list[Any]()
    for arg in args:
        if isinstance(arg, Tensor):
            shape = arg.shape
            if not shape and arg.dtype.is_floating_point:
                arg = arg.to(dtype)
            elif arg.dtype != dtype or len(shape) not in (1, 2) or shape[-1] not in (1, dim):
                return function(*there(args))
            elif len(shape) == 2:
                if shape[0] != clients and clients > 1 and shape[0] > 1:
                    return function(*there(args))  # which says that sizes do not match
                clients = max(clients, shape[0])
            if shape and shape[-1] == dim and type(arg) is not Formula:
                if arg.stride(-1) != 1:
                    return function(*there(args))
                arg = _leaf(arg)
        parts.append(arg)
    return Formula.of((clients, dim) if clients else (dim,), dtype, name, tuple(parts))


# -- a pass --------------------------------------------------------------------------------------------------------


class Pass:
    """What a pass is of. No function that knows itself, which would keep the arrays until Python looks for cycles."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.code, self.entries = dtype, list[tuple[Any, ...]](), dict[int, int]()
        self.arrays = list[tuple[int, Any]]()  # tensors or addresses of entries, in their order

    def put(self, entry: tuple[Any, ...], array: Any = None) -> int:
        self.code.append(entry)
        if array is not None:
            self.arrays.append((len(self.code) - 1, array))
        return len(self.code) - 1

    def entry_of(self, part: Any) -> int:
        if id(part) not in self.entries:
            if not isinstance(part, Formula):
                k = self.put(("number",), part if isinstance(part, Tensor) else torch.tensor(part, dtype=self.dtype))
            elif part.value is not None or part.addresses is not None:
                k = self.put(("vector",), part.addresses if part.value is None else part.value)
            else:
                k = self.put((part.operation, *map(self.entry_of, part.parts)))
            self.entries[id(part)] = k
        return self.entries[id(part)]

    def write(self, what: str, k: int, array: Any) -> None:
        """To a tensor, or to addresses, from which the pass may have read."""
        is_lying = isinstance(array, np.ndarray)
        same = (
            at for at, one in self.arrays if is_lying and isinstance(one, np.ndarray) and np.array_equal(one, array)
        )
        at = next(same, None)
        self.put((what, k), array) if at is None else self.put(("renewed", k, at))

    def run(self, size: int, dim: int) -> None:
        """For so many clients."""
        addresses, clients = np.empty((size, len(self.arrays)), np.int64), np.arange(size)
        for k, (_, array) in enumerate(self.arrays):
            if isinstance(array, Tensor):
                each = array.ndim == 2 and array.shape[0] > 1
                array = _addresses(array, clients) if each else array.data_ptr()
            addresses[:, k] = array
        _program(tuple(self.code), TYPES[self.dtype])(addresses.__array_interface__["data"][0], size, dim)


def _make(
    values: Sequence[tuple[Formula, Any]], totals: Sequence[Formula] = (), messages: Sequence[Formula] = ()
) -> tuple[list[Tensor], Tensor]:
    """Write values to tensors or addresses; the sums over clients, each [d], of some formulas, and over numbers
    [messages, S] of others. All formulas are alike."""
    every = [*[formula for formula, _ in values], *totals, *messages]
    if not every:
        return [], torch.empty(0)
    dim, dtype, size = every[0].shape[-1], every[0].dtype, every[0].shape[0] if every[0].ndim == 2 else 1
    once = Pass(dtype)
    sources = [once.entry_of(formula) for formula in every]  # all is read before anything is written
    over_clients = [torch.zeros(dim, dtype=dtype) for _ in totals]
    over_numbers = torch.zeros(len(messages), size, dtype=dtype)
    kinds = ["value"] * len(values) + ["total"] * len(totals) + ["sum"] * len(messages)
    into = [*[array for _, array in values], *over_clients, *over_numbers[..., None]]
    for what, k, array in zip(kinds, sources, into, strict=True):
        once.write(what, k, array)
    once.run(size, dim)
    return over_clients, over_numbers


@cache
def _program(code: Code, number: str) -> Callable[[int, int, int], None]:
    """The machine code of a pass over the addresses [S, arrays] of what clients read and write, of S and of d."""
    text = _text(code, number)
    engine = engine_of(machine_code(text, lambda: text))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("run"))
    run.engine = engine  # type: ignore[attr-defined]  # which holds the code
    return run


PLACE = "%b{k} = getelementptr {T}, ptr %a{k}, i64 %i\n"
LINES = {  # of entry k: %a{k} is its address and %v{k} its number
    "vector": PLACE + "%v{k} = load {T}, ptr %b{k}",
    "number": "",
    "value": PLACE + "store {T} %v{of}, ptr %b{k}",
    "renewed": "store {T} %v{of}, ptr %b{at}",  # where a vector was read
    "total": PLACE + "%c{k} = load {T}, ptr %b{k}\n%d{k} = fadd {T} %c{k}, %v{of}\nstore {T} %d{k}, ptr %b{k}",
    "sum": "%q{k} = fadd reassoc {T} %p{k}, %v{of}",
}
BEHIND = "%c{k} = load {T}, ptr %a{k}\n%d{k} = fadd {T} %c{k}, %q{k}\nstore {T} %d{k}, ptr %a{k}"
TEXT = """
declare i64 @llvm.umin.i64(i64, i64)
define internal void @row({takes}, i64 %n) noinline nounwind {{
entry:
br label %loop
loop:
%i = phi i64 [0, %entry], [%j, %loop]
{lines}
%j = add nuw nsw i64 %i, 1
%more = icmp ult i64 %j, %n
br i1 %more, label %loop, label %end
end:
{behind}
ret void
}}
define void @run(ptr %all, i64 %S, i64 %d) {{
entry:
br label %tile
tile:
%t = phi i64 [0, %entry], [%u, %next]
%left = sub i64 %d, %t
%n = call i64 @llvm.umin.i64(i64 %left, i64 {TILE})
br label %client
client:
%s = phi i64 [0, %tile], [%r, %client]
%before = mul i64 %s, {width}
%mine = getelementptr ptr, ptr %all, i64 %before
{reads}
call void @row({passes}, i64 %n)
%r = add i64 %s, 1
%clients = icmp ult i64 %r, %S
br i1 %clients, label %client, label %next
next:
%u = add i64 %t, {TILE}
%tiles = icmp ult i64 %u, %d
br i1 %tiles, label %tile, label %out
out:
ret void
}}
"""


def _text(code: Code, T: str) -> str:
    """A pass in LLVM's language: `row` is a tile of a client, `run` goes over tiles and clients."""
    first, lines, behind, takes, reads, passes = (list[str]() for _ in range(6))
    for k, (what, *of) in enumerate(code):
        if what not in LINES:
            lines.append(f"%v{k} = {what} {T} {', '.join(f'%v{one}' for one in of)}")
            continue
        if what == "sum":
            first.append(f"%p{k} = phi {T} [0.0, %entry], [%q{k}, %loop]")
            behind.append(BEHIND.format(k=k, T=T))
        lines.append(LINES[what].format(k=k, T=T, of=of[0] if of else "", at=of[-1] if of else ""))
        if what == "renewed":
            continue
        takes.append(f"{T} %v{k}" if what == "number" else f"ptr noalias %a{k}")
        reads.append(f"%e{k} = getelementptr ptr, ptr %mine, i64 {len(passes)}\n%f{k} = load ptr, ptr %e{k}")
        read = {"number": f"%g{k} = load {T}, ptr %f{k}", "sum": f"%g{k} = getelementptr {T}, ptr %f{k}, i64 0"}
        reads.append(read.get(what, f"%g{k} = getelementptr {T}, ptr %f{k}, i64 %t"))
        passes.append(f"{T if what == 'number' else 'ptr'} %g{k}")
    joined = {name: "\n".join(some) for name, some in (("lines", first + lines), ("behind", behind), ("reads", reads))}
    return TEXT.format(takes=", ".join(takes), passes=", ".join(passes), width=len(passes), TILE=TILE, **joined)
